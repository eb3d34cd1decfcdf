"""Background work whose process stops or dies, or whose key or User may not go on (section 18)."""

import threading
import time
from itertools import pairwise
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone
from structlog.testing import CapturingLogger

from inference.engine.messages import FailureCode
from tests.billing.leases import lose
from tests.jobs.conftest import Submitted, another_key, rows, submit
from tests.live import eventually

REVOKED = "The API key that made this request was revoked."


def dead_process(work) -> None:
    """Put work in hand of a process that is gone, with its Hold and all."""
    from billing import ledger, owners
    from billing.models import OwnerKind, Source

    lease = owners.register(OwnerKind.RUNNER)
    if work.state == "running":
        ledger.take_hold(
            user_id=work.user_id,
            key_id=work.key_id,
            tokens=7,
            request_id=work.request_id,
            model=work.model,
            source=Source.JOB,
            owner=lease.token,
        )
    type(work).objects.filter(id=work.id).update(owner=lease.token, attempt=uuid4())
    lose(lease.token)


@pytest.mark.row("C-423", "C-346", "C-605", "C-606", "C-604")
def test_a_planned_stop_puts_work_back_and_another_runner_ends_it(caller, scripted, make_runner):
    job = submit(caller)
    first = make_runner()
    asked = scripted.next()
    asked.say("half")
    before = job.wait("running")
    first.stop(0)
    assert asked.aborted.wait(10)
    back = job.read()
    assert (back["status"], back["usage_pending"]) == ("queued", False)
    assert back["started_at"] == before["started_at"]
    assert (caller.left(), caller.open_holds()) == (100_000, 0)
    assert job.row().losses == 0
    make_runner()
    scripted.next().answer("a", "b")
    done = job.wait("succeeded")
    assert done["started_at"] == before["started_at"]
    assert job.result().json()["choices"][0]["text"] == "ab"
    assert caller.left() == 100_000 - 6


@pytest.mark.row("C-605", "C-606")
def test_a_planned_stop_gives_running_work_time_to_end(caller, scripted, make_runner):
    job = submit(caller)
    runner = make_runner()
    asked = scripted.next()
    stopping = threading.Thread(target=runner.stop, args=(60,))
    stopping.start()
    eventually(lambda: runner.runner._stopping)
    waiting = submit(caller)
    asked.answer("a")
    stopping.join(30)
    assert not stopping.is_alive()
    assert job.status == "succeeded"
    assert waiting.status == "queued"
    assert caller.left() == 100_000 - 5
    # What was answered is not run again.
    make_runner()
    scripted.next().answer("b")
    waiting.wait("succeeded")
    assert scripted.asked.empty()
    assert job.result().json()["choices"][0]["text"] == "a"
    assert caller.left() == 100_000 - 10


@pytest.mark.row("C-608", "C-611")
@pytest.mark.case("J02")
@pytest.mark.parametrize("state", ["running", "queued"])
def test_work_of_a_dead_process_runs_again(caller, scripted, make_runner, state):
    [row] = rows(caller, 1, "queued")
    if state == "running":
        type(row).objects.filter(id=row.id).update(
            state="running", started_at=timezone.now(), owner=uuid4(), attempt=uuid4()
        )
        row.refresh_from_db()
    dead_process(row)
    assert caller.left() == 100_000
    make_runner()
    scripted.next().answer("a")
    job = Submitted(caller, str(row.id))
    job.wait("succeeded")
    assert caller.left() == 100_000 - 5
    assert job.row().losses == 1
    assert scripted.asked.empty()


@pytest.mark.row("C-611", "C-606", "C-350")
@pytest.mark.case("J01")
def test_a_process_that_comes_back_late_writes_and_pays_nothing(caller, scripted, make_runner):
    """Its row is another attempt's by then."""
    job = submit(caller)
    make_runner()
    late = scripted.next()
    job.wait("running")
    row = job.row()
    type(row).objects.filter(id=row.id).update(attempt=uuid4())
    assert late.aborted.wait(10)
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000
    row.refresh_from_db()
    assert (row.state, row.result) == ("running", None)


@pytest.mark.row("C-606", "C-611", "C-350")
def test_an_answer_that_comes_too_late_is_not_kept(caller, no_work):
    from completions.generation import RecordLost
    from jobs.job_kind import JobRecord

    [row] = rows(caller, 1, "running", owner=uuid4(), attempt=uuid4())
    record = JobRecord(row)
    type(row).objects.filter(id=row.id).update(attempt=uuid4())
    record.done()
    with pytest.raises(RecordLost):
        record.paid()
    row.refresh_from_db()
    assert row.state == "running"


@pytest.mark.row("C-342", "C-346")
@pytest.mark.case("J02")
def test_work_whose_engine_dies_runs_again_and_not_for_ever(
    caller, scripted, make_runner, settings
):
    settings.BASALT = settings.BASALT.model_copy(update={"max_losses": 2, "breaker_failures": 100})
    job = submit(caller)
    make_runner()
    for _ in range(3):
        asked = scripted.next()
        asked.say("half")
        asked.fail(FailureCode.ENGINE_DEAD, "it died")
    job.wait("failed")
    answer = job.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "vllm_engine_dead")
    assert caller.left() == 100_000
    assert scripted.asked.empty()
    lucky = submit(caller)
    scripted.next().fail(FailureCode.ENGINE_DEAD)
    scripted.next().answer("a")
    lucky.wait("succeeded")
    assert caller.left() == 100_000 - 5


