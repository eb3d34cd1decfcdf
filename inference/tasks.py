"""The doorbell of the engine workers.

The task says only that a request waits; the engine's process takes it and returns at once.
"""

from celery import shared_task

from inference.client import RING


@shared_task(name=RING, ignore_result=True)
def ring(request_id: str) -> None:
    """Take a submitted request into the engine of this process."""
    from inference.worker import current_worker

    current_worker().take(request_id)
