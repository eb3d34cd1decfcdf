"""Engine workers that come with demand and go when idle."""

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import msgspec
import psutil
import pytest
import redis

from inference.catalogue import ModelEntry, load_catalogue
from inference.fleet import Boot, Fleet, ModelState, Stage, WorkerReport
from operations import launcher as launching
from operations.console import Console
from operations.launcher import Launcher, Move, Seat, Sight, templated
from operations.processes import Command
from operations.supervisor import Supervisor
from tests.conftest import TINY
from tests.operations.conftest import processes_of, wait_for

ROOT = Path(__file__).resolve().parents[2]


def report(model: str = "m", *, idle_since: float | None = None) -> WorkerReport:
    return WorkerReport(
        worker_id=f"{model}-1",
        model_id=model,
        stage=Stage.SERVING,
        started_at=1.0,
        idle_since=idle_since,
        host="here",
        pid=1,
    )


COLD = Sight(demand=False, workers=())
WANTED = Sight(demand=True, workers=())


def warm(idle_since: float | None, *, demand: bool = False) -> Sight:
    return Sight(demand=demand, workers=(report(idle_since=idle_since),))


def test_a_worker_is_started_only_when_asked_for_and_missing() -> None:
    seat = Seat(idle_seconds=10)
    assert seat.decide(COLD, 0) is Move.NOTHING
    assert seat.decide(warm(None, demand=True), 1) is Move.NOTHING
    assert seat.decide(WANTED, 2) is Move.START
    seat.started()
    assert seat.decide(WANTED, 3) is Move.NOTHING


@pytest.mark.row("C-624")
def test_a_worker_is_stopped_after_the_idle_time_of_its_model() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    assert seat.decide(warm(None), 0) is Move.NOTHING
    assert seat.decide(warm(500.0), 20) is Move.NOTHING
    assert seat.decide(warm(500.0), 29.9) is Move.NOTHING
    assert seat.decide(warm(500.0), 30) is Move.STOP


def test_work_in_between_starts_the_idle_time_again() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    seat.decide(warm(500.0), 0)
    # The work was too short for a look to see it, but the worker's own mark has moved.
    assert seat.decide(warm(507.0), 9) is Move.NOTHING
    assert seat.decide(warm(507.0), 18) is Move.NOTHING
    assert seat.decide(warm(507.0), 19) is Move.STOP


def test_an_idle_worker_that_is_asked_for_stays() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    seat.decide(warm(500.0), 0)
    assert seat.decide(warm(500.0, demand=True), 30) is Move.NOTHING


@pytest.mark.row("C-627", "A-447")
def test_a_floor_starts_a_worker_without_a_request_and_keeps_an_idle_one() -> None:
    seat = Seat(idle_seconds=10)
    assert seat.decide(Sight(demand=False, workers=(), floor=True), 0) is Move.START
    seat.started()
    idle = Sight(demand=False, workers=(report(idle_since=500.0),), floor=True)
    assert seat.decide(idle, 1) is Move.NOTHING
    assert seat.decide(idle, 1000) is Move.NOTHING
    # The floor is gone, and the worker has been idle for long.
    assert seat.decide(warm(500.0), 1001) is Move.STOP


def test_a_floor_starts_no_second_worker() -> None:
    seat = Seat(idle_seconds=10)
    elsewhere = Sight(demand=False, workers=(report(idle_since=500.0),), floor=True)
    assert seat.decide(elsewhere, 0) is Move.NOTHING


def test_a_worker_that_fell_silent_is_killed() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    # Loading may be slow; only a worker that has reported can fall silent.
    assert seat.decide(WANTED, 1000) is Move.NOTHING
    seat.decide(warm(None), 1000)
    assert seat.decide(COLD, 1029) is Move.NOTHING
    assert seat.decide(COLD, 1030) is Move.KILL


def test_a_worker_that_keeps_dying_early_is_started_less_and_less_often() -> None:
    seat = Seat(idle_seconds=10)
    waits = []
    for _ in range(7):
        seat.started()
        waits.append(seat.ended(lived=1.0, now=100.0))
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert seat.decide(WANTED, 129.9) is Move.NOTHING
    assert seat.decide(WANTED, 130) is Move.START