@pytest.mark.row("C-612", "A-573")
def test_a_running_job_of_a_paused_key_finishes(caller, scripted, runner):
    from accounts.keys import pause_key

    job = submit(caller)
    asked = scripted.next()
    pause_key(key_id=caller.key_id)
    asked.answer("a")
    second = another_key(caller)
    Submitted(second, job.id).wait("succeeded")
    assert caller.left() == 100_000 - 5


@pytest.mark.row("C-613", "A-164")
def test_waiting_work_of_a_revoked_key_fails(caller, scripted, no_work, make_runner):
    from accounts.keys import pause_key, revoke_key

    rows(caller, 1)
    [row] = rows(caller, 1)
    pause_key(key_id=caller.key_id)
    revoke_key(key_id=caller.key_id)
    make_runner()
    job = Submitted(another_key(caller), str(row.id))
    job.wait("failed")
    answer = job.result()
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == ("invalid_api_key", REVOKED)
    assert scripted.asked.empty()
    assert caller.left() == 100_000


@pytest.mark.row("C-614", "A-085")
def test_waiting_work_of_a_suspended_user_fails_for_good(caller, scripted, no_work, make_runner):
    from accounts.models import User

    [row] = rows(caller, 1)
    User.objects.filter(id=caller.user_id).update(suspended_at=timezone.now())
    make_runner()
    eventually(lambda: type(row).objects.get(id=row.id).state == "failed")
    User.objects.filter(id=caller.user_id).update(suspended_at=None)
    job = Submitted(caller, str(row.id))
    answer = job.result()
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "suspended" in answer.json()["error"]["message"]
    other = submit(caller)
    scripted.next().answer("a")
    other.wait("succeeded")
    assert job.status == "failed"
    assert scripted.asked.empty()


@pytest.mark.row("C-613", "C-614")
def test_work_that_may_not_start_any_more_ends_however_much_of_it_waits(
    make_caller, scripted, no_work, make_runner, settings, monkeypatch
):
    """It takes no place, and what waits behind it is not held up."""
    from accounts.keys import revoke_key
    from jobs import runner as running
    from jobs.models import Job

    monkeypatch.setattr(running, "BARRED_AT_ONCE", 7)
    settings.BASALT = settings.BASALT.model_copy(update={"max_running_jobs": 1})
    barred, other = make_caller(), make_caller()
    rows(other, 2, age=100)
    rows(barred, 30, age=50)
    make_runner()
    held = scripted.next()
    revoke_key(key_id=barred.key_id)
    own = Job.objects.filter(user_id=barred.user_id)
    eventually(lambda: own.filter(state="failed").count() == 30)
    assert {each["code"] for each in own.values_list("error", flat=True)} == {"invalid_api_key"}
    assert not own.filter(owner__isnull=False).exists()
    held.answer("a")
    scripted.next().answer("a")
    eventually(lambda: Job.objects.filter(user_id=other.user_id, state="done").count() == 2)
    assert (barred.left(), barred.open_holds()) == (100_000, 0)


class Away:
    """A database that fails the runner's looks for Jobs while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, float]) -> None:
        from jobs import outages, queue

        self.is_away = threading.Event()
        self.looks: list[float] = []
        self._told = CapturingLogger()
        self._lost = queue.lost
        monkeypatch.setattr(outages, "log", self._told)
        monkeypatch.setattr(outages, "FIRST_PAUSE", pauses[0])
        monkeypatch.setattr(outages, "LONGEST_PAUSE", pauses[1])
        monkeypatch.setattr(queue, "lost", self._look)

    def _look(self, model):
        from jobs.models import Job

        if model is Job:
            self.looks.append(time.monotonic())
            if self.is_away.is_set():
                raise OperationalError("the server closed the connection")
        return self._lost(model)

    @property
    def told(self) -> list[str]:
        """The levels of what was logged of Jobs."""
        return [call.method_name for call in self._told.calls if call.kwargs["kind"] == "job"]


def test_a_database_that_is_away_is_told_of_once_and_asked_less_and_less(
    caller, scripted, no_work, make_runner, monkeypatch
):
    away = Away(monkeypatch, (0.1, 0.4))
    away.is_away.set()
    make_runner()
    eventually(lambda: len(away.looks) >= 5)
    pauses = [later - sooner for sooner, later in pairwise(away.looks)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=False))
    assert away.told == ["warning"]
    away.is_away.clear()
    eventually(lambda: away.told == ["warning", "info"])
    job = submit(caller)
    scripted.next().answer("a")
    job.wait("succeeded")
    assert away.told == ["warning", "info"]


def test_who_rings_has_reached_the_database_so_the_runner_tries_again(
    no_work, make_runner, monkeypatch
):
    away = Away(monkeypatch, (600, 600))
    away.is_away.set()
    runner = make_runner()
    eventually(lambda: away.told == ["warning"])
    away.is_away.clear()
    runner.ring()
    eventually(lambda: away.told == ["warning", "info"])


def test_a_database_that_is_away_costs_work_nothing(caller, scripted, make_runner, monkeypatch):
    """The attempt is put back, and the next one ends the Job."""
    from jobs import job_kind

    tries = iter([OperationalError("the server closed the connection")])
    keep = job_kind.keep

    def keep_later(name, body):
        for error in tries:
            raise error
        return keep(name, body)

    monkeypatch.setattr(job_kind, "keep", keep_later)
    job = submit(caller)
    make_runner()
    scripted.next().answer("a")
    scripted.next().answer("b")
    job.wait("succeeded")
    assert job.result().json()["choices"][0]["text"] == "b"
    assert caller.left() == 100_000 - 5
