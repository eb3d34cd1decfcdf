"""What the clock and new notes have the runner do."""

from celery import shared_task
from django.db import connection

from feedback import tracker


@shared_task(name="feedback.make_issues", ignore_result=True)
def make_issues() -> None:
    """Give the tracker the notes that it does not have (A-388)."""
    try:
        tracker.make_issues()
    finally:
        connection.close()
