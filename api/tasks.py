"""What the clock has the runner do for the API."""

from celery import shared_task
from django.db import connection

from api.idempotency import forget_expired


@shared_task(name="api.forget_expired_keys", ignore_result=True)
def forget_expired_keys() -> None:
    """Remove the Idempotency-Keys that are past their day (C-386, C-640)."""
    try:
        forget_expired()
    finally:
        connection.close()
