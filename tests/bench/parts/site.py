"""A large site in PostgreSQL: Users, a year of Completions with their sums, and rows to list.

The long tables are written by the database itself, without the checks of foreign keys and with
their indexes made afterwards; everything else by Django's models, so that what the database must
never have does not come from here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from accounts.models import AdminAction, ApiKey, Mail, MailKind, Tag, User, UserTag
from billing.usage import rebuild_site

KEYS = 100
"""Keys of the User who has half of all Completions."""
MODELS = ("smollm2-135m-instruct-q4", "smollm2-135m-instruct-q4-bf16", "rare")
LONG = (
    "billing_hold",
    "billing_entry",
    "billing_dailyusage",
    "billing_hourlyusage",
    "billing_weeklyusage",
)

PEOPLE = """
CREATE TEMPORARY TABLE people AS
SELECT u.id, row_number() OVER (ORDER BY u.created_at) - 1 AS place,
       (SELECT array_agg(k.id ORDER BY k.name) FROM accounts_apikey k
        WHERE k.user_id = u.id) AS keys
FROM accounts_user u WHERE NOT u.is_staff AND u.email <> 'bench@example.org';
CREATE UNIQUE INDEX ON people (place);
ANALYZE people
"""
# A year of moments. The bench User has every second Completion. Of the others, those who came last
# never ran one, and another fifth none in the last 60 days.
HOLDS = """
INSERT INTO billing_hold (id, user_id, key_id, request_id, model, source, tokens, bucket, month,
  key_budget, state, opened_at, ended_at, paid, prompt_tokens, completion_tokens, status, counted)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
  user_id, CASE WHEN n %% 7 = 0 THEN NULL ELSE keys[1 + n %% cardinality(keys)] END, 'req_' || n,
  CASE WHEN n %% 50000 = 0 THEN %(rare)s ELSE (%(models)s::text[])[1 + n %% 2] END,
  CASE WHEN n %% 7 = 0 THEN (ARRAY['playground', 'loom'])[1 + n %% 2]
       ELSE (ARRAY['api', 'api', 'job'])[1 + n %% 3] END,
  500, 'budget', date_trunc('month', at, 'UTC')::date, false,
  CASE WHEN released THEN 'released' ELSE 'settled' END, at, at + interval '3 s',
  CASE WHEN released THEN NULL ELSE 500 END, CASE WHEN released THEN NULL ELSE 300 END,
  CASE WHEN released THEN NULL ELSE 200 END, CASE WHEN released THEN '' ELSE 'completed' END,
  CASE WHEN released THEN '' ELSE 'reported' END
FROM (
  SELECT m.n, m.at, m.n %% 40 = 3 AS released,
         CASE WHEN m.n %% 2 = 0 THEN %(heavy)s ELSE p.id END AS user_id,
         CASE WHEN m.n %% 2 = 0 THEN %(keys)s::uuid[] ELSE p.keys END AS keys
  FROM (SELECT n, now() - n * (interval '365 days' / %(holds)s) AS at
        FROM generate_series(0, %(holds)s - 1) n) m
  JOIN people p ON p.place = CASE WHEN m.at > now() - interval '60 days'
    THEN (m.n / 2) %% (%(users)s * 6 / 10) ELSE (m.n / 2) %% (%(users)s * 8 / 10) END
) ran
"""
ENTRIES = """
INSERT INTO billing_entry (user_id, bucket, kind, amount, total, hold_id, created_at)
SELECT user_id, 'budget', kind, amount, 10000000, id, opened_at
FROM billing_hold, (VALUES ('hold', -500), ('settle', 1)) lines (kind, amount)
"""
DAYS = """
INSERT INTO billing_dailyusage (user_id, key_id, model, source, day, completions, prompt_tokens,
  completion_tokens, paid, failed, stopped)
SELECT user_id, key_id, model, source, (opened_at AT TIME ZONE 'UTC')::date, count(*),
  sum(prompt_tokens), sum(completion_tokens), sum(paid), 0, 0
FROM billing_hold WHERE state = 'settled' GROUP BY 1, 2, 3, 4, 5
"""
HOURS = """
INSERT INTO billing_hourlyusage (user_id, model, hour, completions, prompt_tokens,
                                 completion_tokens)
SELECT user_id, model, date_trunc('hour', opened_at, 'UTC'), count(*), sum(prompt_tokens),
  sum(completion_tokens)
FROM billing_hold WHERE state = 'settled' GROUP BY 1, 2, 3
"""
WEEKS = """
INSERT INTO billing_weeklyusage (user_id, week, model, completions, prompt_tokens,
                                 completion_tokens, hours)
