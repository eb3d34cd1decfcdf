"""Locking and clearing the spend stop, with what follows from it: floors go and come back at once.

`billing.spend_stop` keeps the state and is what requests ask.
"""

from uuid import UUID

from django.db import transaction

from billing import spend_stop
from billing.models import SpendStop
from operations.warm import keep_warm_now


def lock(*, by: UUID | None, note: str = "") -> SpendStop:
    """Pause new GPU work; a stop that is on already stays. No window keeps a model warm (C-623)."""
    with transaction.atomic():
        stop = spend_stop.lock(by=by, note=note)
        transaction.on_commit(keep_warm_now)
    return stop


def clear(*, by: UUID | None) -> bool:
    """End the stop; False when none was on. Windows that are open keep their models warm again."""
    with transaction.atomic():
        cleared = spend_stop.clear(by=by)
        transaction.on_commit(keep_warm_now)
    return cleared
