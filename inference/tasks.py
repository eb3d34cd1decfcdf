"""The doorbell of the engine workers.

The task says only that a request waits; the engine's process takes it and returns at once.
"""

from celery import shared_task

from inference.bell import RING


@shared_task(name=RING, ignore_result=True)
def ring(*request_ids: str) -> None:
    """Take submitted requests into the engine of this process."""
    from inference.worker import current_worker

    current_worker().take_all(request_ids)
