"""What is removed when its time has passed: sessions, links, mails (A-569)."""

from datetime import timedelta

from django.contrib.sessions.models import Session
from django.db import models
from django.utils import timezone

from accounts.models import Mail, PasswordLink

LINKS_KEPT = timedelta(days=30)
"""A used or replaced link is told apart from one that never was for so long; nothing needs it."""
MAILS_KEPT = timedelta(days=30)
AT_ONCE = 5_000
"""Rows that one statement removes, so that no lock is held for long."""


def forget() -> int:
    """Remove what is past its time, in small steps; returns how many rows went."""
    now = timezone.now()
    old_links = PasswordLink.objects.filter(expires_at__lt=now - LINKS_KEPT)
    old_mails = Mail.objects.filter(created_at__lt=now - MAILS_KEPT).exclude(
        sent_at=None, given_up_at=None
    )
    return (
        _remove(Session.objects.filter(expire_date__lt=now))
        + _remove(old_links)
        + _remove(old_mails)
    )


def _remove(rows: "models.QuerySet[models.Model]") -> int:
    """Delete the rows in steps."""
    gone = 0
    while True:
        some = list(rows.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        if not some:
            return gone
        gone += rows.model._base_manager.filter(pk__in=some).delete()[0]
