"""The doorbell of background work."""

from celery import shared_task

from jobs.queue import RING
from jobs.ringing import answer_ring


@shared_task(name=RING, ignore_result=True)
def ring(kind: str) -> None:
    """Wake the runner of this process."""
    answer_ring()
