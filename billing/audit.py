"""Does the ledger add up? Totals and Holds against lines, sums of usage against Holds."""

from dataclasses import dataclass

from django.conf import settings
from django.db import connection, transaction


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A number that is kept and differs from what it must be."""

    subject: str
    kept: str
    expected: str

    def __str__(self) -> str:
        return f"{self.subject}: kept {self.kept}, expected {self.expected}"


BUDGETS = """
SELECT 'Budget of User ' || coalesce(a.user_id, e.user_id), a.budget_left, coalesce(e.sum, 0)
FROM billing_account a FULL JOIN (
    SELECT user_id, sum(amount) FROM billing_entry WHERE bucket = 'budget' GROUP BY user_id
) e ON e.user_id = a.user_id
WHERE a.budget_left IS DISTINCT FROM coalesce(e.sum, 0)
"""

MONTHS = """
SELECT 'allowance of User ' || coalesce(m.account_id, e.user_id)
       || ' used in ' || to_char(coalesce(m.month, e.month), 'YYYY-MM'),
       m.used, coalesce(e.used, 0)
FROM billing_allowancemonth m FULL JOIN (
    SELECT user_id, month, -sum(amount) AS used
    FROM billing_entry WHERE bucket = 'allowance' GROUP BY user_id, month
) e ON e.user_id = m.account_id AND e.month = m.month
WHERE m.used IS DISTINCT FROM coalesce(e.used, 0)
"""

KEY_BUDGETS = """
SELECT 'Budget of API key ' || coalesce(k.key_id, e.key_id), k."left", coalesce(e.sum, 0)
FROM billing_keybudget k FULL JOIN (
    SELECT key_id, sum(amount) FROM billing_entry WHERE bucket = 'key_budget' GROUP BY key_id
) e ON e.key_id = k.key_id
WHERE k."left" IS DISTINCT FROM coalesce(e.sum, 0)
"""

RUNNING_TOTALS = """
SELECT 'running total of entry ' || id, total, expected FROM (
    SELECT id, total,
           sum(amount) OVER (PARTITION BY user_id, bucket, month, key_id ORDER BY id) AS expected
    FROM billing_entry
) lines
WHERE total <> expected
"""

HOLDS = """
SELECT 'lines of Hold ' || h.id || ' (' || h.state || ')', coalesce(e.sum, 0),
       CASE h.state WHEN 'open' THEN -h.tokens WHEN 'settled' THEN -h.paid ELSE 0 END
FROM billing_hold h LEFT JOIN (
    SELECT hold_id, sum(amount) FROM billing_entry WHERE bucket <> 'key_budget' GROUP BY hold_id
) e ON e.hold_id = h.id
WHERE coalesce(e.sum, 0)
      <> CASE h.state WHEN 'open' THEN -h.tokens WHEN 'settled' THEN -h.paid ELSE 0 END
"""

# A key pays what its Hold paid; beyond the Hold, what its own Budget had left (C-349).
KEY_HOLDS = """
SELECT 'lines of Hold ' || id || ' (' || state || ') on its key', sum, expected FROM (
    SELECT h.id, h.state, coalesce(e.sum, 0) AS sum,
           CASE WHEN NOT h.key_budget OR h.state = 'released' THEN 0
                WHEN h.state = 'open' THEN -h.tokens
                WHEN h.source = 'harvest' OR h.prompt_tokens + h.completion_tokens <= h.tokens
                    THEN -h.paid
                ELSE least(-h.tokens, greatest(-h.prompt_tokens - h.completion_tokens, e.sum))
           END AS expected
    FROM billing_hold h LEFT JOIN (
        SELECT hold_id, sum(amount) FROM billing_entry
        WHERE bucket = 'key_budget' GROUP BY hold_id
    ) e ON e.hold_id = h.id
) keys
WHERE sum <> expected
"""

DAILY_USAGE = """
SELECT 'usage of User ' || user_id || ' on ' || day || ', ' || model || ', ' || source
       || coalesce(', API key ' || key_id, '')
       || ' (completions, prompt, completion, paid, failed, stopped)',
       concat_ws(' ', sum(n) FILTER (WHERE kept), sum(p) FILTER (WHERE kept),
                 sum(c) FILTER (WHERE kept), sum(t) FILTER (WHERE kept),
                 sum(f) FILTER (WHERE kept), sum(s) FILTER (WHERE kept)),
       concat_ws(' ', sum(n) FILTER (WHERE NOT kept), sum(p) FILTER (WHERE NOT kept),
                 sum(c) FILTER (WHERE NOT kept), sum(t) FILTER (WHERE NOT kept),
                 sum(f) FILTER (WHERE NOT kept), sum(s) FILTER (WHERE NOT kept))
