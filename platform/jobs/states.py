"""The states of background work, and the one table of how it may move between them."""

from django.db import models


class WorkState(models.TextChoices):
    """Where a piece of background work is."""

    QUEUED = "queued"
    """Waits, or a runner prepares it; it holds nothing."""
    RUNNING = "running"
    """It holds its tokens."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = (WorkState.QUEUED, WorkState.RUNNING)
"""States of work that has not ended."""
ENDED = (WorkState.DONE, WorkState.FAILED, WorkState.CANCELLED)

TRANSITIONS: dict[WorkState, tuple[WorkState, ...]] = {
    WorkState.QUEUED: (WorkState.RUNNING, WorkState.FAILED, WorkState.CANCELLED),
    WorkState.RUNNING: (WorkState.QUEUED, *ENDED),
    WorkState.DONE: (),
    WorkState.FAILED: (),
    WorkState.CANCELLED: (),
}
"""What may follow each state."""


def before(state: WorkState) -> list[WorkState]:
    """Return the states from which work may come to `state`."""
    return [old for old, new in TRANSITIONS.items() if state in new]
