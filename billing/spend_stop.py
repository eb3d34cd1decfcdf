"""The spend stop: new GPU work pauses when the GPUs cost too much, or when an admin says so.

Its state is the newest row: on from its start until somebody clears it, whatever time passes
(C-617). What runs already goes on; what asks for new work is refused (C-619, C-620).
"""

from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import SpendStop, StopReason


def is_on() -> bool:
    """Whether new GPU work is paused; one look at an index of the stops that nobody cleared."""
    return SpendStop.objects.filter(cleared_at=None).exists()


def current() -> SpendStop | None:
    """Return the stop that is on, or None."""
    return SpendStop.objects.filter(cleared_at=None).first()


def lock(*, by: UUID | None) -> SpendStop:
    """Pause new GPU work because an admin wants it; a stop that is on already stays."""
    return _begin(StopReason.LOCKED, by)


def pause_for_amount() -> SpendStop:
    """Pause new GPU work because of what the GPUs cost; a stop that is on already stays."""
    return _begin(StopReason.AMOUNT, None)


def clear(*, by: UUID | None) -> bool:
    """End the stop; False when none was on. The spend that counts starts over then (C-618)."""
    cleared = SpendStop.objects.filter(cleared_at=None).update(
        cleared_at=timezone.now(), cleared_by_id=by
    )
    return cleared > 0


def _begin(reason: StopReason, by: UUID | None) -> SpendStop:
    """Write the stop; the constraint lets one win where several begin at once."""
    try:
        with transaction.atomic():
            return SpendStop.objects.create(
                reason=reason, started_at=timezone.now(), started_by_id=by
            )
    except IntegrityError:
        stop = current()
        if stop is None:
            return _begin(reason, by)
        return stop