FROM (
    SELECT true AS kept, user_id, key_id, model, source, day, completions AS n,
           prompt_tokens AS p, completion_tokens AS c, paid AS t, failed AS f, stopped AS s
    FROM billing_dailyusage
    UNION ALL
    SELECT false, user_id, key_id, model, source, (opened_at AT TIME ZONE 'UTC')::date, 1,
           prompt_tokens, completion_tokens, paid,
           (status = 'failed')::int, (status = 'stopped')::int
    FROM billing_hold WHERE state = 'settled'
) both_sides
GROUP BY user_id, key_id, model, source, day
HAVING (coalesce(sum(n) FILTER (WHERE kept), 0), coalesce(sum(p) FILTER (WHERE kept), 0),
        coalesce(sum(c) FILTER (WHERE kept), 0), coalesce(sum(t) FILTER (WHERE kept), 0),
        coalesce(sum(f) FILTER (WHERE kept), 0), coalesce(sum(s) FILTER (WHERE kept), 0))
    <> (coalesce(sum(n) FILTER (WHERE NOT kept), 0), coalesce(sum(p) FILTER (WHERE NOT kept), 0),
        coalesce(sum(c) FILTER (WHERE NOT kept), 0), coalesce(sum(t) FILTER (WHERE NOT kept), 0),
        coalesce(sum(f) FILTER (WHERE NOT kept), 0), coalesce(sum(s) FILTER (WHERE NOT kept), 0))
"""

HOURLY_USAGE = """
SELECT 'usage of User ' || user_id || ' in the hour of ' || hour || ', ' || model
       || ' (completions, prompt, completion)',
       concat_ws(' ', sum(n) FILTER (WHERE kept), sum(p) FILTER (WHERE kept),
                 sum(c) FILTER (WHERE kept)),
       concat_ws(' ', sum(n) FILTER (WHERE NOT kept), sum(p) FILTER (WHERE NOT kept),
                 sum(c) FILTER (WHERE NOT kept))
FROM (
    SELECT true AS kept, user_id, model, hour, completions AS n, prompt_tokens AS p,
           completion_tokens AS c
    FROM billing_hourlyusage
    UNION ALL
    SELECT false, user_id, model, date_trunc('hour', opened_at, 'UTC'), 1, prompt_tokens,
           completion_tokens
    FROM billing_hold WHERE state = 'settled'
) both_sides
GROUP BY user_id, model, hour
HAVING (coalesce(sum(n) FILTER (WHERE kept), 0), coalesce(sum(p) FILTER (WHERE kept), 0),
        coalesce(sum(c) FILTER (WHERE kept), 0))
    <> (coalesce(sum(n) FILTER (WHERE NOT kept), 0), coalesce(sum(p) FILTER (WHERE NOT kept), 0),
        coalesce(sum(c) FILTER (WHERE NOT kept), 0))
"""

WEEKLY_USAGE = """
SELECT 'usage of User ' || user_id || ' in the week of ' || week || ', ' || model
       || ' (completions, prompt, completion, hours)',
       concat_ws(' ', w.n, w.p, w.c, w.hours), concat_ws(' ', h.n, h.p, h.c, h.hours)
