"""The spend stop, as a Completion meets it (section 19)."""

from collections.abc import Iterator

import pytest

from billing import spend_stop
from billing.models import SpendStop, StopReason
from tests.live import InBackground


@pytest.fixture
def no_stop(database: None) -> Iterator[None]:
    spend_stop.clear(by=None)
    yield
    spend_stop.clear(by=None)


BODY = {"prompt": [5, 6], "max_tokens": 4}


@pytest.mark.row("C-091", "C-348", "C-617", "C-619", "A-490", "C-654")
def test_new_work_is_refused_until_somebody_clears_the_stop(caller, scripted, no_stop) -> None:
    scripted.answers = ("a",)
    spend_stop.lock(by=caller.user_id)
    refused = caller.client.post("/v1/completions", json=BODY)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert error["code"] == "spend_cap"
    assert error["type"] == "invalid_request_error"
    assert refused.headers["retry-after"] == "3600"
    assert refused.headers["x-should-retry"] == "false"
    assert caller.left() == 100_000
    assert spend_stop.clear(by=caller.user_id)
    assert caller.client.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.row("C-620", "C-622")
def test_what_runs_goes_on_and_reads_work(caller, scripted, no_stop) -> None:
    running = InBackground(caller.client, BODY)
    asked = scripted.next()
    spend_stop.pause_for_amount()
    assert caller.client.get("/v1/models").status_code == 200
    assert caller.client.get("/v1/models/tiny/status").status_code == 200
    asked.answer("a")
    assert running.done().status == 200


def test_a_refusal_for_another_reason_comes_first(caller, no_stop) -> None:
    """The stop stands after the caps in the order of checks (U-33)."""
    spend_stop.lock(by=None)
    answer = caller.client.post("/v1/completions", json=BODY | {"max_tokens": 20_000})
    assert answer.json()["error"]["code"] == "deadline_infeasible"


@pytest.mark.row("C-617")
def test_one_stop_is_on_at_a_time_and_keeps_its_reason(no_stop) -> None:
    first = spend_stop.pause_for_amount()
    assert spend_stop.lock(by=None) == first
    assert spend_stop.current() == first
    assert first.reason == StopReason.AMOUNT
    assert SpendStop.objects.filter(cleared_at=None).count() == 1
    assert spend_stop.clear(by=None)
    assert not spend_stop.clear(by=None)
    assert not spend_stop.is_on()
    assert spend_stop.current() is None
