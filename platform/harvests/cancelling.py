"""Cancels of harvests, by their User or by an admin (C-509, C-679)."""

from uuid import UUID

from django.db import transaction

from harvests.models import Harvest, HarvestInput
from harvests.refusals import harvest_not_found, not_cancellable
from jobs import queue
from jobs.states import WorkState


def cancel(*, harvest_id: UUID, user_id: UUID) -> None:
    """Cancel a harvest of a User; one that is cancelled already stays so (C-510).

    The worker that runs it sees the row within half a second, and so does the runner that holds its
    tokens, which then writes what it paid.

    Raises:
        Failure: 404 `harvest_job_not_found`, or 409 `harvest_not_cancellable`.
    """
    rows = Harvest.objects.filter(id=harvest_id, user_id=user_id)
    with transaction.atomic():
        harvest = rows.select_for_update().first()
        if harvest is None:
            raise harvest_not_found()
        if harvest.state == WorkState.CANCELLED:
            return
        if not queue.cancel(rows):
            raise not_cancellable(harvest.state)
        if harvest.owner is None:
            # Nobody has it in hand, so nothing is held, and nobody writes its last words.
            rows.update(tokens=0)
            HarvestInput.objects.filter(harvest_id=harvest_id).delete()
