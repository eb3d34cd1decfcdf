"""Requests that paid nothing, counted by how they ended."""

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, transaction

from billing.endings import Endings
from billing.models import Ending, Source, UnpaidRequests

pytestmark = pytest.mark.django_db(transaction=True)


def rows():
    return {
        (row.day, row.source, row.model, row.ending): row.requests
        for row in UnpaidRequests.objects.all()
    }


def counting() -> Endings:
    """Counts that only the test writes."""
    endings = Endings()
    endings._writer = object()  # type: ignore[assignment]
    return endings


def test_counts_of_processes_add_up_on_their_day():
    one, other = counting(), counting()
    for _ in range(3):
        one.note(source=Source.API, model="m", ending=Ending.BUDGET)
    other.note(source=Source.API, model="m", ending=Ending.BUDGET)
    other.note(source=Source.JOB, model="", ending=Ending.TIMEOUT)
    for each in (one, other, one):
        each.write()
    today = datetime.now(UTC).date()
    assert rows() == {(today, "api", "m", "budget"): 4, (today, "job", "", "timeout"): 1}


def test_what_could_not_be_written_is_kept_for_the_next_try(monkeypatch):
    endings = counting()
    endings.note(source=Source.API, model="m", ending=Ending.LEFT)

    def lost(*args, **kwargs):
        raise DatabaseError("gone")

    with monkeypatch.context() as away:
        away.setattr(transaction, "atomic", lost)
        endings.write()
    assert rows() == {}
    endings.write()
    assert list(rows().values()) == [1]
