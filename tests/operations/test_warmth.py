"""`warm` after each change of a real worker that nobody supervises: its report is all there is."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference import valkey
from inference.fleet import Fleet
from tests.conftest import Caller
from tests.live import InBackground, end, eventually, start_process

MODEL = "tiny-other"
"""No worker of another test runs beside this one."""
SOON = 2.0
"""Seconds in which `warm` is right."""


@pytest.fixture
def start(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Callable[[], object]]:
    """Starts a worker and waits until it takes messages, which its last report says."""
    started: list[subprocess.Popen[bytes]] = []
    fleet = Fleet(valkey.connection())

    def go() -> subprocess.Popen[bytes]:
        log = logs / f"warmth-{len(started)}.log"
        started.append(start_process("worker", f"engine.{MODEL}", log=log))
        eventually(lambda: "stage=serving" in log.read_text(), 90, 0.02)
        return started[-1]

    yield go
    for process in started:
        end(process)
    eventually(lambda: not fleet.workers(MODEL))


@pytest.mark.timeout(240)
@pytest.mark.row("C-132", "C-133")
def test_warm_is_right_two_seconds_after_a_start_a_stop_and_a_kill(
    caller: Caller, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    fleet = Fleet(valkey.connection())

    def is_warm() -> bool:
        return bool(caller.client.get(f"/v1/models/{MODEL}/status").json()["warm"])

    def asked(tokens: int) -> InBackground:
        body = {"model": MODEL, "prompt": [5, 6], "max_tokens": tokens, "stream": True}
        request = InBackground(caller.client, body)
        request.line(30)
        return request

    assert not is_warm()
    stopped = start()
    eventually(is_warm, SOON)
    request = asked(400)
    stopped.send_signal(signal.SIGTERM)
    eventually(lambda: not is_warm(), SOON)
    # It answers what it has, which makes it no warmer.
    assert request.done(60).status == 200
    assert stopped.wait(60) == 0
    assert not is_warm()
    assert fleet.workers(MODEL) == []

    killed = start()
    eventually(is_warm, SOON)
    assert asked(1).done(60).status == 200
    killed.kill()
    eventually(lambda: not is_warm(), SOON)
    assert killed.wait(30) == -signal.SIGKILL
    # What it answered keeps nothing warm, now and after its report has run out.
    assert not is_warm()
    eventually(lambda: not fleet.workers(MODEL))
    assert not is_warm()
