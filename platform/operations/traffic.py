"""What Analytics tells of requests, tokens and spend (A-473 to A-479, A-486 to A-488)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection
from django.db.models import Exists, F, OuterRef, QuerySet, Sum
from django.utils import timezone

from accounts.models import User
from billing.models import DailyUsage, Ending, Entry, Hold, HourlyUsage, Source, UnpaidRequests
from operations import spend
from operations.analytics import Days, Report
from operations.hours import users_of_hours
from operations.sums import RANKED, Split, Sums, Value, summed
from operations.tables import Cell, Column, Table

LISTED = 50
"""Completions and Budget changes that a list shows."""
OF_A_MODEL = 200
"""Users of one model that the last 48 hours list one by one."""


_PAID = "Completions that were paid, by the day on which they began."


def platform(days: Days) -> Report:
    """Return the tab `Platform` (A-473 to A-477)."""
    found = summed(days, (Split.DAY, Split.MODEL, Split.SOURCE))
    by_source, by_model = found[Split.SOURCE], found[Split.MODEL]
    counted = (Column("Requests"), Column("Input tokens"), Column("Output tokens"))
    sources = [
        (s.label, *(by_source[s.value].counted if s.value in by_source else (0, 0, 0)))
        for s in Source
    ]
    models = sorted(by_model, key=lambda model: (-by_model[model].completions, str(model)))
    return Report(
        (),
        (
            _endings(days, found[Split.DAY]),
            Table("sources", "Requests and tokens of each source", (Column("Source"), *counted),
                  sources, _PAID),
            Table("models", "Requests of each model", (Column("Model"), *counted),
                  [(str(model), *by_model[model].counted) for model in models], _PAID),
            _hours(days),
            spend_of_days(days),
        ),
    )  # fmt: skip


def _endings(days: Days, by_day: Mapping[Value, Sums]) -> Table:
    """Return the requests of each day by how they ended (A-473)."""
    paid = {
        day: (sums.completions - sums.failed - sums.stopped, sums.failed, sums.stopped)
        for day, sums in by_day.items()
    }
    unpaid: dict[date, dict[str, int]] = defaultdict(dict)
    rows = (
        UnpaidRequests.objects.filter(day__range=(days.first, days.last))
        .order_by()
        .values_list("day", "ending")
        .annotate(n=Sum("requests"))
    )
    for day, ending, n in rows:
        unpaid[day][ending] = n
    return Table(
        "endings",
        "Requests of each day by how they ended",
        (
            Column("Day"),
            Column("Completed", drawn=True),
            Column("Failed"),
            Column("Stopped"),
            *(Column(ending.label, drawn=ending in _FAULTS) for ending in Ending),
        ),
        [
            (
                day,
                *paid.get(day, (0, 0, 0)),
                *(unpaid.get(day, {}).get(ending.value, 0) for ending in Ending),
            )
            for day in days.each
        ],
        "Completed, Failed (after its first token) and Stopped are Completions that were paid, by "
        "the day on which they began, and exact. The others paid nothing and stand on the day on "
        "which they ended; a process that is killed loses those of its last seconds.",
    )


_FAULTS = (Ending.SERVER_ERROR, Ending.TIMEOUT)


def _hours(days: Days) -> Table:
    """Return how many Users ran in each hour of the day, as clocks show it (A-475)."""
    zones = settings.BASALT.analytics_time_zones
    found = users_of_hours([ZoneInfo(zone) for zone in zones], days.begins, days.ends)
    return Table(
        "hours",
        "Users of each hour of the day",
        (Column("Hour"), *(Column(zone, drawn=zone == zones[0]) for zone in zones)),
        [(f"{hour:02}:00", *(of_zone.get(hour, 0) for of_zone in found)) for hour in range(24)],
        "Different Users with a paid Completion that began in that hour on any of the days, as the "
        "clock of each time zone shows it.",
    )


def usage_report(days: Days) -> Report:
    """Return the tab `Usage` (A-478, A-479)."""
    tokens = (Column("Completions"), Column("Input tokens"), Column("Output tokens"))
    found = summed(days, (Split.USER, Split.MODEL, Split.SOURCE))

    def ranked(split: Split, names: Mapping[Value, str]) -> list[Sequence[Cell]]:
        sums = found[split]
        named = sorted((-sums[value].tokens, names.get(value, str(value)), value) for value in sums)
        return [(name, *sums[value].counted) for _, name, value in named]

    emails: dict[Value, str] = dict(
        User.objects.filter(id__in=[str(user_id) for user_id in found[Split.USER]]).values_list(
            "id", "email"
        )
    )
    labels: dict[Value, str] = {source.value: str(source.label) for source in Source}
    return Report(
        (),
        (
            Table("users", "Tokens of each User", (Column("User"), *tokens),
                  ranked(Split.USER, emails),
                  f"Completions that were paid, by the day on which they began; the {RANKED:,} "
                  "Users with the most tokens."),
            Table("models", "Tokens of each model", (Column("Model"), *tokens),
                  ranked(Split.MODEL, {}), _PAID),
            Table("sources", "Tokens of each source", (Column("Source"), *tokens),
                  ranked(Split.SOURCE, labels), _PAID),
            _newest(days),
            _changes(days),
        ),
    )  # fmt: skip


def who_ran(days: Days) -> QuerySet[User, tuple[UUID, str]]:
    """Return the ids and emails of the Users who ran on the days, by their emails.

    One look at an index for each User, so that the first ones are found without a sum.
    """
    ran = DailyUsage.objects.filter(user=OuterRef("pk"), day__range=(days.first, days.last))
    return User.objects.filter(Exists(ran)).order_by("email").values_list("id", "email")


MODELS = """
WITH RECURSIVE used AS (
    (SELECT model FROM billing_hold WHERE state <> 'released' ORDER BY model LIMIT 1)
    UNION ALL
    SELECT (SELECT h.model FROM billing_hold h WHERE h.state <> 'released' AND h.model > used.model
            ORDER BY h.model LIMIT 1)
    FROM used WHERE used.model IS NOT NULL
)
SELECT model FROM used WHERE model IS NOT NULL
"""


def models_used() -> list[str]:
    """Return the models that anybody ever used: one look at an index for each of them."""
    with connection.cursor() as cursor:
        cursor.execute(MODELS)
        return [model for (model,) in cursor.fetchall()]


def _newest(days: Days) -> Table:
    """Return the newest Completions; neither prompts nor texts are shown (A-444)."""
    holds = Hold.objects.listed().filter(opened_at__gte=days.begins, opened_at__lt=days.ends)
    if days.user_id:
        holds = holds.filter(user=days.user_id)
    if days.model:
        holds = holds.filter(model=days.model)
    if not days.user_id and not days.model:
        # An id begins with its time, so the primary key is the index of the days.
        holds = holds.filter(id__gte=first_id(days.begins), id__lt=first_id(days.ends))
        holds = holds.order_by("-id")
    return Table(
        "completions",
        "Newest Completions",
        (
            Column("Started (UTC)"),
            Column("User"),
            Column("Model"),
            Column("Source"),
            Column("Input tokens"),
            Column("Output tokens"),
            Column("Status"),
            Column("Request id"),
        ),
        [
            (
                hold.opened_at,
                hold.user.email,
                hold.model,
                hold.get_source_display(),
                hold.prompt_tokens,
                hold.completion_tokens,
                hold.get_status_display() or "Running",
                hold.request_id,
            )
            for hold in holds.select_related("user")[:LISTED]
        ],
        f"The newest {LISTED} of the days that run or were paid.",
    )


def first_id(moment: datetime) -> UUID:
    """Return the smallest id of a Hold that was opened at or after a moment."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def _changes(days: Days) -> Table:
    """Return the newest changes of Budgets that a person made."""
    entries = Entry.objects.filter(hold=None).order_by("-id").select_related("user", "by")
    if days.user_id:
        entries = entries.filter(user=days.user_id)
    return Table(
        "changes",
        "Newest Budget changes",
        (
            Column("Time (UTC)"),
            Column("User"),
            Column("Of"),
            Column("Kind"),
            Column("Tokens"),
            Column("Left after it"),
            Column("By"),
        ),
        [
            (
                entry.created_at,
                entry.user.email,
                entry.get_bucket_display(),
                entry.get_kind_display(),
                entry.amount,
                entry.total,
                entry.by.email if entry.by else "a command",
            )
            for entry in entries[:LISTED]
        ],
        f"The newest {LISTED}, whatever the days.",
    )


