"""The runner: it says that it looks for work, releases what the dead owned, and stops as asked."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from completions.runners import REPORTS, RunnerReport, complaints, runners
from inference import valkey
from tests.live import Web, end, eventually, start_process


@pytest.fixture
def no_reports() -> Iterator[None]:
    valkey.connection().delete(REPORTS)
    yield
    valkey.connection().delete(REPORTS)


def write(name: str, silent_for: float) -> None:
    report = RunnerReport(name=name, running=0, polled_at=time.time() - silent_for)
    valkey.connection().hset(REPORTS, name, msgspec.msgpack.encode(report))


@pytest.mark.row("C-631", "C-686")
def test_health_lists_the_runner_while_it_runs(
    web: Web, database: None, no_reports: None, logs: Path
) -> None:
    runner = start_process("worker", "runner", log=logs / "listed-runner.log")
    try:
        with web.client() as client:

            def listed() -> list[dict[str, object]]:
                return client.get("/health").json()["wrapper"]["runners"]

            eventually(listed, 60)
            first = valkey.connection().hgetall(REPORTS)
            eventually(lambda: valkey.connection().hgetall(REPORTS) != first)
            [entry] = listed()
            assert set(entry) == {"name", "running", "seconds_since_poll"}
            assert str(entry["name"]).endswith(f"-{runner.pid}")
            assert "no runner runs" not in client.get("/health").json()["degraded_reasons"]
            end(runner)
            assert runner.returncode == 0
            assert listed() == []
            answer = client.get("/health")
            assert answer.status_code == 200
            assert answer.json()["status"] == "degraded"
            assert "no runner runs" in answer.json()["degraded_reasons"]
    finally:
        end(runner)


@pytest.mark.row("C-686")
def test_a_runner_that_stopped_polling_degrades_the_site(web: Web, no_reports: None) -> None:
    write("alive", 1)
    write("hung", 60)
    with web.client() as client:
        health = client.get("/health").json()
    assert health["status"] == "degraded"
    assert "the runner hung stopped polling" in health["degraded_reasons"]
    assert not [reason for reason in health["degraded_reasons"] if "alive" in reason]
    by_name = {entry["name"]: entry for entry in health["wrapper"]["runners"]}
    assert 59 <= by_name["hung"]["seconds_since_poll"] <= 70


def test_a_runner_that_is_long_gone_is_forgotten(no_reports: None) -> None:
    write("gone", 3600)
    write("alive", 0)
    reports = runners(valkey.connection())
    assert [report.name for report in reports] == ["alive"]
    assert complaints(reports, time.time()) == []
    assert valkey.connection().hlen(REPORTS) == 1


@pytest.mark.row("C-345")
def test_the_runner_releases_what_a_dead_process_owned(
    database: None, make_caller, logs: Path, no_reports: None
) -> None:
    """The process is a row whose lease has run out; nobody renews it."""
    from celery import current_app

    from billing import ledger, owners
    from billing.models import Hold, HoldState, Owner, OwnerKind, Source

    caller = make_caller()
    lease = owners.register(OwnerKind.WEB)
    hold = ledger.take_hold(
        user_id=caller.user_id,
        key_id=caller.key_id,
        tokens=500,
        request_id="dead",
        model="tiny",
        source=Source.API,
        owner=lease.token,
    )
    assert caller.left() == 99_500
    runner = start_process("worker", "runner", log=logs / "reaper.log", LEASE_SECONDS="1")
    try:
        Owner.objects.filter(token=lease.token).update(expires_at="2020-01-01T00:00:00Z")

        def released() -> bool:
            current_app.send_task("operations.reap", queue="runner")
            return Hold.objects.get(id=hold.id).state == HoldState.RELEASED

        eventually(released, 60, 1.0)
    finally:
        end(runner)
    assert caller.left() == 100_000
