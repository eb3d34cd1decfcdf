"""Background work whose process stops or dies, or whose key or User may not go on (section 18)."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from inference.engine.messages import FailureCode
from tests.jobs.conftest import Submitted, another_key, rows, submit
from tests.live import eventually

REVOKED = "The API key that made this request was revoked."


def dead_process(work) -> None:
    """Put work in hand of a process that is gone, with its Hold and all."""
    from billing import ledger, owners
    from billing.models import Owner, OwnerKind, Source

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
    Owner.objects.filter(token=lease.token).update(expires_at=timezone.now() - timedelta(days=1))
    owners.reap()


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


@pytest.mark.row("C-605")
def test_a_planned_stop_gives_running_work_time_to_end(caller, scripted, make_runner):
    import threading

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


def test_a_database_that_is_away_costs_work_nothing(caller, scripted, make_runner, monkeypatch):
    """The attempt is put back, and the next one ends the Job."""
    from django.db import OperationalError

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
