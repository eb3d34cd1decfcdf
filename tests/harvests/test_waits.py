"""Reads that wait for a change."""

import socket
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from tests.conftest import Caller
from tests.harvests.conftest import Runners, submitted, taken, until
from tests.live import eventually


class Waiting:
    """A read that waits, beside the test."""

    def __init__(self, caller: Caller, harvest: dict, wait: str = "60") -> None:
        self.answer: httpx.Response | None = None
        self.client = httpx.Client(
            base_url=caller.client.base_url, headers=caller.client.headers, timeout=70
        )
        self._path = f"/v1/harvest/{harvest['job_id']}?wait={wait}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self.client.get(self._path)
        except httpx.HTTPError:
            return

    def done(self) -> httpx.Response:
        self._thread.join(20)
        assert self.answer is not None
        return self.answer

    def leave(self) -> None:
        transport = self.client._transport
        for each in transport._pool._connections:  # type: ignore[attr-defined]
            stream = each._connection._network_stream
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def places_taken() -> int:
    from inference import valkey

    return valkey.connection().zcard(f"{valkey.PREFIX}places:waits")


@pytest.fixture
def no_waits() -> None:
    eventually(lambda: places_taken() == 0)


@pytest.mark.row("C-488")
def test_a_wait_ends_when_the_status_changes(
    reader: Caller, runner: Runners, no_waits: None
) -> None:
    made = submitted(reader)
    until(reader, made, "running")
    waiting = Waiting(reader, made)
    eventually(lambda: places_taken() == 1)
    reader.client.delete(f"/v1/harvest/{made['job_id']}")
    answer = waiting.done()
    assert answer.json()["status"] == "cancelled"
    assert "x-acs-longpoll" not in answer.headers
    eventually(lambda: places_taken() == 0)


@pytest.mark.row("C-488")
def test_a_wait_ends_after_its_seconds(reader: Caller) -> None:
    made = submitted(reader)
    begun = time.monotonic()
    answer = reader.client.get(f"/v1/harvest/{made['job_id']}?wait=0.4")
    assert time.monotonic() - begun >= 0.4
    assert answer.json()["status"] == "pending"
    for no_wait in ("", "?wait=0"):
        assert reader.client.get(f"/v1/harvest/{made['job_id']}{no_wait}").is_success


@pytest.mark.row("C-489")
@pytest.mark.parametrize("wait", ["61", "-1", "soon", "", "60.5", "nan", "1e1", "5&wait=6"])
def test_a_wait_is_a_number_of_seconds(reader: Caller, wait: str) -> None:
    made = submitted(reader)
    answer = reader.client.get(f"/v1/harvest/{made['job_id']}?wait={wait}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "wait"


@pytest.mark.row("C-491")
def test_an_ended_harvest_is_not_waited_for(reader: Caller) -> None:
    made = submitted(reader)
    reader.client.delete(f"/v1/harvest/{made['job_id']}")
    answer = Waiting(reader, made).done()
    assert answer.json()["status"] == "cancelled"


@pytest.mark.row("C-490", "C-492", "C-654")
def test_a_key_has_four_waits_and_all_have_eight(
    reader: Caller, another: Callable[..., Caller], no_waits: None
) -> None:
    callers = [reader, another(), another()]
    harvests = [submitted(caller) for caller in callers]
    waits = [Waiting(callers[0], harvests[0]) for _ in range(4)]
    eventually(lambda: places_taken() == 4)

    def declined(number: int) -> bool:
        path = f"/v1/harvest/{harvests[number]['job_id']}"
        answer = callers[number].client.get(path, params={"wait": "0.3"})
        assert answer.status_code == 200
        assert answer.json() == harvests[number]
        is_declined = answer.headers.get("x-acs-longpoll") == "declined"
        assert (answer.headers.get("retry-after") == "3") == is_declined
        return is_declined

    assert declined(0)
    assert not declined(1)
    waits += [Waiting(callers[1], harvests[1]) for _ in range(4)]
    eventually(lambda: places_taken() == 8)
    assert declined(2)
    waits[0].leave()
    eventually(lambda: places_taken() == 7)
    assert not declined(2)
    for waiting in waits[1:]:
        waiting.leave()
    eventually(lambda: places_taken() == 0)


@pytest.mark.row("C-488")
def test_a_wait_sees_the_end_of_a_run(reader: Caller, runner: Runners, no_waits: None) -> None:
    from harvests import runs
    from tests.harvests.conftest import outcome

    made = submitted(reader)
    run = taken(made)
    waiting = Waiting(reader, made)
    eventually(lambda: places_taken() == 1)
    assert runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
    assert waiting.done().json()["status"] == "done"
