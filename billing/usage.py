"""Sums of what was settled, made anew; each settle adds to them (`billing.statements`).

The sums of a User by day and by hour are made from the settled Holds, those by week from the hours,
and those of everybody from the days of all Users.
"""

from datetime import UTC, date, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, Max, Min, Q, Sum
from django.db.models.functions import TruncDate, TruncHour

from billing.models import (
    Account,
    DailyUsage,
    Hold,
    HoldQuerySet,
    HoldState,
    HourlyUsage,
    SiteUsage,
    UsageStatus,
    WeeklyUsage,
)

WEEKS = """
INSERT INTO billing_weeklyusage (user_id, week, model, completions, prompt_tokens,
                                 completion_tokens, hours)
SELECT user_id, date_trunc('week', hour AT TIME ZONE 'UTC')::date, model, sum(completions),
       sum(prompt_tokens), sum(completion_tokens),
       bit_or(1 << extract(hour FROM hour AT TIME ZONE 'UTC')::int)
FROM billing_hourlyusage WHERE user_id = %s GROUP BY 1, 2, 3
"""
# A User counts on the row of the least model and source of their day; which one does not matter.
SITE_DAY = """
INSERT INTO billing_siteusage (day, slot, model, source, completions, prompt_tokens,
                               completion_tokens, failed, stopped, users)
SELECT day, slot, model, source, sum(completions), sum(prompt_tokens), sum(completion_tokens),
       sum(failed), sum(stopped), count(*) FILTER (WHERE place = 1)
FROM (
    SELECT *, ('x' || right(user_id::text, 1))::bit(4)::int AS slot,
           row_number() OVER (PARTITION BY user_id ORDER BY model, source) AS place
    FROM billing_dailyusage WHERE day = %s
) of_users
GROUP BY 1, 2, 3, 4
"""


def rebuild(*, user_id: UUID) -> int:
    """Make the sums of a User anew from the settled Holds; return how many daily rows there are.

    Locks the User's Account, so it may run while requests are served.
    """
    with transaction.atomic():
        if not Account.objects.select_for_update(no_key=True).filter(pk=user_id).exists():
            return 0
        DailyUsage.objects.filter(user=user_id).delete()
        HourlyUsage.objects.filter(user=user_id).delete()
        rows = _days(user_id)
        DailyUsage.objects.bulk_create(rows)
        HourlyUsage.objects.bulk_create(_hours(user_id))
        WeeklyUsage.objects.filter(user=user_id).delete()
        with connection.cursor() as cursor:
            cursor.execute(WEEKS, [user_id])
    return len(rows)


def rebuild_site() -> int:
    """Make everybody's sums anew from the Users' days; return how many days there are.

    Day by day, under a lock that a settle waits for: a settle writes a User's day and everybody's
    in one transaction, so that what is read under the lock has either both or none of it.
    """
    kept = [
        model.objects.aggregate(first=Min("day"), last=Max("day"))
        for model in (DailyUsage, SiteUsage)
    ]
    ends: list[date] = [day for each in kept for day in each.values() if day is not None]
    if not ends:
        return 0
    count = (max(ends) - min(ends)).days + 1
    for number in range(count):
        day = min(ends) + timedelta(days=number)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE billing_siteusage IN SHARE ROW EXCLUSIVE MODE")
            cursor.execute("DELETE FROM billing_siteusage WHERE day = %s", [day])
            cursor.execute(SITE_DAY, [day])
    return count


def _settled(user_id: UUID) -> HoldQuerySet:
    settled: HoldQuerySet = Hold.objects.filter(user=user_id, state=HoldState.SETTLED).order_by()
    return settled


def _days(user_id: UUID) -> list[DailyUsage]:
    days = (
        _settled(user_id)
        .annotate(day=TruncDate("opened_at", tzinfo=UTC))
        .values("user_id", "key_id", "model", "source", "day")
        .annotate(
            completions=Count("id"),
            prompt_tokens=Sum("prompt_tokens"),
            completion_tokens=Sum("completion_tokens"),
            paid=Sum("paid"),
            failed=Count("id", filter=Q(status=UsageStatus.FAILED)),
            stopped=Count("id", filter=Q(status=UsageStatus.STOPPED)),
        )
    )
    return [DailyUsage(**day) for day in days]


def _hours(user_id: UUID) -> list[HourlyUsage]:
    hours = (
        _settled(user_id)
        .annotate(hour=TruncHour("opened_at", tzinfo=UTC))
        .values("user_id", "model", "hour")
        .annotate(
            completions=Count("id"),
            prompt_tokens=Sum("prompt_tokens"),
            completion_tokens=Sum("completion_tokens"),
        )
    )
    return [HourlyUsage(**hour) for hour in hours]
