"""Daily sums of what was settled: written with each settle, and made anew from the Holds."""

from datetime import UTC
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import TruncDate

from billing.models import Account, DailyUsage, Hold, HoldState, UsageStatus


def record(hold: Hold) -> None:
    """Add a Hold that was just settled to its day, the UTC day on which it began (U-39).

    Runs in the transaction that settles, under the lock of the User's Account, which is why an
    update and then an insert cannot meet another's.
    """
    failed = int(hold.status == UsageStatus.FAILED)
    stopped = int(hold.status == UsageStatus.STOPPED)
    prompt, completion, paid = hold.prompt_tokens or 0, hold.completion_tokens or 0, hold.paid or 0
    day = hold.opened_at.astimezone(UTC).date()
    rows = DailyUsage.objects.filter(
        user=hold.user_id, key=hold.key_id, model=hold.model, source=hold.source, day=day
    )
    added = rows.update(
        completions=F("completions") + 1,
        prompt_tokens=F("prompt_tokens") + prompt,
        completion_tokens=F("completion_tokens") + completion,
        paid=F("paid") + paid,
        failed=F("failed") + failed,
        stopped=F("stopped") + stopped,
    )
    if not added:
        DailyUsage.objects.create(
            user_id=hold.user_id,
            key_id=hold.key_id,
            model=hold.model,
            source=hold.source,
            day=day,
            completions=1,
            prompt_tokens=prompt,
            completion_tokens=completion,
            paid=paid,
            failed=failed,
            stopped=stopped,
        )


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
