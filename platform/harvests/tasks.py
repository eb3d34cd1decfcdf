"""The doorbell of the harvest workers."""

from celery import shared_task

from harvests.runs import RING


@shared_task(name=RING, ignore_result=True)
def ring() -> None:
    """Have the worker of this process look for a run."""
    from harvests.worker import answer_ring

    answer_ring()
