"""What Analytics counts, from roll-ups: nothing here reads a history (A-459 to A-479).

Every number comes with how it is counted. "Users" leaves out the team's accounts: admins, staff,
and Users with the `team` mark (A-463, U-41). Days are UTC days.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from access.models import Application
from accounts.models import User
from billing.allowance import month_of
from billing.models import (
    DailyUsage,
    Ending,
    UnpaidRequests,
)
from feedback.models import Note
from operations.tables import Column, Fact, Table

CLOSEST = 10
"""Users closest to their allowance (A-472)."""
CLOSE = Decimal("0.9")
"""A User is close to the allowance from this share of it on, as on the page Usage (A-180)."""


@dataclass(frozen=True)
class Days:
    """The days of a report, and one User or one model where one is chosen (A-479)."""

    first: date
    last: date
    user_id: UUID | None = None
    model: str = ""

    @property
    def each(self) -> list[date]:
        """Every day, in order."""
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    @property
    def begins(self) -> datetime:
        """The first moment."""
        return datetime.combine(self.first, time(), UTC)

    @property
    def ends(self) -> datetime:
        """The first moment after the last day."""
        return datetime.combine(self.last + timedelta(days=1), time(), UTC)


@dataclass(frozen=True)
class Report:
    """What one tab shows."""

    facts: Sequence[Fact] = ()
    tables: Sequence[Table] = field(default_factory=tuple)

    def table(self, name: str) -> Table | None:
        """Return the table of this name."""
        return next((table for table in self.tables if table.name == name), None)


def outsiders() -> QuerySet[User]:
    """Return the Users who are no team accounts."""
    return User.objects.filter(is_staff=False, team=False, deleted_at=None)


def users(days: Days) -> Report:
    """Return the tab `Users` (A-465 to A-469)."""
    new = outsiders().filter(created_at__gte=days.begins, created_at__lt=days.ends)
    soon = _ran_within_a_day(days)
    week = timezone.now().astimezone(UTC).date() - timedelta(days=6)
    active = _active(week, week + timedelta(days=6))
    facts = (
        Fact("Applications waiting", f"{Application.objects.waiting().count():,}",
             "Applications that nobody has decided, whatever the days."),
        Fact("New Users", f"{new.count():,}",
             "Users who got access on the days: approved, or through an Invite."),
        Fact("Ran a Completion within 24 hours", f"{soon:,}",
             "Of the new Users, those with a Completion that began within 24 hours of getting "
             "access and was not released."),
        Fact("Active in the last 7 days", f"{active:,}",
             "Users with a Completion that was paid on today or one of the six days before it, "
             "whatever the days."),
    )  # fmt: skip
    return Report(facts, (_daily_numbers(days, new),))


RAN_OF_DAYS = """
SELECT day, sum(users)::bigint, sum(completions)::bigint, sum(tokens)::bigint FROM (
    SELECT day, users, completions, prompt_tokens + completion_tokens AS tokens
    FROM billing_siteusage WHERE day BETWEEN %(first)s AND %(last)s
    UNION ALL
    SELECT d.day, -(row_number() OVER (PARTITION BY d.user_id, d.day) = 1)::int,
           -d.completions, -d.prompt_tokens - d.completion_tokens
    FROM accounts_user u JOIN billing_dailyusage d ON d.user_id = u.id
    WHERE (u.is_staff OR u.team OR u.deleted_at IS NOT NULL)
          AND d.day BETWEEN %(first)s AND %(last)s
) of_everybody_but_the_team GROUP BY 1
"""
"""Everybody's days, less those of the team: the team are few, and everybody else is not."""


def _daily_numbers(days: Days, new: QuerySet[User]) -> Table:
    joined = _by_day(new.values_list("created_at__date").annotate(n=Count("id")))
    with connection.cursor() as cursor:
        cursor.execute(RAN_OF_DAYS, {"first": days.first, "last": days.last})
        ran = {day: (users, n, tokens) for day, users, n, tokens in cursor.fetchall()}
    return Table(
        "daily",
        "Daily numbers",
        (
            Column("Day"),
            Column("New Users"),
            Column("Users who ran", drawn=True),
            Column("Completions"),
            Column("Tokens"),
            Column("Feedback"),
        ),
        [
            (day, joined.get(day, 0), *ran.get(day, (0, 0, 0)), feedback.get(day, 0))
            for feedback in [_feedback(days)]
            for day in days.each
        ],
        "New Users by the day on which they got access; Users who ran, Completions and tokens by "
        "the day on which a Completion began that was paid; Feedback by the day it was sent.",
    )


def _feedback(days: Days) -> dict[date, int]:
    """Return how many notes were sent on each day, anonymous ones too, the team's not (A-469)."""
    sent = Note.objects.filter(
        Q(user=None) | Q(user__in=outsiders()), sent_at__gte=days.begins, sent_at__lt=days.ends
    )
    return _by_day(sent.order_by().values_list("sent_at__date").annotate(n=Count("id")))