def test_a_worker_that_dies_late_is_started_again_at_once() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    seat.ended(lived=1.0, now=0.0)
    seat.started()
    assert seat.ended(lived=3600.0, now=50.0) == 0
    assert seat.decide(WANTED, 50) is Move.START


def test_a_worker_that_was_stopped_can_be_started_at_once() -> None:
    seat = Seat(idle_seconds=10)
    seat.started()
    seat.stopping = True
    assert seat.ended(lived=1.0, now=0.0) == 0
    assert seat.decide(WANTED, 0) is Move.START


@pytest.mark.row("C-624")
def test_the_models_of_the_contract_stay_up_as_long_as_it_says() -> None:
    served = load_catalogue(ROOT / "deploy" / "catalogue-acs.toml").enabled
    assert {entry.id: entry.idle_seconds for entry in served} == {
        "llama-8b": 30 * 60,
        "llama-405b": 5 * 60,
        "trinity-truebase": 5 * 60,
    }


def test_a_template_names_the_model() -> None:
    assert templated("ssh gpu 'serve engine.{model}'", "a-b") == ("ssh", "gpu", "serve engine.a-b")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    client = redis.Redis.from_url(os.environ["VALKEY_URL"])
    yield Fleet(client)
    client.close()


class Site:
    """A launcher over the real Valkey, whose workers are a shell script."""

    def __init__(self, fleet: Fleet, script: str, idle_seconds: float = 600) -> None:
        self.fleet = fleet
        self.model = f"model-{uuid4().hex[:8]}"
        self.shown = io.StringIO()
        self._script = script
        self.entry = cast(
            ModelEntry,
            SimpleNamespace(
                id=self.model, idle_seconds=idle_seconds, backend=SimpleNamespace(kind="worker")
            ),
        )

    def run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        async def main() -> None:
            supervisor = Supervisor(Console(self.shown, as_json=False))
            launcher = Launcher(
                supervisor,
                self.fleet,
                [self.entry],
                lambda model: Command(model, ("sh", "-c", self._script, "sh", model)),
                drain_seconds=1,
            )
            running = asyncio.create_task(launcher.run())
            try:
                await work()
            finally:
                running.cancel()
                await launcher.stop()

        asyncio.run(main())

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"\| pid (\d+)", self.shown.getvalue())]

    async def started(self, times: int) -> int:
        """Wait for the nth start, with a request that waits; returns its process number."""
        for _ in range(600):
            self.fleet.ask(self.model)
            if len(self.pids) >= times:
                return self.pids[times - 1]
            await asyncio.sleep(0.05)
        raise AssertionError(f"no start number {times}: {self.shown.getvalue()}")

    async def gone(self, pid: int) -> None:
        for _ in range(600):
            if not psutil.pid_exists(pid):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("still there")


LASTING = "echo pid $$; exec sleep 600"


def test_nothing_runs_without_demand_and_one_worker_runs_with_it(fleet: Fleet) -> None:
    site = Site(fleet, LASTING)

    async def work() -> None:
        await asyncio.sleep(3 * launching.POLL_SECONDS)
        assert site.pids == []
        pid = await site.started(1)
        assert psutil.pid_exists(pid)
        await asyncio.sleep(3 * launching.POLL_SECONDS)
        assert site.pids == [pid]

    site.run(work)
    assert not psutil.pid_exists(site.pids[0])


def test_an_idle_worker_is_stopped_and_started_again_on_demand(fleet: Fleet) -> None:
    site = Site(fleet, LASTING, idle_seconds=0.1)

    async def work() -> None:
        first = await site.started(1)
        # The demand lapses after some seconds without repetition.
        while psutil.pid_exists(first):
            fleet.report(report(site.model, idle_since=time()))
            await asyncio.sleep(0.3)
        fleet.retire(report(site.model))
        assert await site.started(2) != first

    site.run(work)
    assert f"stopping {site.model}, which was idle" in site.shown.getvalue()