SELECT user_id, date_trunc('week', hour AT TIME ZONE 'UTC')::date, model, sum(completions),
  sum(prompt_tokens), sum(completion_tokens),
  bit_or(1 << extract(hour FROM hour AT TIME ZONE 'UTC')::int)
FROM billing_hourlyusage GROUP BY 1, 2, 3
"""
MONTHS = """
INSERT INTO billing_account (user_id, budget_left)
SELECT id, 10000000 FROM accounts_user ON CONFLICT DO NOTHING;
INSERT INTO billing_allowancemonth (account_id, month, used)
SELECT user_id, m.month, 1 + abs(hashtext(user_id::text || m.month)) %% 5500000
FROM billing_account, (SELECT date_trunc('month', now(), 'UTC')::date - make_interval(months => n)
                       AS month FROM generate_series(0, 11) n) m
"""
UNPAID = """
INSERT INTO billing_unpaidrequests (day, source, model, ending, requests)
SELECT (now() AT TIME ZONE 'UTC')::date - n, source, model, ending, 7
FROM generate_series(0, 365) n, unnest(ARRAY['api', 'playground', 'loom', 'job']) source,
     unnest(%(models)s::text[]) model,
     unnest(ARRAY['client_error', 'budget', 'rate_limited', 'server_error', 'timeout']) ending
"""
SPEND = """
INSERT INTO operations_spendsample (minute, model, environment, kind, containers, gpus,
                                    price_per_hour)
SELECT date_trunc('minute', now()) - n * interval '1 minute', model, 'production', 'serving', 1, 8,
       36.32
FROM generate_series(0, 35 * 1440) n, unnest(%(models)s::text[]) model;
INSERT INTO operations_spendday (day, model, environment, kind, container_minutes, dollar_minutes)
SELECT (now() AT TIME ZONE 'UTC')::date - n, model, 'production', 'serving', 1440, 52300.80
FROM generate_series(0, 365) n, unnest(%(models)s::text[]) model
"""


# Ended Jobs, Runs and harvests of everybody.
WORK = """
INSERT INTO jobs_job (id, user_id, key_id, model, state, created_at, started_at, finished_at,
                      losses, request_file, result_file, erased_at)
SELECT gen_random_uuid(), id, keys[1], %(rare)s, 'done', now() - n * interval '1 hour', now(),
       now(), 0, '', '', now() FROM people, generate_series(1, 10) n;
INSERT INTO jobs_run (id, user_id, model, state, created_at, started_at, finished_at, losses,
                      number, prompt, prompt_start, settings, body_file, request_file, output_file,
                      output_start, activations_file)
SELECT gen_random_uuid(), id, %(rare)s, 'done', now() - n * interval '1 hour', now(), now(), 0, n,
       'The sky is', 'The sky is', '{}', '', '', '', '', '' FROM people, generate_series(1, 10) n;
INSERT INTO harvests_harvest (id, user_id, key_id, model, state, created_at, started_at,
                              finished_at, losses, size, n_prompts, reserved_tokens, tokens,
                              layers, projects)
SELECT gen_random_uuid(), id, keys[1], %(rare)s, 'done', now() - n * interval '1 hour', now(),
       now(), 0, 'small', 3, 10, 10, '{0}', false FROM people, generate_series(1, 3) n
"""


@dataclass(frozen=True)
class Site:
    """What was made."""

    heavy: User
    """Who has half of all Completions."""
    plain: User
    """One of the others, who ran some lately."""
    admin: User


def make_site(*, users: int, completions: int) -> Site:
    """Make a site of so many Users with so many Completions in a year."""
    _run("SET idle_in_transaction_session_timeout = 0", {})
    admin = User.objects.create_superuser("root@example.org")
    heavy = User.objects.create_user(email="bench@example.org")
    people = _people(users, admin)
    keys = _keys([heavy, *people])
    wanted = {
        "heavy": heavy.id,
        "keys": keys[heavy.id],
        "models": list(MODELS),
        "rare": MODELS[2],
        "users": users,
        "holds": completions,
    }
    _run(PEOPLE, wanted)
    with _bare(LONG):
        for statement in (HOLDS, ENTRIES, DAYS, HOURS, WEEKS):
            _run(statement, wanted)
    rebuild_site()
    for statements in (MONTHS, UNPAID, SPEND):
        _run(statements, wanted)
    _decisions(people, admin)
    _records(people, admin)
    _run(WORK, wanted)
    _run("VACUUM ANALYZE", {})
    return Site(heavy, people[1], admin)


def _run(statements: str, wanted: dict[str, object]) -> None:
    with connection.cursor() as cursor:
        for statement in statements.split(";\n"):
            cursor.execute(statement, wanted or None)


@contextmanager
def _bare(tables: tuple[str, ...]) -> Iterator[None]:
    """Take the indexes that no constraint needs off some tables, and make them again after."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s) AND NOT EXISTS "
            "(SELECT 1 FROM pg_constraint WHERE conname = indexname)",
            [list(tables)],
        )
        indexes = cursor.fetchall()
        for name, _ in indexes:
            cursor.execute(f'DROP INDEX "{name}"')
        cursor.execute("SET session_replication_role = replica")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute("SET maintenance_work_mem = '512MB'")
        for _, definition in indexes:
            cursor.execute(definition)