RAN_SOON = """
SELECT count(*) FROM accounts_user u
WHERE u.created_at >= %s AND u.created_at < %s AND NOT u.is_staff AND NOT u.team
      AND u.deleted_at IS NULL
      AND EXISTS (
          SELECT 1 FROM billing_hold h
          WHERE h.user_id = u.id AND h.state <> 'released'
                AND h.opened_at >= u.created_at
                AND h.opened_at < u.created_at + interval '24 hours'
      )
"""


def _ran_within_a_day(days: Days) -> int:
    """Return how many new Users ran soon: one look at an index for each of them (A-467)."""
    with connection.cursor() as cursor:
        cursor.execute(RAN_SOON, [days.begins, days.ends])
        return int(cursor.fetchone()[0])


def _active(first: date, last: date) -> int:
    ran = DailyUsage.objects.filter(day__range=(first, last), user__in=outsiders())
    return ran.order_by().values("user").distinct().count()


@dataclass(frozen=True)
class Pace:
    """How far a User is with this month's allowance."""

    email: str
    allowance: int
    used: int
    runs_out: date | None
    """The day on which it ends at the pace of this month; None for one that lasts."""


USED = """
FROM billing_allowancemonth m
JOIN billing_account a ON a.user_id = m.account_id
JOIN accounts_user u ON u.id = a.user_id
WHERE m.month = %(month)s AND coalesce(a.allowance, %(default)s) > 0 AND m.used > 0
      AND NOT u.is_staff AND NOT u.team AND u.deleted_at IS NULL
"""
SHARE = "m.used::numeric / coalesce(a.allowance, %(default)s)"
PACES = f"""
SELECT u.email, coalesce(a.allowance, %(default)s) AS allowance, m.used
{USED} ORDER BY {SHARE} DESC, u.email LIMIT %(most)s
"""
NEAR = f"""
SELECT count(*) FILTER (WHERE {SHARE} >= 1), count(*) FILTER (WHERE {SHARE} < 1)
{USED} AND {SHARE} >= %(close)s
"""


def paces(now: datetime, most: int) -> list[Pace]:
    """Return the Users who are the closest to the end of this month's allowance, at most `most`."""
    today = now.astimezone(UTC)
    month = month_of(now)
    gone = Decimal((today - datetime.combine(month, time(), UTC)).total_seconds()) / 86_400
    with connection.cursor() as cursor:
        cursor.execute(PACES, {**_month(month), "most": most})
        rows = cursor.fetchall()
    return [
        Pace(email, allowance, used, _runs_out(today, month, allowance, used, gone))
        for email, allowance, used in rows
    ]


def near(now: datetime) -> tuple[int, int]:
    """Return how many Users are at this month's allowance, and how many close to it (A-470)."""
    with connection.cursor() as cursor:
        cursor.execute(NEAR, {**_month(month_of(now)), "close": CLOSE})
        at, close = cursor.fetchone()
    return int(at), int(close)


def _month(month: date) -> dict[str, date | int | Decimal]:
    return {"month": month, "default": settings.BASALT.monthly_allowance}


def _runs_out(
    today: datetime, month: date, allowance: int, used: int, gone: Decimal
) -> date | None:
    """Return today plus what is left by the tokens of a day so far, in this month (A-565)."""
    if used >= allowance:
        return today.date()
    days = Decimal(allowance - used) * gone / used
    if days > 31:
        return None
    end = (today + timedelta(days=float(days))).date()
    return end if month_of(datetime.combine(end, time(), UTC)) == month else None


def budget(days: Days) -> Report:
    """Return the tab `Budget` (A-470 to A-472)."""
    now = timezone.now()
    at, close = near(now)
    refused = dict(
        UnpaidRequests.objects.filter(day__range=(days.first, days.last), ending=Ending.BUDGET)
        .order_by()
        .values_list("day")
        .annotate(n=Sum("requests"))
    )
    facts = (
        Fact("At their allowance", f"{at:,}", "Users who used all of this month's allowance."),
        Fact("Close to their allowance", f"{close:,}",
             "Users who used 90% or more of it and not all. Running Holds count as used."),
        Fact("Requests that the Budget could not hold", f"{sum(refused.values()):,}",
             "Requests of the days that were refused with `budget_exceeded`, on every surface."),
    )  # fmt: skip
    closest = Table(
        "closest",
        "Closest to their allowance",
        (Column("User"), Column("Allowance"), Column("Used"), Column("Left"), Column("Runs out")),
        [
            (
                pace.email,
                pace.allowance,
                pace.used,
                max(0, pace.allowance - pace.used),
                pace.runs_out or "not this month",
            )
            for pace in paces(now, CLOSEST)
        ],
        "The day on which the allowance ends at the User's pace: what is left, divided by the "
        "tokens of a day of this month so far.",
    )
    daily = Table(
        "refused",
        "Daily numbers",
        (Column("Day"), Column("Requests refused for the Budget", drawn=True)),
        [(day, refused.get(day, 0)) for day in days.each],
        "Requests that were refused with `budget_exceeded` on each day, on every surface.",
    )
    return Report(facts, (closest, daily))


def _by_day(rows: Iterable[tuple[date, int]]) -> dict[date, int]:
    return dict(rows)
