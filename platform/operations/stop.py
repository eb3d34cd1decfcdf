"""Locking and clearing the spend stop, with what follows from it: floors go and come back at once.

`billing.spend_stop` keeps the state and is what requests ask.
"""

from uuid import UUID

from django.db import transaction

from accounts.actions import note as write_line
from billing import spend_stop
from billing.models import SpendStop
from operations.warm import keep_warm_now


def lock(*, by: UUID | None, note: str = "") -> SpendStop:
    """Pause new GPU work; a stop that is on already stays. No window keeps a model warm (C-623).

    A stop that begins here has its line in the log (A-392).
    """
    with transaction.atomic():
        before = spend_stop.current()
        stop = spend_stop.lock(by=by, note=note)
        if before is None:
            write_line(by=by, action="Lock", target=stop, details=note)
        transaction.on_commit(keep_warm_now)
    return stop


def clear(*, by: UUID | None) -> bool:
    """End the stop, with a line in the log; False when none was on.

    Windows that are open keep their models warm again.
    """
    with transaction.atomic():
        before = spend_stop.current()
        cleared = spend_stop.clear(by=by)
        if cleared and before is not None:
            write_line(by=by, action="Clear", target=before)
        transaction.on_commit(keep_warm_now)
    return cleared
