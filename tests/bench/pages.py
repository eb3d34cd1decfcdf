"""`script/bench pages`: server time, queries and bytes of the App's pages and the admin's.

A site of 10,000 Users with 1,000,000 Completions of a year in a real PostgreSQL; `--completions
10000000` makes ten million. One User has half of them, with 100 keys, 500 Looms, one of them with
2,000 Nodes, and 5,000 Runs. Each page is asked for a few times in this process; the middle of the
times is printed, with the queries and the bytes, and pages over two seconds are marked (A-496).
`--plans MS` prints the plan of every statement that takes so many milliseconds.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

django.setup()
tests.servers.start()

from django.contrib.admin import site as admin_site  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from accounts.models import User  # noqa: E402
from tests.bench.parts.site import MODELS, Site, make_site  # noqa: E402

USERS, COMPLETIONS = 10_000, 1_000_000
LOOMS, NODES, RUNS = 500, 2_000, 5_000
TOO_LONG_MS = 2_000


@dataclass(frozen=True)
class Measured:
    """One page: milliseconds in the middle of so many answers, of which the processor's in Python
    and the database's, then queries and bytes, and the statements with their milliseconds."""

    ms: float
    python: float
    database: float
    queries: int
    size: int
    statements: list[tuple[float, str]]


def write(user: User) -> str:
    """Make the Looms and Runs of the User who has the most; returns the id of the large Loom."""
    from billing.grants import grant
    from looms.edits import plant
    from looms.models import Node

    grant(user_id=user.id, tokens=10**12, by=None)
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
    return str(large.id)


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


def measure(browser: Client, path: str, times: int) -> Measured:
    """Ask for a page so many times."""
    took, busy = [], []
    for _ in range(times):
        began, used = time.perf_counter(), time.thread_time()
        answer = browser.get(path, follow=True)
        took.append((time.perf_counter() - began) * 1000)
        busy.append((time.thread_time() - used) * 1000)
        assert answer.status_code == 200, (path, answer.status_code)
    with CaptureQueriesContext(connection) as queries:
        browser.get(path, follow=True)
    statements = [(float(query["time"]) * 1000, query["sql"]) for query in queries.captured_queries]
    size = len(answer.content)
    waited = sum(ms for ms, _ in statements)
    middle = statistics.median
    return Measured(middle(took), middle(busy), waited, len(statements), size, statements)


def app_pages(user: User, loom: str, today: date) -> dict[str, str]:
    """The App's pages, of the User who has the most."""
    year = f"from={today - timedelta(days=365)}&to={today}"
    return {
        "API Keys, its table": "/api-keys/table",
        "Usage, this month": "/usage",
        "Usage, a year": f"/usage?{year}",
        "Usage, a year of one model": f"/usage?{year}&model={MODELS[0]}",
        "Usage, a year of one key": f"/usage?{year}&key={user.api_keys.first().id}",
        "Usage, its numbers": "/usage/numbers",
        "Request more tokens": "/usage/request",
        "Jobs": "/jobs",
        "Playground": "/playground",
        "Loom of 2,000 Nodes": f"/loom/{loom}",
    }


