"""Sums of what was settled by day and by hour, made anew; each settle adds to them.

See `statements.add_usage` and `statements.add_hour`.
"""

from datetime import UTC
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q, Sum
from django.db.models.functions import TruncDate, TruncHour

from billing.models import (
    Account,
    DailyUsage,
    Hold,
    HoldQuerySet,
    HoldState,
    HourlyUsage,
    UsageStatus,
)


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
    return len(rows)


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
