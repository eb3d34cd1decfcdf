"""From pending to its end: the Hold, the run, cancels, restarts, crashes, and what is paid."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import ApiKey, User
from billing import owners, spend_stop
from billing.models import Counted, Hold, Owner, Source, UsageStatus
from completions.owner import current_owner
from harvests import runs
from harvests.models import Harvest, HarvestInput, HarvestRun, Stage
from harvests.refusals import run_failed, weights_not_confirmed
from tests.conftest import Caller
from tests.harvests.conftest import (
    LARGE,
    SMALL,
    Runners,
    outcome,
    read,
    submitted,
    taken,
    until,
)
from tests.live import eventually


def cancelled(caller: Caller, harvest: dict) -> dict:
    answer = caller.client.delete(f"/v1/harvest/{harvest['job_id']}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "cancelled"
    return answer.json()


def started(caller: Caller, **fields: object) -> tuple[dict, runs.Taken]:
    """A harvest whose run a worker has."""
    made = submitted(caller, **fields)
    run = taken(made, fields.get("model", SMALL))
    return read(caller, made), run


def hold_of(harvest: dict) -> Hold:
    return Hold.objects.filter(request_id=f"req_harvest_{UUID(harvest['job_id']).hex}").latest(
        "opened_at"
    )


def put_run_back(harvest: dict, **past: timedelta) -> None:
    """Move moments of a run into the past."""
    HarvestRun.objects.filter(harvest_id=harvest["job_id"]).update(
        **{name: F(name) - by for name, by in past.items()}
    )


@pytest.mark.row("C-482", "C-484", "C-486", "C-351", "C-483", "C-493", "C-494", "C-516")
def test_a_harvest_holds_its_tokens_while_it_runs_and_pays_what_was_read(
    reader: Caller, runner: Runners
) -> None:
    made = submitted(reader, layers=[0, 2], prompts=["Paris", "the house"])
    waits = until(reader, made, "running")
    assert waits["started_at"] is None
    assert reader.left() == 100_000 - 16
    run = taken(made)
    assert read(reader, made)["started_at"] is not None
    assert runs.finish(run, outcome(9), folder="harvests/none", load_s=2.0)
    done = until(reader, made, "done")
    assert done["tokens"] == 9
    assert reader.left() == 100_000 - 9
    assert done["completed_at"] >= done["started_at"] >= done["created_at"]
    result = done["result"]
    assert result["n_shards"] == len(result["shard_urls"]) == 1
    assert result["layer_indices"] == [0, 2]
    assert result["contents"] == "activations"
    assert (result["tokens"], result["bytes_written"]) == (9, 5000)
    assert result["timings"] == {"load_s": 2, "forward_s": 1.5, "save_s": 0.25, "upload_s": 0.125}
    hold = hold_of(made)
    assert hold.source == Source.HARVEST
    assert (hold.status, hold.counted) == (UsageStatus.COMPLETED, Counted.REPORTED)
    assert not HarvestInput.objects.filter(harvest_id=made["job_id"]).exists()


@pytest.mark.row("C-351")
def test_a_harvest_pays_at_most_its_hold(reader: Caller, runner: Runners) -> None:
    made, run = started(reader, prompts=["a"])
    runs.finish(run, outcome(50), folder="harvests/none", load_s=0.0)
    assert until(reader, made, "done")["tokens"] == made["reserved_tokens"] == 2
    assert reader.left() == 100_000 - 2


@pytest.mark.row("C-509", "C-511", "C-483", "C-473", "C-510")
def test_a_pending_harvest_is_cancelled_for_nothing(reader: Caller) -> None:
    made = submitted(reader)
    answer = cancelled(reader, made)
    assert answer["tokens"] == 0
    assert answer["started_at"] is None
    assert answer["completed_at"] is not None
    assert cancelled(reader, made) == answer
    assert not HarvestInput.objects.filter(harvest_id=made["job_id"]).exists()


@pytest.mark.row("C-511", "C-352")
def test_a_harvest_is_cancelled_for_nothing_before_its_run_starts(
    reader: Caller, runner: Runners
) -> None:
    made = submitted(reader)
    until(reader, made, "running")
    assert cancelled(reader, made)["tokens"] == 0
    assert reader.left() == 100_000
    assert runs.take(SMALL) is None


@pytest.mark.row("C-509", "C-511", "C-352", "C-483")
def test_a_running_harvest_is_cancelled_for_its_reserve(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    assert runs.goes_on(run, None)
    answer = cancelled(reader, made)
    assert answer["tokens"] == made["reserved_tokens"]
    assert reader.left() == 100_000 - made["reserved_tokens"]
    assert not runs.goes_on(run, None)
    assert read(reader, made) == answer
    hold = hold_of(made)
    assert (hold.status, hold.counted) == (UsageStatus.STOPPED, Counted.HELD)


@pytest.mark.row("C-510", "C-077")
def test_what_has_ended_cannot_be_cancelled(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
    until(reader, made, "done")
    failed, other = started(reader)
    runs.fail(other, run_failed("the disk is full."))
    until(reader, failed, "failed")
    for ended in (made, failed):
        answer = reader.client.delete(f"/v1/harvest/{ended['job_id']}")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "harvest_not_cancellable"
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.row("C-679", "C-481")
def test_an_admin_cancels_a_users_harvest(reader: Caller, runner: Runners) -> None:
    from harvests.cancelling import cancel

    made, _ = started(reader)
    cancel(harvest_id=UUID(made["job_id"]), user_id=reader.user_id)
    eventually(lambda: read(reader, made)["tokens"] == made["reserved_tokens"])
    seen = read(reader, made)
    assert seen["status"] == "cancelled"
    assert not {"error", "result"} & set(seen)


@pytest.mark.row("C-512", "C-353", "C-680", "C-481")
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (weights_not_confirmed(), "could not be confirmed as the model's pinned revision"),
        (run_failed("the disk is full."), "the disk is full"),
    ],
    ids=["weights", "other"],
)
def test_a_run_that_fails_costs_nothing(
    reader: Caller, runner: Runners, failure: Exception, words: str
) -> None:
    made, run = started(reader)
    runs.fail(run, failure)
    seen = until(reader, made, "failed")
    assert words in seen["error"]
    assert seen["tokens"] == 0
    assert not {"result", "urls_expire_at"} & set(seen)
    assert reader.left() == 100_000


@pytest.mark.row("C-513", "C-512")
@pytest.mark.parametrize(("model", "minutes"), [(SMALL, 60), (LARGE, 150)])
def test_a_run_past_its_limit_times_out(
    reader: Caller, runner: Runners, model: str, minutes: int
) -> None:
    made, run = started(reader, model=model)
    put_run_back(made, started_at=timedelta(minutes=minutes - 1))
    assert runs.goes_on(run, None)
    put_run_back(made, started_at=timedelta(minutes=2))
    seen = until(reader, made, "failed")
    assert f"timed out: its run may take {minutes} minutes" in seen["error"]
    assert seen["tokens"] == 0
    assert not runs.goes_on(run, None)


@pytest.mark.row("C-512", "C-473")
def test_a_run_that_no_worker_takes_fails(
    reader: Caller, runner: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.conf import settings

    quick = settings.BASALT.model_copy(update={"background_answer_timeout": 0.3})
    monkeypatch.setattr(settings, "BASALT", quick)
    made = submitted(reader)
    seen = until(reader, made, "failed")
    assert "did not start this harvest" in seen["error"]
    assert seen["started_at"] is None
    assert seen["tokens"] == 0


@pytest.mark.row("C-512", "C-610")
def test_a_worker_that_died_is_replaced_and_in_the_end_the_result_is_lost(
    reader: Caller, runner: Runners
) -> None:
    made, first = started(reader)
    for number in (2, 3):
        put_run_back(made, seen_at=timedelta(seconds=60))
        again = taken(made)
        assert HarvestRun.objects.get(harvest_id=made["job_id"]).attempts == number
        assert not runs.goes_on(first, None)
        assert not runs.finish(first, outcome(), folder="harvests/none", load_s=0.0)
        first = again
    put_run_back(made, seen_at=timedelta(seconds=60))
    seen = until(reader, made, "failed")
    assert "result of this harvest's run was lost" in seen["error"]
    assert seen["tokens"] == 0


@pytest.mark.row("C-512", "C-363", "C-362")
def test_tokens_that_fall_short_at_the_start_fail_the_harvest(
    another: Callable[..., Caller], nothing_live: None, ownership: object
) -> None:
    from billing.grants import set_budget

    caller = another(50)
    made = submitted(caller)
    set_budget(user_id=caller.user_id, tokens=3, by=None)
    runners = Runners()
    runners.start()
    try:
        seen = until(caller, made, "failed")
    finally:
        runners.stop()
    assert "up to 16 tokens" in seen["error"]
    assert Harvest.objects.get(id=made["job_id"]).error["code"] == "insufficient_quota"
    assert seen["tokens"] == 0


@pytest.mark.row("C-512", "C-613", "C-614")
@pytest.mark.parametrize("who", ["key", "user"])
def test_a_revoked_key_or_a_suspension_fails_what_has_not_started(
    reader: Caller, another: Callable[..., Caller], nothing_live: None, ownership: object, who: str
) -> None:
    from accounts.keys import read_key
    from harvests.reads import standing

    made = submitted(reader)
    if who == "key":
        ApiKey.objects.filter(id=reader.key_id).update(revoked_at=timezone.now())
    else:
        User.objects.filter(id=reader.user_id).update(suspended_at=timezone.now())
    assert read_key(reader.key_id) is not None
    runners = Runners()
    runners.start()
    harvest_id = UUID(made["job_id"])
    try:
        eventually(lambda: Harvest.objects.get(id=harvest_id).state == "failed")
    finally:
        runners.stop()
    row = Harvest.objects.get(id=harvest_id)
    assert row.error["code"] == "unauthenticated"
    words = "was revoked" if who == "key" else "is suspended"
    assert words in standing(harvest_id=harvest_id, user_id=reader.user_id).error
    assert row.tokens == 0


@pytest.mark.row("C-517", "C-612")
def test_a_paused_key_holds_up_what_waits_and_not_what_runs(
    reader: Caller, another: Callable[..., Caller], runner: Runners
) -> None:
    made, run = started(reader)
    waits = submitted(reader, model=LARGE)
    until(reader, waits, "running")
    cancelled(reader, waits)
    ApiKey.objects.filter(id=reader.key_id).update(paused_at=timezone.now())
    beside = another()
    assert runs.goes_on(run, None)
    runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
    eventually(lambda: Harvest.objects.get(id=made["job_id"]).state == "done")
    # While the key is paused nothing of it starts, and what is behind it does.
    Harvest.objects.filter(id=waits["job_id"]).delete()
    ApiKey.objects.filter(id=reader.key_id).update(paused_at=None)
    runner.stop()
    held = submitted(reader)
    ApiKey.objects.filter(id=reader.key_id).update(paused_at=timezone.now())
    behind = submitted(beside)
    runner.start()
    run = taken(behind)
    runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
    until(beside, behind, "done")
    assert Harvest.objects.get(id=held["job_id"]).state == "queued"
    ApiKey.objects.filter(id=reader.key_id).update(paused_at=None)
    taken(held)


@pytest.mark.row("C-620", "C-621")
def test_the_spend_stop_holds_up_what_waits(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    second = submitted(reader)
    spend_stop.lock(by=None)
    try:
        runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
        until(reader, made, "done")
        assert runs.take(SMALL) is None
        assert read(reader, second)["status"] == "pending"
    finally:
        spend_stop.clear(by=None)
    taken(second)


@pytest.mark.row("C-514")
def test_harvests_of_a_model_start_one_after_the_other_the_oldest_first(
    reader: Caller, another: Callable[..., Caller], runner: Runners
) -> None:
    runner.stop()
    callers = [reader, another(), another()]
    made = [submitted(caller) for caller in callers]
    other = submitted(reader, model=LARGE)
    runner.start()
    taken(other, LARGE)
    for caller, harvest in zip(callers, made, strict=True):
        run = taken(harvest)
        assert runs.take(SMALL) is None
        runs.finish(run, outcome(), folder="harvests/none", load_s=0.0)
        until(caller, harvest, "done")


@pytest.mark.row("C-515", "C-605", "C-675", "C-610")
def test_a_restart_puts_it_back_to_pending_and_follows_the_same_run(
    reader: Caller, runner: Runners
) -> None:
    made, run = started(reader)
    runner.stop()
    seen = read(reader, made)
    assert seen["status"] == "pending"
    assert seen["started_at"] == made["started_at"]
    assert seen["run_id"] == made["run_id"]
    assert reader.left() == 100_000
    assert runs.goes_on(run, None), "the run goes on"
    assert runs.take(SMALL) is None, "no second one is started"
    runner.start()
    until(reader, made, "running")
    assert reader.left() == 100_000 - made["reserved_tokens"]
    assert runs.take(SMALL) is None
    runs.finish(run, outcome(8), folder="harvests/none", load_s=0.0)
    assert until(reader, made, "done")["tokens"] == 8
    assert reader.left() == 100_000 - 8
    paid = Hold.objects.filter(user_id=reader.user_id, paid__gt=0)
    assert paid.count() == 1


@pytest.mark.row("C-515", "C-610")
def test_a_run_that_ended_meanwhile_is_charged_once(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    runner.stop()
    runs.finish(run, outcome(8), folder="harvests/none", load_s=0.0)
    assert read(reader, made)["status"] == "pending"
    runner.start()
    assert until(reader, made, "done")["tokens"] == 8
    assert reader.left() == 100_000 - 8


@pytest.mark.row("C-675")
def test_a_run_does_not_start_while_its_harvest_holds_nothing(
    reader: Caller, runner: Runners
) -> None:
    made = submitted(reader)
    until(reader, made, "running")
    runner.stop()
    assert read(reader, made)["status"] == "pending"
    assert runs.take(SMALL) is None
    runner.start()
    taken(made)


@pytest.mark.row("C-511")
def test_a_cancel_while_it_is_pending_again_costs_nothing_and_stops_the_run(
    reader: Caller, runner: Runners
) -> None:
    made, run = started(reader)
    runner.stop()
    assert cancelled(reader, made)["tokens"] == 0
    assert not runs.goes_on(run, None)
    runner.start()
    assert reader.left() == 100_000


def reap_the_runner() -> None:
    """End the lease of this process, as the reaper does with that of one that died."""
    with transaction.atomic():
        owners._end(Owner.objects.get(token=current_owner()))


@pytest.mark.row("C-608", "C-610", "C-611", "C-515")
def test_a_crash_of_the_runner_leaves_the_run_alive(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    reap_the_runner()
    assert reader.left() == 100_000
    assert runs.goes_on(run, None)
    eventually(lambda: reader.left() == 100_000 - made["reserved_tokens"])
    assert runs.take(SMALL) is None
    runs.finish(run, outcome(8), folder="harvests/none", load_s=0.0)
    assert until(reader, made, "done")["tokens"] == 8
    eventually(lambda: reader.left() == 100_000 - 8)
    assert Hold.objects.filter(user_id=reader.user_id, paid__gt=0).count() == 1


@pytest.mark.row("C-511")
def test_a_cancel_after_the_runner_died_costs_nothing(reader: Caller, runner: Runners) -> None:
    made, run = started(reader)
    runner.stop()
    # As a crash leaves it: running, in the hands of a lease that is gone, its Hold released.
    Harvest.objects.filter(id=made["job_id"]).update(state="running", owner=UUID(int=5))
    answer = reader.client.delete(f"/v1/harvest/{made['job_id']}").json()
    assert answer["status"] == "cancelled"
    assert answer["tokens"] is None, "what it pays is not known yet"
    assert not runs.goes_on(run, None)
    runner.start()
    eventually(lambda: read(reader, made)["tokens"] == 0)
    assert reader.left() == 100_000


@pytest.mark.row("C-350", "C-352")
def test_a_cancel_beside_the_end_of_the_run_pays_once(reader: Caller, runner: Runners) -> None:
    for _ in range(3):
        before = reader.left()
        made, run = started(reader)
        runs.finish(run, outcome(3), folder="harvests/none", load_s=0.0)
        answer = reader.client.delete(f"/v1/harvest/{made['job_id']}")
        seen = eventually(lambda made=made: _settled(reader, made))
        if answer.status_code == 200:
            assert seen["status"] == "cancelled"
            assert seen["tokens"] == made["reserved_tokens"]
        else:
            assert (answer.status_code, seen["status"], seen["tokens"]) == (409, "done", 3)
        assert reader.left() == before - seen["tokens"]


def _settled(caller: Caller, harvest: dict) -> dict | None:
    seen = read(caller, harvest)
    return seen if seen["tokens"] is not None else None


def test_progress_is_visible(reader: Caller, runner: Runners) -> None:
    from inference.harvest.outcome import Progress

    made, run = started(reader)
    assert runs.goes_on(run, Progress(40, 100, 2, 5))
    seen = reader.client.get(f"/v1/lab/harvest/{made['job_id']}/progress").json()
    assert (seen["tokens_read"], seen["tokens_total"], seen["shards_written"]) == (40, 100, 2)
    assert (seen["stage"], seen["attempts"]) == ("started", 1)
    pending = submitted(reader, model=LARGE)
    assert reader.client.get(f"/v1/lab/harvest/{pending['job_id']}/progress").status_code == 200


def test_a_worker_that_stops_as_planned_gives_the_run_to_another(
    reader: Caller, runner: Runners
) -> None:
    made, run = started(reader)
    assert runs.give_back(run)
    assert not runs.give_back(run)
    again = taken(made)
    assert HarvestRun.objects.get(harvest_id=made["job_id"]).attempts == 1
    assert read(reader, made)["started_at"] == made["started_at"]
    runs.finish(again, outcome(), folder="harvests/none", load_s=0.0)
    until(reader, made, "done")


def test_stages_of_a_run_are_kept_by_the_database(reader: Caller) -> None:
    from django.db import IntegrityError

    made = submitted(reader)
    with pytest.raises(IntegrityError):
        HarvestRun.objects.create(harvest_id=made["job_id"], model=SMALL, stage=Stage.STARTED)