def admin_pages(site: Site, loom: str, today: date) -> Iterator[tuple[str, str]]:
    """Every list, a page of an object of each, and Analytics with its files, of days and a year."""
    year = f"from={today - timedelta(days=365)}&to={today}"
    users = "/admin/accounts/user/"
    yield "admin", "/admin/"
    for model in admin_site._registry:
        meta = model._meta
        listed = f"/admin/{meta.app_label}/{meta.model_name}/"
        yield f"list of {meta.label_lower}", listed
        row = model.objects.order_by("pk").first() if model is not User else None
        if row is not None:
            yield f"one {meta.label_lower}", f"{listed}{row.pk}/change/"
        if getattr(admin_site._registry[model], "search_fields", ()):
            yield f"list of {meta.label_lower}, ?q=", f"{listed}?q={site.heavy.email}"
    for query in (
        "p=150", "q=name+77", "q=lab+13", "tag=course-3", "standing=suspended", "role=staff",
        "engagement=active", "engagement=cooling", "engagement=churned", "engagement=never",
        "o=1", "q=nobody-has-this",
    ):  # fmt: skip
        yield f"Users, ?{query}", f"{users}?{query}"
    for name, user in (("plain", site.plain), ("heavy", site.heavy)):
        yield f"the page of a {name} User", f"{users}{user.id}/change/"
        yield f"the same, a year, {name}", f"{users}{user.id}/change/?{year}"
        yield f"Grant tokens, {name}", f"{users}{user.id}/grant/"
        yield f"Completions of the {name} User", f"/admin/billing/hold/?q={user.email}"
        yield f"Runs of the {name} User", f"/admin/jobs/run/?q={user.email}"
    yield "Completions, one request", "/admin/billing/hold/?q=req_77"
    yield "Completions, last page", "/admin/billing/hold/?p=200"
    yield "Completions that failed", "/admin/billing/hold/?status__exact=failed"
    yield "daily sums of harvests", "/admin/billing/dailyusage/?source__exact=harvest"
    yield "Nodes of a Loom", f"/admin/looms/node/?q={loom}"
    yield "Models", "/admin/models"
    for tab in ("users", "budget", "platform", "usage", "spend"):
        yield f"Analytics, {tab}", f"/admin/analytics/{tab}"
        yield f"Analytics, {tab}, a year", f"/admin/analytics/{tab}?{year}"
        yield f"Analytics, {tab}, its numbers", f"/admin/analytics/{tab}/numbers"
    for user in (site.plain, site.heavy):
        yield "Analytics, usage of one, a year", f"/admin/analytics/usage?{year}&user={user.id}"
    for model in (MODELS[0], MODELS[2]):
        yield "Analytics, usage of a model, year", f"/admin/analytics/usage?{year}&model={model}"
    for tab, table in (
        ("users", "daily"), ("budget", "closest"), ("budget", "refused"), ("platform", "endings"),
        ("platform", "sources"), ("platform", "models"), ("platform", "hours"),
        ("platform", "spend"), ("usage", "users"), ("usage", "completions"), ("usage", "changes"),
        ("spend", "by-model"), ("spend", "lately"), ("spend", "changes"),
    ):  # fmt: skip
        yield f"CSV of {tab}, {table}, a year", f"/admin/analytics/{tab}/{table}.csv?{year}"


def show(browser: Client, pages: dict[str, str], times: int, plans: float) -> list[str]:
    """Print a line for each page; returns the pages that take too long."""
    slow = []
    print(f"\n{'page':<38} {'ms':>8} {'python':>8} {'database':>9} {'queries':>8} {'bytes':>10}")
    for name, path in pages.items():
        found = measure(browser, path, times)
        mark = "  over 2 s" if found.ms > TOO_LONG_MS else ""
        print(
            f"{name:<38} {found.ms:>8.1f} {found.python:>8.1f} {found.database:>9.0f} "
            f"{found.queries:>8} {found.size:>10,}{mark}",
            flush=True,
        )
        if mark:
            slow.append(name)
        for ms, sql in found.statements:
            if plans and ms >= plans and sql.lstrip().upper().startswith(("SELECT", "WITH")):
                print(f"    {ms:.0f} ms: {' '.join(sql.split())[:400]}\n{plan_of(sql)}\n")
    return slow


def plan_of(sql: str) -> str:
    """How PostgreSQL runs a statement."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS OFF, TIMING OFF, SUMMARY OFF) " + sql)
        return "\n".join(f"      {row[0][:160]}" for row in cursor.fetchall())


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench pages")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument(
        "--completions", type=int, default=COMPLETIONS, help="such as 10000000, ten million"
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=("app", "admin"))
    parser.add_argument("--plans", type=float, default=0, metavar="MS")
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    site = make_site(users=options.users, completions=options.completions)
    loom = write(site.heavy)
    today = timezone.now().date()
    print(
        f"{options.users:,} Users, {options.completions:,} Completions of a year, half of them one "
        f"User's, with {LOOMS} Looms and {RUNS:,} Runs; made in {time.perf_counter() - began:.0f} s"
    )
    browser, desk = Client(), Client()
    browser.force_login(site.heavy, backend="django.contrib.auth.backends.ModelBackend")
    desk.force_login(site.admin, backend="django.contrib.auth.backends.ModelBackend")
    slow: list[str] = []
    with override_settings(ALLOWED_HOSTS=["*"]):
        if options.only != "admin":
            slow += show(browser, app_pages(site.heavy, loom, today), options.times, options.plans)
        if options.only != "app":
            pages = dict(admin_pages(site, loom, today))
            slow += show(desk, pages, options.times, options.plans)
    print(f"\npages over {TOO_LONG_MS / 1000:g} s: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
