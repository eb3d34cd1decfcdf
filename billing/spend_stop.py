"""The spend stop: new GPU work pauses when the GPUs cost too much, or when an admin says so.

Its state is the newest row: on from its start until somebody clears it, whatever time passes
(C-617). What runs already goes on; what asks for new work is refused (C-619, C-620).
"""

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing.models import SpendStop, StopReason

NOTE_LENGTH = 300
"""Characters of an admin's reason that are kept."""


def is_on() -> bool:
    """Whether new GPU work is paused; one look at an index of the stops that nobody cleared.

    Written out, since every Completion asks.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM billing_spendstop WHERE cleared_at IS NULL LIMIT 1")
        return cursor.fetchone() is not None


def current() -> SpendStop | None:
    """Return the stop that is on, or None."""
    return SpendStop.objects.filter(cleared_at=None).first()


def last_cleared_at() -> datetime | None:
    """Return when a stop was last cleared: the spend that counts starts there (C-618)."""
    stop = SpendStop.objects.exclude(cleared_at=None).order_by("-started_at").first()
    return stop.cleared_at if stop else None


def lock(*, by: UUID | None, note: str = "") -> SpendStop:
    """Pause new GPU work because an admin wants it; a stop that is on already stays."""
    return _begin(StopReason.LOCKED, by, note=note)


def pause_for_amount(*, spend: Decimal | None = None) -> SpendStop:
    """Pause new GPU work because of what the GPUs cost; a stop that is on already stays.

    `spend` is what counted, in US dollars.
    """
    return _begin(StopReason.AMOUNT, None, spend=spend)


def clear(*, by: UUID | None) -> bool:
    """End the stop; False when none was on. The spend that counts starts over then (C-618)."""
    cleared = SpendStop.objects.filter(cleared_at=None).update(
        cleared_at=timezone.now(), cleared_by_id=by
    )
    return cleared > 0


def _begin(
    reason: StopReason, by: UUID | None, *, note: str = "", spend: Decimal | None = None
) -> SpendStop:
    """Write the stop; the constraint lets one win where several begin at once."""
    try:
        with transaction.atomic():
            return SpendStop.objects.create(
                reason=reason,
                started_at=timezone.now(),
                started_by_id=by,
                note=note[:NOTE_LENGTH],
                spend=spend,
            )
    except IntegrityError:
        stop = current()
        if stop is None:
            return _begin(reason, by, note=note, spend=spend)
        return stop
