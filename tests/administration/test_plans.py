"""The admin's lists over a long history: no count of it, and no walk through it (A-496)."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.admin_base import MOST_ROWS
from accounts.models import User

USERS, HOLDS = 2_000, 200_000

MAKE_USERS = """
INSERT INTO accounts_user (id, password, is_superuser, email, name, is_staff, team, organization,
                           discord_handle, session_number, created_at)
SELECT gen_random_uuid(), '', false, 'past' || i || '@example.org', 'Name ' || i, false, false, '',
       '', 0, now() - i * interval '1 hour'
FROM generate_series(1, %s) AS i
"""
MAKE_HOLDS = """
INSERT INTO billing_hold (id, user_id, request_id, model, source, tokens, bucket, month, key_budget,
                          state, opened_at, ended_at, paid, prompt_tokens, completion_tokens,
                          status, counted)
SELECT (lpad(to_hex((extract(epoch FROM t.at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(i::text), 1, 3) || '8' || substr(md5(i::text), 4, 15))::uuid,
       u.id, 'req_past_' || i, 'tiny', 'api', 10, 'allowance',
       date_trunc('month', t.at)::date, false, 'settled', t.at, t.at, 10, 7, 3, 'completed',
       'reported'
FROM generate_series(1, %s) AS i
JOIN (SELECT id, row_number() OVER () AS n FROM accounts_user WHERE email LIKE 'past%%') AS u
    ON u.n = i %% %s + 1
CROSS JOIN LATERAL (SELECT now() - (i %% 172800) * interval '1 minute' AS at) AS t
"""
MAKE_DAYS = """
INSERT INTO billing_dailyusage (user_id, model, source, day, completions, prompt_tokens,
                                completion_tokens, paid, failed, stopped)
SELECT user_id, model, source, (opened_at AT TIME ZONE 'UTC')::date, count(*), sum(prompt_tokens),
       sum(completion_tokens), sum(paid), 0, 0
FROM billing_hold WHERE request_id LIKE 'req_past_%' GROUP BY 1, 2, 3, 4
"""


@pytest.fixture
def history(db: None) -> User:
    """A large history, gone with the transaction of the test."""
    admin = User.objects.create_superuser("root@example.org")
    with connection.cursor() as cursor:
        cursor.execute(MAKE_USERS, [USERS])
        cursor.execute(MAKE_HOLDS, [HOLDS, USERS])
        cursor.execute(MAKE_DAYS)
        cursor.execute("ANALYZE accounts_user, billing_hold, billing_dailyusage")
    return admin


def plan_of(sql: str) -> dict:
    """How PostgreSQL ran a statement: the tree, with the rows that each step met."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) " + sql)
        return cursor.fetchone()[0][0]["Plan"]


def steps(plan: dict):
    yield plan
    for part in plan.get("Plans", []):
        yield from steps(part)


LISTS = [
    "/admin/accounts/user/",
    "/admin/accounts/user/?q=name+19",
    "/admin/accounts/user/?engagement=active",
    "/admin/accounts/user/?engagement=cooling",
    "/admin/accounts/user/?engagement=churned",
    "/admin/accounts/user/?engagement=never",
    "/admin/billing/hold/",
    "/admin/billing/hold/?p=100",
    "/admin/billing/hold/?q=u7%40example.org",
    "/admin/billing/hold/?q=req_77",
    "/admin/billing/hold/?q=past5@example.org",
    "/admin/billing/hold/?status__exact=failed",
    "/admin/billing/dailyusage/",
    "/admin/billing/dailyusage/?source__exact=harvest",
]
LONG = {"billing_hold", "billing_dailyusage"}


@pytest.mark.row("A-496")
def test_no_list_walks_through_the_history(history: User) -> None:
    """Rows that any step meets stay near what a page shows, and not near the history's."""
    client = Client()
    client.force_login(history)
    wrong = []
    for address in LISTS:
        with CaptureQueriesContext(connection) as asked:
            assert client.get(address).status_code == 200, address
        reads = [
            each["sql"] for each in asked if each["sql"].startswith(("SELECT", "WITH", "\nSELECT"))
        ]
        for sql in reads:
            if "billing_hold" not in sql and "billing_dailyusage" not in sql:
                continue
            for step in steps(plan_of(sql)):
                met = step["Actual Rows"] + step.get("Rows Removed by Filter", 0)
                table = step.get("Relation Name", "")
                if table in LONG and met * step["Actual Loops"] > 3 * MOST_ROWS:
                    wrong.append(f"{address}: {step['Node Type']} of {met} rows\n{sql[:400]}")
    assert not wrong, "\n".join(wrong)
