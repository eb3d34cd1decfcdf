"""`script/bench pages`: server time and bytes of the App's pages on a large data set.

One User with 100 keys, 1,000,000 settled Completions of a year, 500 Looms, one of them with 2,000
Nodes, and 5,000 Runs, in a real PostgreSQL. Each page is asked for a few times in this process; the
middle of the times is printed, with the queries and the bytes.
"""

import argparse
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

django.setup()
tests.servers.start()

from django.core.management import call_command  # noqa: E402
from django.db import connection, reset_queries  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

COMPLETIONS = 1_000_000
KEYS, LOOMS, NODES, RUNS = 100, 500, 2_000, 5_000

HOLDS = """
INSERT INTO billing_hold (id, user_id, key_id, request_id, model, source, tokens, bucket, month,
  key_budget, state, opened_at, ended_at, paid, prompt_tokens, completion_tokens, status, counted)
SELECT gen_random_uuid(), %(user)s,
  CASE WHEN n %% 3 = 0 THEN NULL ELSE (%(keys)s::uuid[])[1 + n %% %(count)s] END,
  'req_' || n, (ARRAY['smollm2-135m-instruct-q4', 'smollm2-135m-instruct-q4-bf16'])[1 + n %% 2],
  CASE WHEN n %% 3 = 0 THEN (ARRAY['playground', 'loom'])[1 + n %% 2] ELSE 'api' END,
  500, 'budget', date_trunc('month', at)::date, false, 'settled', at, at + interval '3 s',
  300, 200, 100, 'completed', 'reported'
FROM (
  SELECT n, now() - make_interval(secs => n * 31.0) AS at FROM generate_series(1, %(holds)s) n
) moments
"""

DAYS = """
INSERT INTO billing_dailyusage (user_id, key_id, model, source, day, completions, prompt_tokens,
  completion_tokens, paid, failed, stopped)
SELECT user_id, key_id, model, source, (opened_at AT TIME ZONE 'UTC')::date, count(*),
  sum(prompt_tokens), sum(completion_tokens), sum(paid), 0, 0
FROM billing_hold GROUP BY 1, 2, 3, 4, 5
"""


def fill(holds: int) -> tuple[object, str]:
    """Make the data set; returns the User and the id of the large Loom."""
    from uuid import uuid4

    from accounts.models import ApiKey, User
    from billing.grants import grant
    from looms.edits import plant
    from looms.models import Node

    user = User.objects.create_user(email="bench@example.org")
    grant(user_id=user.id, tokens=10**12, by=None)
    now = timezone.now()
    keys = ApiKey.objects.bulk_create(
        ApiKey(
            user=user,
            name=f"key {number}",
            prefix="sk-acs-0000",
            digest=f"{number:064x}",
            revoked_at=now if number >= 10 else None,
        )
        for number in range(KEYS)
    )
    with connection.cursor() as cursor:
        ids = [key.id for key in keys]
        cursor.execute(HOLDS, {"user": user.id, "keys": ids, "count": KEYS, "holds": holds})
        cursor.execute(DAYS)
        cursor.execute("ANALYZE")
    for number in range(LOOMS):
        plant(user_id=user.id, title=f"Loom {number}", nodes=[Node(id=uuid4(), number=0, text="x")])
    root = Node(id=uuid4(), number=0, text="The keeper climbed the stairs.")
    nodes = [root]
    for number in range(1, NODES):
        parent = nodes[(number - 1) // 3]
        text = " and wrote in the log that nobody had come" * 2
        nodes.append(Node(id=uuid4(), number=number, parent=parent, text=text))
    large = plant(user_id=user.id, title="A large Loom", nodes=nodes)
    make_runs(user)
    return user, str(large.id)


def make_runs(user) -> None:
    """Make ended Runs."""
    from jobs.models import Run

    now = timezone.now()
    body = b'{"model":"smollm2-135m-instruct-q4","prompt":"The sky is","max_tokens":16}'
    Run.objects.bulk_create(
        Run(
            user=user,
            number=number,
            model="smollm2-135m-instruct-q4",
            state="done",
            created_at=now - timedelta(minutes=RUNS - number),
            started_at=now,
            finished_at=now,
            prompt="The sky is",
            prompt_start="The sky is",
            settings={"max_tokens": 16},
            body=body,
            output=b'{"choices":[]}',
            output_start=" blue and wide" * 20,
            prompt_tokens=3,
            completion_tokens=16,
        )
        for number in range(1, RUNS + 1)
    )


def measure(browser: Client, path: str, times: int) -> tuple[float, float, float, int, int]:
    """Milliseconds in the middle of so many answers, of which the processor's in Python and the
    database's, then queries and bytes."""
    took, busy = [], []
    for _ in range(times):
        reset_queries()
        began, used = time.perf_counter(), time.thread_time()
        answer = browser.get(path, follow=True)
        took.append((time.perf_counter() - began) * 1000)
        busy.append((time.thread_time() - used) * 1000)
        assert answer.status_code == 200, (path, answer.status_code)
    with CaptureQueriesContext(connection) as queries:
        browser.get(path, follow=True)
    waited = sum(float(query["time"]) for query in queries.captured_queries) * 1000
    size = len(answer.content)
    return statistics.median(took), statistics.median(busy), waited, len(queries), size


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench pages")
    parser.add_argument("--completions", type=int, default=COMPLETIONS)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    user, loom = fill(options.completions)
    browser = Client()
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    today = timezone.now().date()
    year = f"from={today - timedelta(days=365)}&to={today}"
    paths = {
        "API Keys, its table": "/api-keys/table",
        "Usage, this month": "/usage",
        "Usage, a year": f"/usage?{year}",
        "Usage, a year of one model": f"/usage?{year}&model=smollm2-135m-instruct-q4",
        "Usage, a year of one key": f"/usage?{year}&key={user.api_keys.first().id}",
        "Usage, its numbers": "/usage/numbers",
        "Request more tokens": "/usage/request",
        "Jobs": "/jobs",
        "Playground": "/playground",
        "Loom of 2,000 Nodes": f"/loom/{loom}",
    }
    print(f"{options.completions:,} Completions, {KEYS} keys, {LOOMS} Looms, {RUNS:,} Runs\n")
    print(f"{'page':<28} {'ms':>8} {'python':>8} {'database':>9} {'queries':>8} {'bytes':>10}")
    with override_settings(ALLOWED_HOSTS=["*"]):
        for name, path in paths.items():
            ms, python, database, queries, size = measure(browser, path, options.times)
            numbers = f"{ms:>8.1f} {python:>8.1f} {database:>9.0f} {queries:>8} {size:>10,}"
            print(f"{name:<28} {numbers}")


if __name__ == "__main__":
    main()
