"""Daily sums of what was settled, made anew; each settle adds to them (`statements.add_usage`)."""

from datetime import UTC
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q, Sum
from django.db.models.functions import TruncDate

from billing.models import Account, DailyUsage, Hold, HoldState, UsageStatus


def rebuild(*, user_id: UUID) -> int:
    """Make the daily sums of a User anew from the settled Holds; return how many rows there are.

    Locks the User's Account, so it may run while requests are served.
    """
    with transaction.atomic():
        if not Account.objects.select_for_update(no_key=True).filter(pk=user_id).exists():
            return 0
        DailyUsage.objects.filter(user=user_id).delete()
        rows = _summed(user_id)
        DailyUsage.objects.bulk_create(rows)
    return len(rows)


def _summed(user_id: UUID) -> list[DailyUsage]:
    days = (
        Hold.objects.filter(user=user_id, state=HoldState.SETTLED)
        .order_by()
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
