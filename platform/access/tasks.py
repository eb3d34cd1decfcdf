"""What the clock has the runner do for access."""

from celery import shared_task
from django.db import connection

from access.erasure import erase_deleted


@shared_task(name="access.erase", ignore_result=True)
def erase() -> None:
    """Erase what deleted Users wrote of themselves (U-35)."""
    try:
        erase_deleted()
    finally:
        connection.close()
