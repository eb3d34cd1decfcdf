"""What the clock and new mails have the runner do for people."""

from celery import shared_task
from django.db import connection

from accounts.forgetting import forget
from accounts.links import answer_asks
from accounts.mail import send_waiting


@shared_task(name="accounts.send_mails", ignore_result=True)
def send_mails() -> None:
    """Answer who asked for a link, and send the mails that wait (A-549)."""
    try:
        answer_asks()
        send_waiting()
    finally:
        connection.close()


@shared_task(name="accounts.forget", ignore_result=True)
def forget_expired() -> None:
    """Remove ended sessions, old links and old mails (A-569)."""
    try:
        forget()
    finally:
        connection.close()
