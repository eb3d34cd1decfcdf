"""Reports read by indexes: the plans of their queries over 200,000 Completions of a year."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import User
from billing.models import OwnerKind
from billing.owners import register

pytestmark = pytest.mark.django_db

USERS, HOLDS, DAYS = 1_000, 200_000, 365

FILL = """
CREATE TEMPORARY TABLE people ON COMMIT DROP AS
SELECT id, row_number() OVER () - 1 AS place FROM accounts_user WHERE email LIKE 'u%%';

INSERT INTO billing_account (user_id, budget_left) SELECT id, 0 FROM people;

CREATE TEMPORARY TABLE ran ON COMMIT DROP AS
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid AS id,
       people.id AS user_id, at, n
FROM (SELECT n, now() - n * interval '1 day' * %(days)s / %(holds)s AS at
      FROM generate_series(0, %(holds)s - 1) n) moments
JOIN people ON place = n %% %(users)s;

INSERT INTO billing_hold
    (id, user_id, request_id, model, source, tokens, bucket, month, key_budget, state, opened_at,
     ended_at, paid, prompt_tokens, completion_tokens, status, counted)
SELECT id, user_id, 'req_' || n, CASE WHEN n %% 5000 = 0 THEN 'rare' ELSE 'tiny' END, 'api', 20,
       'budget', date_trunc('month', at, 'UTC')::date, false, 'settled', at, at, 15, 10, 5,
       'completed', 'reported'
FROM ran;

INSERT INTO billing_entry (user_id, bucket, kind, amount, total, hold_id, created_at)
SELECT user_id, 'budget', 'hold', -20, 0, id, at FROM ran;

INSERT INTO billing_dailyusage
    (user_id, model, source, day, completions, prompt_tokens, completion_tokens, paid, failed,
     stopped)
SELECT user_id, model, source, (opened_at AT TIME ZONE 'UTC')::date, count(*), 10, 5, 15, 0, 0
FROM billing_hold GROUP BY 1, 2, 3, 4;

INSERT INTO billing_hourlyusage (user_id, model, hour, completions, prompt_tokens,
                                 completion_tokens)
SELECT user_id, model, date_trunc('hour', opened_at, 'UTC'), count(*), 10, 5
FROM billing_hold GROUP BY 1, 2, 3;

INSERT INTO billing_weeklyusage (user_id, model, week, completions, prompt_tokens,
                                 completion_tokens, hours)
SELECT user_id, model, date_trunc('week', opened_at, 'UTC')::date, count(*), 10, 5,
       bit_or(1 << extract(hour FROM opened_at AT TIME ZONE 'UTC')::int)
FROM billing_hold GROUP BY 1, 2, 3;

INSERT INTO billing_siteusage (day, slot, model, source, completions, prompt_tokens,
                               completion_tokens, failed, stopped, users)
SELECT day, ('x' || right(user_id::text, 1))::bit(4)::int, model, source, sum(completions), 10, 5,
       0, 0, count(DISTINCT user_id)
FROM billing_dailyusage GROUP BY 1, 2, 3, 4;

INSERT INTO operations_spendsample (minute, model, environment, kind, containers, price_per_hour)
SELECT date_trunc('minute', now()) - n * interval '1 minute', 'tiny', 'production', 'serving', 1, 2
FROM generate_series(0, 50000) n;
"""
GROWING = {
    "billing_hold",
    "billing_entry",
    "billing_dailyusage",
    "billing_hourlyusage",
    "billing_weeklyusage",
    "operations_spendsample",
}


@pytest.fixture
def history(tiny_catalogue):
    """A year of Completions, at most a second apart from what the tables would hold."""
    register(OwnerKind.WEB)
    User.objects.bulk_create(User(email=f"u{n}@example.org") for n in range(USERS))
    with connection.cursor() as cursor:
        # What the database itself must never have does not come from here.
        for statement in FILL.split(";\n"):
            if statement.strip():
                cursor.execute(statement, {"users": USERS, "holds": HOLDS, "days": DAYS})
        for table in (*GROWING, "accounts_user", "billing_account"):
            cursor.execute(f"ANALYZE {table}")


def read_whole(plan: dict[str, object]) -> set[str]:
    """The growing tables that a plan reads from their first row to their last."""
    found: set[str] = set()
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in GROWING:
        found.add(str(plan["Relation Name"]))
    for part in plan.get("Plans", []):  # type: ignore[union-attr]
        found |= read_whole(part)
    return found


@pytest.mark.row("A-496")
def test_no_report_of_a_month_reads_a_history(history) -> None:
    admin = Client()
    admin.force_login(User.objects.create_superuser("root@example.org"))
    today = datetime.now(UTC).date()
    user = User.objects.filter(email="u7@example.org").get()
    days = f"from={today - timedelta(days=30)}&to={today}"
    long_ago = f"from={today - timedelta(days=300)}&to={today - timedelta(days=290)}"
    pages = [
        "/admin/models",
        *(f"/admin/analytics/{tab}?{days}" for tab in ("users", "budget", "platform", "spend")),
        f"/admin/analytics/usage?{days}",
        f"/admin/analytics/usage?{days}&user={user.id}",
        f"/admin/analytics/usage?{days}&model=rare",
        f"/admin/analytics/usage?{long_ago}",
    ]
    _look_at(admin, pages, GROWING)


@pytest.mark.row("A-496")
def test_no_report_of_a_year_reads_its_days_or_hours(history) -> None:
    """The sums by week and everybody's are what a year is counted from."""
    admin = Client()
    admin.force_login(User.objects.create_superuser("root@example.org"))
    today = datetime.now(UTC).date()
    days = f"from={today - timedelta(days=365)}&to={today}"
    tabs = ("users", "budget", "platform", "usage", "spend")
    pages = [f"/admin/analytics/{tab}?{days}" for tab in tabs]
    _look_at(admin, pages, GROWING - {"billing_weeklyusage", "operations_spendsample"})


def _look_at(admin: Client, pages: list[str], growing: set[str]) -> None:
    for page in pages:
        with CaptureQueriesContext(connection) as made:
            assert admin.get(page).status_code == 200
        reads = [
            q["sql"]
            for q in made
            if q["sql"].lstrip().upper().startswith(("SELECT", "WITH", "(SELECT"))
        ]
        assert reads
        for sql in reads:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN (FORMAT JSON) " + sql.replace("%", "%%"), [])
                [[plans]] = cursor.fetchall()
            plan = plans if isinstance(plans, list) else json.loads(plans)
            assert not read_whole(plan[0]["Plan"]) & growing, f"{page}: {sql}"
