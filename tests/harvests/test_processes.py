"""The harvest worker as a process: started on demand, stopped as planned, killed."""

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from harvests import runs
from harvests.models import HarvestRun, Stage
from inference import catalogue, valkey
from inference.fleet import Fleet, WorkerReport, harvest_worker, queue_of
from inference.fleet import Stage as WorkerStage
from operations import spend
from operations.launcher import Launcher, Seat, Sight, templated
from operations.models import SpendKind, SpendSample
from tests.conftest import Caller
from tests.harvests.conftest import (
    LARGE,
    OTHER_LARGE,
    Runners,
    outcome,
    read,
    submitted,
    taken,
    until,
)
from tests.live import end, eventually, start_process


@pytest.fixture
def start(logs: Path) -> Iterator[object]:
    """Starts harvest workers of the large model as processes; `log` is where they write."""
    started = []

    def go() -> object:
        process = start_process(
            "worker", f"harvest.{LARGE}", log=logs / "harvest-worker.log", DRAIN_SECONDS="0.2"
        )
        started.append(process)
        return process

    yield go
    for process in started:
        end(process)


@pytest.mark.row("C-515", "C-605")
def test_a_worker_process_runs_harvests_and_gives_one_back_when_it_is_stopped(
    another: Callable[..., Caller], runner: Runners, start, logs: Path
) -> None:
    reader = another(2_000_000)
    fleet = Fleet(valkey.connection())
    small = submitted(reader, model=LARGE, prompts=["Paris"] * 70, layers="all")
    eventually(lambda: fleet.demand(harvest_worker(LARGE)) is not None)
    worker = start()
    result = until(reader, small, "done", 150)["result"]
    assert (result["n_shards"], result["layer_indices"]) == (3, [0, 1, 2, 3])
    assert reader.client.get(httpx.URL(result["manifest_url"]).raw_path.decode()).json()["shards"]

    # Longer than the test looks on: it is stopped in the middle.
    made = submitted(reader, model=LARGE, prompts=["the house of wood " * 80] * 400, layers="all")
    row = HarvestRun.objects.filter(harvest_id=made["job_id"])
    eventually(lambda: row.filter(tokens_read__gt=0).exists(), 60)
    [report] = fleet.workers(harvest_worker(LARGE))
    assert (report.running, report.idle_since, report.pid) == (1, None, worker.pid)
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert fleet.workers(harvest_worker(LARGE)) == []
    assert (row.get().stage, row.get().attempts) == (Stage.ASKED, 0)
    assert read(reader, made)["status"] == "running"
    runs.finish(taken(made, LARGE), outcome(900), folder="harvests/none", load_s=0.0)
    assert until(reader, made, "done")["tokens"] == 900
    assert row.get().attempts == 1


@pytest.mark.row("C-618")
@pytest.mark.usefixtures("database")
def test_harvest_workers_count_as_containers(harvest_catalogue: Path) -> None:
    fleet = Fleet(valkey.connection())
    report = WorkerReport(
        worker_id="counted",
        model_id=harvest_worker(OTHER_LARGE),
        stage=WorkerStage.SERVING,
        started_at=0.0,
        idle_since=None,
        host="here",
        pid=1,
    )
    fleet.report(report)
    minute = datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
    spend.sample(fleet, minute)
    fleet.retire(report)
    counted = SpendSample.objects.filter(minute=minute, kind=SpendKind.HARVEST)
    assert list(counted.values_list("model", "containers")) == [(OTHER_LARGE, 1)]
    SpendSample.objects.filter(minute=minute).delete()


def test_the_launcher_has_a_seat_for_the_harvests_of_a_model(harvest_catalogue: Path) -> None:
    entries = catalogue.current().enabled
    supervisor = SimpleNamespace(console=None)
    with_harvests = Launcher(supervisor, None, entries, lambda name: None, 1.0, 1200.0)  # type: ignore[arg-type]
    seats = {model.id: model.seat.idle_seconds for model in with_harvests._models}
    assert seats["harvest/reads"] == 1200
    assert seats["reads"] == 600
    assert "harvest/reads-nothing" not in seats
    without = Launcher(supervisor, None, entries, lambda name: None, 1.0)  # type: ignore[arg-type]
    assert not any(model.id.startswith("harvest/") for model in without._models)


@pytest.mark.row("C-514")
def test_a_harvest_worker_stays_up_twenty_minutes() -> None:
    from config.environment import Environment

    idle = Environment.model_fields["harvest_idle_seconds"].default
    seat = Seat(idle)
    seat.started()
    report = WorkerReport(
        worker_id="w",
        model_id=harvest_worker("reads"),
        stage=WorkerStage.SERVING,
        started_at=0.0,
        idle_since=5.0,
        host="here",
        pid=1,
    )
    sight = Sight(False, (report,))
    assert seat.decide(sight, 0.0).name == "NOTHING"
    assert seat.decide(sight, 20 * 60 - 1).name == "NOTHING"
    assert seat.decide(sight, 20 * 60).name == "STOP"


def test_a_command_template_names_a_queue_or_a_model() -> None:
    assert queue_of("tiny") == "engine.tiny"
    assert queue_of(harvest_worker("tiny")) == "harvest.tiny"
    assert templated("run worker {queue}", "harvest/tiny") == ("run", "worker", "harvest.tiny")
    assert templated("run worker engine.{model}", "tiny") == ("run", "worker", "engine.tiny")