def _people(count: int, admin: User) -> list[User]:
    now = timezone.now()
    people = User.objects.bulk_create(
        [
            User(
                email=f"user{number}@example.org",
                name=f"Name {number}",
                password="!",
                organization=f"Lab {number % 97}" if number % 3 == 0 else "",
                suspended_at=now if number % 211 == 0 else None,
                created_at=now - timedelta(hours=number % 8_760),
            )
            for number in range(count)
        ],
        batch_size=2_000,
    )
    tags = Tag.objects.bulk_create(Tag(name=f"course-{number}") for number in range(20))
    UserTag.objects.bulk_create(
        [
            UserTag(user=user, tag=tags[number % 20], added_by=admin)
            for number, user in enumerate(people)
            if number % 2
        ],
        batch_size=2_000,
    )
    return people


def _keys(people: list[User]) -> dict[UUID, list[UUID]]:
    """Two keys for each, and a hundred for the first; all but ten of those are revoked."""
    now, made = timezone.now(), []
    for place, user in enumerate(people):
        made += [
            ApiKey(
                user=user,
                name=f"key {number:03}",
                prefix="sk-acs-0000",
                digest=f"{place * KEYS + number:064x}",
                revoked_at=now if number >= 10 else None,
            )
            for number in range(2 if place else KEYS)
        ]
    found: dict[UUID, list[UUID]] = {}
    for key in ApiKey.objects.bulk_create(made, batch_size=2_000):
        found.setdefault(key.user_id, []).append(key.id)
    return found


def _decisions(people: list[User], admin: User) -> None:
    from access.models import Application, ApplicationStatus, Invite
    from billing.models import Decision, TokenRequest

    now = timezone.now()
    text = "Read how a refusal builds up over Layers, with and without a Steering vector. " * 8
    told = {"name": "Ada", "organization": "Society", "planned_usage": text, "rules_agreed_at": now}
    Application.objects.bulk_create(
        [
            Application(
                email=user.email,
                submitted_at=now - timedelta(hours=number),
                status=ApplicationStatus.APPROVED,
                reviewed_at=now,
                reviewed_by=admin,
                user=user,
                **told,
            )
            for number, user in enumerate(people)
        ]
        + [
            Application(email=f"waits{number}@example.org", submitted_at=_ago(number), **told)
            for number in range(500)
        ],
        batch_size=2_000,
    )
    Invite.objects.bulk_create(
        [
            Invite(
                email=f"guest{number}@example.org",
                digest=f"{number:064x}",
                sent_by=admin,
                sent_at=_ago(number),
                expires_at=_ago(number) + timedelta(days=7),
            )
            for number in range(len(people) // 2)
        ],
        batch_size=2_000,
    )
    TokenRequest.objects.bulk_create(
        [
            TokenRequest(
                user=user,
                tokens=50_000,
                project="Probes",
                planned_usage=text,
                sent_at=_ago(number),
                status=Decision.REJECTED if number % 20 else Decision.WAITING,
                decided_at=now if number % 20 else None,
                decided_by=admin if number % 20 else None,
            )
            for number, user in enumerate(people)
        ],
        batch_size=2_000,
    )


def _records(people: list[User], admin: User) -> None:
    from feedback.models import Kind, Note

    count = 5 * len(people)
    Mail.objects.bulk_create(
        [
            Mail(
                kind=MailKind.values[0],
                to=people[number % len(people)].email,
                subject="Your application",
                created_at=_ago(number),
                expires_at=_ago(number),
                sent_at=_ago(number),
            )
            for number in range(count)
        ],
        batch_size=2_000,
    )
    AdminAction.objects.bulk_create(
        [
            AdminAction(
                by=admin,
                action="Grant tokens",
                kind="accounts.user",
                target_id=str(people[number % len(people)].id),
                at=_ago(number),
            )
            for number in range(count)
        ],
        batch_size=2_000,
    )
    Note.objects.bulk_create(
        [
            Note(kind=Kind.values[0], text="It flickers", user=user, sent_at=_ago(number))
            for number, user in enumerate(people)
        ],
        batch_size=2_000,
    )


def _ago(minutes: int) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)
