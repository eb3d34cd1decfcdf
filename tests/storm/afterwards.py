"""What must hold when the storm is over, asked of the instance's own database and Valkey.

Each check is a query whose rows are the faults, so that a failing storm names what went wrong.
"""

import psycopg
import redis

UNPAID_OR_TWICE = """
SELECT '{kind} ' || w.id || ' is ' || w.state || ' and was paid ' || count(h.id) || ' times'
FROM {table} w
LEFT JOIN billing_hold h ON h.request_id = '{prefix}' || replace(w.id::text, '-', '')
                         AND h.state = 'settled'
GROUP BY w.id, w.state
HAVING (w.state = 'done' AND count(h.id) <> 1) OR (w.state <> 'done' AND count(h.id) > 1)
"""

CHECKS: dict[str, str] = {
    "every Job has ended": (
        "SELECT id || ' is ' || state FROM jobs_job WHERE state IN ('queued', 'running')"
    ),
    "every Job's answer is stored once and paid once": UNPAID_OR_TWICE.format(
        kind="Job", table="jobs_job", prefix="req_job_"
    ),
    "a Job that is done has its answer, and another has none": """
        SELECT id || ' is ' || state FROM jobs_job
        WHERE (state = 'done') <> (result IS NOT NULL OR result_file <> '')
    """,
    "every Node has ended": (
        "SELECT id || ' is ' || status FROM looms_node WHERE status IN ('queued', 'running')"
    ),
    "every Node's answer is paid once": UNPAID_OR_TWICE.format(
        kind="Node", table="looms_growth", prefix="req_node_"
    ),
    "a Node that was grown is as its work is": """
        SELECT n.id || ' is ' || n.status || ', its work is ' || g.state
        FROM looms_growth g JOIN looms_node n ON n.id = g.node_id
        WHERE (g.state = 'done') <> (n.status = 'completed')
    """,
    "every harvest has ended": (
        "SELECT id || ' is ' || state FROM harvests_harvest WHERE state IN ('queued', 'running')"
    ),
    "every harvest ended once": UNPAID_OR_TWICE.format(
        kind="harvest", table="harvests_harvest", prefix="req_harvest_"
    ),
    "a harvest pays what it says": """
        SELECT w.id || ' says ' || coalesce(w.tokens::text, 'nothing') || ' and paid ' || h.paid
        FROM harvests_harvest w
        JOIN billing_hold h ON h.request_id = 'req_harvest_' || replace(w.id::text, '-', '')
                            AND h.state = 'settled'
        WHERE h.paid IS DISTINCT FROM w.tokens
    """,
    "every Run has ended": (
        "SELECT id || ' is ' || state FROM jobs_run WHERE state IN ('queued', 'running')"
    ),
    "a Run is never run again, and a cut one is free": """
        SELECT r.id || ' is ' || r.state || ' and has ' || count(h.id) || ' settled Holds'
        FROM jobs_run r
        LEFT JOIN billing_hold h ON h.request_id = 'req_run_' || replace(r.id::text, '-', '')
                                 AND h.state = 'settled'
        GROUP BY r.id, r.state
        HAVING count(h.id) <> CASE r.state WHEN 'done' THEN 1 ELSE count(h.id) END
            OR count(h.id) > 1
    """,
    "a Run that its process lost costs nothing": """
        SELECT r.id || ' paid ' || h.paid FROM jobs_run r
        JOIN billing_hold h ON h.request_id = 'req_run_' || replace(r.id::text, '-', '')
                            AND h.state = 'settled'
        WHERE r.state = 'failed' AND r.error::jsonb ->> 'code' = 'job_failed'
    """,
    "no work is in anybody's hands": """
        SELECT 'Job ' || id FROM jobs_job WHERE owner IS NOT NULL
        UNION ALL SELECT 'Run ' || id FROM jobs_run WHERE owner IS NOT NULL
        UNION ALL SELECT 'Node ' || node_id FROM looms_growth WHERE owner IS NOT NULL
        UNION ALL SELECT 'harvest ' || id FROM harvests_harvest WHERE owner IS NOT NULL
    """,
    "no Hold is open": "SELECT id || ' of ' || request_id FROM billing_hold WHERE state = 'open'",
    "no lease of a dead process is left": (
        "SELECT kind || ' ' || pid FROM billing_owner WHERE expires_at < clock_timestamp()"
    ),
    "no request is paid twice": """
        SELECT request_id || ' is paid ' || count(*) || ' times' FROM billing_hold
        WHERE state = 'settled' GROUP BY request_id HAVING count(*) > 1
    """,
}


def faults(database_url: str) -> list[str]:
    """Everything that does not hold now, a line each."""
    found = []
    with psycopg.connect(database_url, connect_timeout=5, autocommit=True) as connection:
        for name, query in CHECKS.items():
            rows = connection.execute(query.encode()).fetchmany(5)
            found += [f"not true that {name}: {row[0]}" for row in rows]
    return found


def missing(database_url: str, table: str, promised: set[str]) -> set[str]:
    """The rows that were promised and are not there; a Run is known by its User and number."""
    name = "user_id::text || ' ' || number" if table == "jobs_run" else "id::text"
    with psycopg.connect(database_url, autocommit=True) as connection:
        query = f"SELECT {name} FROM {table} WHERE {name} = ANY(%s)"
        there = {row[0] for row in connection.execute(query.encode(), [list(promised)])}
    return promised - there


def grown(database_url: str) -> dict[str, int]:
    """The Runs that run now, by id, with how many pieces of their text are saved."""
    with psycopg.connect(database_url, connect_timeout=2, autocommit=True) as connection:
        rows = connection.execute("SELECT run_id::text, count(*) FROM jobs_runpiece GROUP BY 1")
        return {row[0]: row[1] for row in rows}


def textless(database_url: str, saved: set[str]) -> list[str]:
    """Of the Runs that had saved some of their text, those that ended without any."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        rows = connection.execute(
            """
            SELECT id || ' is ' || state FROM jobs_run
            WHERE id = ANY(%s::uuid[]) AND coalesce(completion_tokens, 0) = 0
            """,
            [list(saved)],
        )
        return [row[0] for row in rows]


def places(valkey_url: str) -> list[str]:
    """The places that are taken: of keys, of models, and of those who wait for harvests."""
    with redis.Redis.from_url(valkey_url) as valkey:
        seconds, micros = valkey.time()
        now = seconds * 1000 + micros // 1000
        return [
            f"a place of {name.decode()} is taken"
            for name in valkey.scan_iter("basalt:places:*")
            if valkey.type(name) == b"zset" and valkey.zcount(name, now, "+inf")
        ]


def paid_sources(database_url: str) -> list[str]:
    """The kinds of work of which something was paid, so that a storm that stopped all shows."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT DISTINCT source FROM billing_hold WHERE state = 'settled'"
        )
        return [row[0] for row in rows]