def spend_of_days(days: Days) -> Table:
    """Return what each model cost on each of the days (A-477, A-487)."""
    found = spend.by_day(days.first, days.last, timezone.now())
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for (_, model), dollars in found.items():
        totals[model] += dollars
    dearest = sorted((m for m in totals if totals[m]), key=lambda m: (-totals[m], m))[:8]
    return Table(
        "spend",
        "GPU spend per day",
        (
            Column("Day"),
            Column("All models", "$", drawn=True),
            *(Column(model, "$") for model in dearest),
        ),
        [
            (
                day,
                sum((found.get((day, model), Decimal(0)) for model in totals), Decimal(0)),
                *(found.get((day, model), Decimal(0)) for model in dearest),
            )
            for day in days.each
        ],
        "An estimate: containers that were counted each minute up to now, times the price of an "
        "hour in the catalogue then; the eight models that cost the most have their own columns.",
    )


def used_lately(now: datetime) -> Table:
    """Return who used each model in the last 48 hours, with their part of its spend (A-488).

    The parts of a model add up to what it cost; where nobody used it, the row says so.
    """
    since = (now - timedelta(hours=48)).replace(minute=0, second=0, microsecond=0)
    rows = (
        HourlyUsage.objects.filter(hour__gte=since)
        .order_by()
        .values_list("model", "user__email")
        .annotate(n=Sum("completions"), tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    used: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for model, email, n, tokens in rows:
        used[model].append((email, n, tokens))
    cost: dict[str, Decimal] = defaultdict(Decimal)
    for each in spend.by_model(now, timedelta(hours=48)):
        cost[each.model] += each.dollars
    lines: list[Sequence[Cell]] = []
    for model in sorted({*used, *(m for m in cost if cost[m])}, key=lambda m: (-cost[m], m)):
        people = sorted(used[model], key=lambda row: (-row[2], row[0]))
        dollars = cost[model].quantize(spend.CENT)
        if not sum(tokens for *_, tokens in people):
            lines.append((model, "nobody", 0, 0, dollars))
            continue
        parts = spend.shares(dollars, [tokens for *_, tokens in people])
        rows_of_model = [(model, *row, part) for row, part in zip(people, parts, strict=True)]
        lines += rows_of_model[:OF_A_MODEL]
        if others := rows_of_model[OF_A_MODEL:]:
            lines.append(_summed(model, others))
    return Table(
        "lately",
        "Who used each model, last 48 hours",
        (
            Column("Model"),
            Column("User"),
            Column("Completions"),
            Column("Tokens"),
            Column("Part of its spend", "$"),
        ),
        lines,
        "Paid Completions that began in the last 48 hours, from the start of their hour on. A part "
        "is the model's spend by the User's share of its tokens; the parts add up to the spend. "
        f"Of each model the {OF_A_MODEL} Users with the most tokens, and the others together.",
    )


def _summed(model: str, rows: Sequence[tuple[str, str, int, int, Decimal]]) -> Sequence[Cell]:
    """Return one row for many, so that the parts still add up."""
    return (
        model,
        f"{len(rows):,} others",
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
        sum((row[4] for row in rows), Decimal(0)),
    )