FROM (
    SELECT user_id, week, model, completions AS n, prompt_tokens AS p, completion_tokens AS c, hours
    FROM billing_weeklyusage
) w FULL JOIN (
    SELECT user_id, date_trunc('week', opened_at, 'UTC')::date AS week, model, count(*) AS n,
           sum(prompt_tokens) AS p, sum(completion_tokens) AS c,
           bit_or(1 << extract(hour FROM opened_at AT TIME ZONE 'UTC')::int) AS hours
    FROM billing_hold WHERE state = 'settled' GROUP BY 1, 2, 3
) h USING (user_id, week, model)
WHERE (w.n, w.p, w.c, w.hours) IS DISTINCT FROM (h.n, h.p, h.c, h.hours)
"""

SITE_USAGE = """
SELECT 'usage of everybody on ' || day || ', ' || model || ', ' || source || ', slot ' || slot
       || ' (completions, prompt, completion, failed, stopped)',
       concat_ws(' ', s.n, s.p, s.c, s.f, s.s), concat_ws(' ', h.n, h.p, h.c, h.f, h.s)
FROM (
    SELECT day, slot, model, source, completions AS n, prompt_tokens AS p, completion_tokens AS c,
           failed AS f, stopped AS s
    FROM billing_siteusage
) s FULL JOIN (
    SELECT (opened_at AT TIME ZONE 'UTC')::date AS day,
           ('x' || right(user_id::text, 1))::bit(4)::int AS slot, model, source, count(*) AS n,
           sum(prompt_tokens) AS p, sum(completion_tokens) AS c,
           count(*) FILTER (WHERE status = 'failed') AS f,
           count(*) FILTER (WHERE status = 'stopped') AS s
    FROM billing_hold WHERE state = 'settled' GROUP BY 1, 2, 3, 4
) h USING (day, slot, model, source)
WHERE (s.n, s.p, s.c, s.f, s.s) IS DISTINCT FROM (h.n, h.p, h.c, h.f, h.s)
"""

SITE_USERS = """
SELECT 'Users who ran on ' || day || ', slot ' || slot, coalesce(s.n, 0), coalesce(h.n, 0)
FROM (
    SELECT day, slot, sum(users) AS n FROM billing_siteusage GROUP BY 1, 2
) s FULL JOIN (
    SELECT (opened_at AT TIME ZONE 'UTC')::date AS day,
           ('x' || right(user_id::text, 1))::bit(4)::int AS slot, count(DISTINCT user_id) AS n
    FROM billing_hold WHERE state = 'settled' GROUP BY 1, 2
) h USING (day, slot)
WHERE s.n IS DISTINCT FROM h.n
"""

# A reaper ends a lease within moments of its end, or one lease after the database came back.
LOST_HOLDS = """
SELECT 'Hold ' || h.id || ' of ' || h.tokens || ' tokens, lost by the ' || o.kind || ' process '
       || o.pid || ' on ' || o.host, 'open', 'released, by a reaper'
FROM billing_hold h JOIN billing_owner o ON o.token = h.owner_id
WHERE greatest(o.expires_at, pg_postmaster_start_time()) + make_interval(secs => %s)
      < clock_timestamp()
"""


SUMS = (
    BUDGETS,
    MONTHS,
    KEY_BUDGETS,
    RUNNING_TOTALS,
    HOLDS,
    KEY_HOLDS,
    DAILY_USAGE,
    HOURLY_USAGE,
    WEEKLY_USAGE,
    SITE_USAGE,
    SITE_USERS,
)


def check_ledger() -> list[Discrepancy]:
    """Return every number that does not add up; an empty list is a sound ledger.

    All is read from one moment of the database, so requests may be served meanwhile. Reads the
    whole history. Lists also each open Hold whose owner's lease ended more than a lease ago, which
    means that no reaper is at work. Not to be called in a transaction.
    """
    found: list[Discrepancy] = []
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for sums in SUMS:
            cursor.execute(sums)
            found += [Discrepancy(*map(str, row)) for row in cursor.fetchall()]
        cursor.execute(LOST_HOLDS, [settings.BASALT.lease_seconds])
        found += [Discrepancy(*map(str, row)) for row in cursor.fetchall()]
    return found