@pytest.mark.row("C-627")
def test_a_model_with_a_floor_is_started_and_stays_until_the_floor_ends(fleet: Fleet) -> None:
    site = Site(fleet, LASTING, idle_seconds=0.1)

    async def work() -> None:
        fleet.keep_warm(site.model, time(), 60)
        assert fleet.state(site.entry).boot == Boot(
            Stage.WAITING_FOR_GPU, cast(float, fleet.floor(site.model))
        )
        for _ in range(600):
            if site.pids:
                break
            await asyncio.sleep(0.05)
        [pid] = site.pids
        idle = report(site.model, idle_since=time())
        for _ in range(6):
            fleet.report(idle)
            await asyncio.sleep(launching.POLL_SECONDS)
        assert psutil.pid_exists(pid)
        assert fleet.state(site.entry) == ModelState(warm=True, boot=None)
        fleet.let_cool(site.model)
        for _ in range(600):
            if not psutil.pid_exists(pid):
                break
            fleet.report(idle)
            await asyncio.sleep(0.05)
        assert not psutil.pid_exists(pid)

    site.run(work)


@pytest.mark.row("C-627")
def test_a_floor_ends_by_itself(fleet: Fleet) -> None:
    model = f"model-{uuid4().hex[:8]}"
    fleet.keep_warm(model, time(), 0.2)
    assert fleet.floor(model) is not None
    wait_for(lambda: fleet.floor(model) is None, "the floor ended", 10)


def test_a_killed_worker_is_replaced_while_a_request_waits(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "EARLY_SECONDS", 0.0)
    site = Site(fleet, LASTING)

    async def work() -> None:
        first = await site.started(1)
        os.kill(first, signal.SIGKILL)
        await site.gone(first)
        assert psutil.pid_exists(await site.started(2))

    site.run(work)


def test_the_report_of_a_dead_worker_goes_with_it(fleet: Fleet) -> None:
    site = Site(fleet, LASTING)

    async def work() -> None:
        pid = await site.started(1)
        dead = msgspec.structs.replace(report(site.model), pid=pid, host=socket.gethostname())
        other = msgspec.structs.replace(dead, worker_id="elsewhere", host="elsewhere")
        fleet.report(other)
        fleet.report(dead)
        os.kill(pid, signal.SIGKILL)
        await site.gone(pid)
        for _ in range(20):
            fleet.report(other)
            if fleet.workers(site.model) == [other]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the dead worker's report still stands")

    site.run(work)


def test_why_a_worker_keeps_dying_is_said(fleet: Fleet) -> None:
    site = Site(fleet, "echo pid $$; echo 'the weights are broken'; exit 1")

    async def work() -> None:
        await site.started(2)

    site.run(work)
    assert (
        f"{site.model} ended (exit code 1) saying: the weights are broken; no new start for 1 s"
        in site.shown.getvalue()
    )


def test_the_command_launches_by_its_template_and_leaves_no_worker(
    fleet: Fleet, tmp_path: Path
) -> None:
    # A model of this test's own: for others a worker may run already.
    model = f"launched-{uuid4().hex[:8]}"
    mark = f"mark-{uuid4().hex}"
    place = tmp_path / "catalogue.toml"
    place.write_text(TINY.format(folder=tmp_path).replace('id = "tiny"', f'id = "{model}"'))
    with subprocess.Popen(
        [
            *(sys.executable, ROOT / "manage.py", "launcher"),
            *("--command", f"sh -c 'echo runs $0; exec tail -f /dev/null {mark}' {{model}}"),
        ],
        env={**os.environ, "CATALOGUE_PATH": str(place)},
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stderr is not None
        try:
            # The template is on the launcher's own command line.
            wait_for(lambda: fleet.ask(model) or len(processes_of(mark)) == 2, "the worker runs")
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(30) == 0
            assert not processes_of(mark)
            assert f"runs {model}" in launcher.stderr.read()
        finally:
            launcher.kill()


def test_a_template_without_a_model_is_refused() -> None:
    refused = subprocess.run(
        [sys.executable, ROOT / "manage.py", "launcher", "--command", "serve"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "--command needs {queue} or {model}" in refused.stderr


def test_a_lost_valkey_is_said_once_and_outlived(open_folder: Path) -> None:
    client = redis.Redis(unix_socket_path=str(open_folder / "nothing.sock"))
    site = Site(Fleet(client), LASTING)

    async def work() -> None:
        await asyncio.sleep(5 * launching.POLL_SECONDS)

    site.run(work)
    assert site.shown.getvalue().count("Valkey does not answer") == 1
