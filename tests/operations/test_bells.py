"""Bells are rung for work that is written already, so a bell that is lost is no failure."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery, current_app
from django.db import transaction

from accounts import mail
from feedback import tracker
from harvests import runs
from jobs import queue


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[None]:
    """Celery as it is for a moment after Valkey was killed: its socket refuses."""
    usual = current_app._get_current_object()
    deaf = Celery("deaf")
    deaf.config_from_object("django.conf:settings", namespace="CELERY")
    deaf.conf.broker_url = f"redis+socket://{tmp_path}/valkey.sock"
    deaf.set_current()
    try:
        yield
    finally:
        usual.set_current()


@pytest.mark.parametrize(
    "ring",
    [mail.ring, tracker.ring, lambda: runs.ring(f"model-{uuid4()}")],
    ids=["mails", "feedback", "harvests"],
)
def test_a_bell_that_is_lost_disturbs_nobody(deaf: None, ring) -> None:
    ring()


@pytest.mark.django_db(transaction=True)
def test_what_is_written_is_not_refused_because_its_bell_is_lost(deaf: None) -> None:
    with transaction.atomic():
        queue.ring("job")
