"""Which work runs next, and how much of it at once."""

import json
import random

import pytest
from django.utils import timezone

from tests.jobs.conftest import Submitted, another_key, rows, submit
from tests.live import eventually


def started(scripted, count: int) -> list:
    """The next requests that the engine gets, and no more of them."""
    asked = [scripted.next() for _ in range(count)]
    assert scripted.asked.empty()
    return asked


def owner_of(asked) -> str:
    """Whose request it is."""
    return asked.request.cache_scope


@pytest.mark.row("C-445", "C-611", "C-374")
@pytest.mark.case("J01")
def test_four_jobs_run_at_once_over_all_users_and_runners(make_caller, scripted, make_runner):
    from jobs.models import Job

    made = [rows(make_caller(), 2) for _ in range(4)]
    for _ in range(3):
        make_runner()
    seen = set()
    running = started(scripted, 4)
    for _ in range(4):
        eventually(lambda: Job.objects.filter(state="running").count() == 4)
        seen.add(running[0].request.request_id)
        running.pop(0).answer("a")
        running += started(scripted, 1)
    for asked in running:
        seen.add(asked.request.request_id)
        asked.answer("a")
    ids = [job.id for each in made for job in each]
    eventually(lambda: Job.objects.filter(id__in=ids, state="done").count() == 8)
    assert len(seen) == 8
    assert scripted.asked.empty()


@pytest.mark.row("C-446")
def test_a_user_without_a_running_job_comes_first(make_caller, scripted, make_runner, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"max_running_jobs": 2})
    first, second, third = make_caller(), make_caller(), make_caller()
    rows(first, 3, age=100)
    rows(second, 1, age=50)
    rows(third, 1, age=10)
    make_runner()
    running = {owner_of(asked): asked for asked in started(scripted, 2)}
    assert set(running) == {str(first.user_id), str(second.user_id)}
    running[str(second.user_id)].answer("a")
    [of_third] = started(scripted, 1)
    assert owner_of(of_third) == str(third.user_id)
    of_third.answer("a")
    [again] = started(scripted, 1)
    assert owner_of(again) == str(first.user_id)
    for asked in (running[str(first.user_id)], again):
        asked.answer("a")
    started(scripted, 1)[0].answer("a")


@pytest.mark.row("C-447", "C-612", "A-573")
def test_work_of_a_paused_key_waits_and_blocks_nobody(make_caller, scripted, make_runner):
    from accounts.keys import pause_key, resume_key

    caller, other = make_caller(), make_caller()
    second = another_key(caller)
    rows(caller, 5, age=100)
    [waiting, *_] = rows(caller, 1, age=200)
    rows(second, 1, age=10)
    rows(other, 1)
    pause_key(key_id=caller.key_id)
    make_runner()
    asked = started(scripted, 2)
    assert {owner_of(each) for each in asked} == {str(caller.user_id), str(other.user_id)}
    for each in asked:
        each.answer("a")
    eventually(lambda: caller.open_holds() == 0)
    assert scripted.asked.empty()
    waiting.refresh_from_db()
    assert (waiting.state, waiting.owner) == ("queued", None)
    resume_key(key_id=caller.key_id)
    for _ in range(6):
        scripted.next().answer("a")
    eventually(lambda: Submitted(caller, str(waiting.id)).status == "succeeded")
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000 - 7 * 5


@pytest.mark.row("C-375", "C-450", "C-616")
def test_a_job_waits_for_a_place_of_its_model(make_caller, scripted, make_runner, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"max_inflight_per_model": 1})
    callers = [make_caller() for _ in range(3)]
    submit(callers[0])
    make_runner()
    [running] = started(scripted, 1)
    waiting = submit(callers[1])
    elsewhere = submit(callers[2], model="tiny-other")
    elsewhere.wait("running")
    assert waiting.read()["started_at"] is None
    assert (waiting.status, callers[1].open_holds()) == ("queued", 0)
    elsewhere.cancels()
    running.answer("a")
    scripted.next().answer("b")
    waiting.wait("succeeded")


@pytest.mark.row("C-380", "C-450")
def test_a_job_of_a_model_with_an_open_breaker_fails_at_once(caller, scripted, runner):
    from completions.breaker import breakers

    for _ in range(5):
        breakers()._failed("tiny", 0)
    job = submit(caller)
    job.wait("failed")
    answer = job.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "circuit_open")
    assert scripted.asked.empty()
    assert caller.left() == 100_000


@pytest.mark.row("C-222", "C-449", "C-625")
def test_a_job_waits_longer_for_its_model_and_then_fails(caller, scripted, make_runner, settings):
    assert settings.BASALT.background_answer_timeout == 45 * 60
    settings.BASALT = settings.BASALT.model_copy(
        update={"answer_timeout": 0.01, "background_answer_timeout": 1.5}
    )
    make_runner()
    job = submit(caller, model="tiny-other")
    running = job.wait("running")
    job.wait("failed")
    answer = job.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_deadline")
    assert answer.json()["error"]["message"] == "Could not reach Inference: Request timed out."
    assert running["usage_pending"]
    assert caller.left() == 100_000


@pytest.mark.row("C-621", "C-620")
def test_the_spend_stop_holds_what_waits_and_not_what_runs(make_caller, scripted, make_runner):
    from billing import spend_stop

    first, second = make_caller(), make_caller()
    job, waiting = submit(first), None
    make_runner()
    [asked] = started(scripted, 1)
    spend_stop.lock(by=None)
    try:
        [row] = rows(second, 1)
        waiting = Submitted(second, str(row.id))
        asked.answer("a")
        job.wait("succeeded")
        assert waiting.status == "queued"
        assert scripted.asked.empty()
    finally:
        spend_stop.clear(by=None)
    scripted.next().answer("b")
    waiting.wait("succeeded")


# The queue itself


@pytest.fixture
def lease(no_work):
    from billing import owners
    from billing.models import OwnerKind

    lease = owners.register(OwnerKind.RUNNER)
    yield lease.token
    lease.release()


def oracle(waiting: list, in_hand: list, paused: set, most: int) -> list:
    """What the contract has start next, one by one (C-445 to C-447)."""
    waiting, in_hand, taken = list(waiting), list(in_hand), []
    while len(in_hand) < most:
        may = [job for job in waiting if job.key_id not in paused]
        busy = {job.user_id for job in in_hand}
        may.sort(key=lambda job: (job.user_id in busy, job.created_at, job.id))
        if not may:
            break
        waiting.remove(may[0])
        in_hand.append(may[0])
        taken.append(may[0].id)
    return taken


@pytest.mark.row("C-445", "C-446", "C-447")
@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_the_contracts_whatever_waits(make_caller, lease, seed):
    from accounts.keys import pause_key, resume_key
    from jobs import queue
    from jobs.models import Job

    chance = random.Random(seed)
    callers = [make_caller() for _ in range(4)]
    callers += [another_key(caller) for caller in callers[:2]]
    for _ in range(30):
        caller = chance.choice(callers)
        rows(caller, 1, age=chance.randrange(1000), model=chance.choice(["tiny", "tiny-other"]))
    paused = {caller.key_id for caller in chance.sample(callers, 2)}
    for key_id in paused:
        pause_key(key_id=key_id)
    while Job.objects.filter(state="queued", owner=None).exclude(key_id__in=paused).exists():
        rows_now = list(Job.objects.all())
        waiting = [job for job in rows_now if job.state == "queued" and job.owner is None]
        in_hand = [job for job in rows_now if job.owner is not None]
        expected = oracle(waiting, in_hand, paused, 4)
        taken = queue.claim(Job, owner=lease, room=4, most=4, by_turns=True)
        assert [job.id for job in taken] == expected
        held = list(Job.objects.filter(owner=lease))
        for job in chance.sample(held, chance.randint(1, len(held))):
            Job.objects.filter(id=job.id).update(
                state="cancelled", owner=None, finished_at=timezone.now()
            )
        if paused and chance.random() < 0.2:
            resume_key(key_id=paused.pop())


def test_a_full_model_is_passed_over(make_caller, lease):
    from jobs import queue
    from jobs.models import Job

    caller = make_caller()
    rows(caller, 3, age=100)
    [other] = rows(caller, 1, model="tiny-other")
    taken = queue.claim(Job, owner=lease, room=8, most=None, by_turns=False, full=["tiny"])
    assert [job.id for job in taken] == [other.id]


def test_nothing_is_taken_under_a_lease_that_was_reaped(make_caller, no_work):
    from uuid import uuid4

    from billing.ledger import OwnerLost
    from jobs import queue
    from jobs.models import Job

    [job] = rows(make_caller(), 1)
    with pytest.raises(OwnerLost):
        queue.claim(Job, owner=uuid4(), room=8, most=None, by_turns=False)
    job.refresh_from_db()
    assert job.owner is None


def test_a_claim_costs_the_same_whatever_history_and_whatever_a_paused_key_has(make_caller, lease):
    """Rows that the database has to look at are counted, not time."""
    from django.db import connection

    from accounts.keys import pause_key
    from jobs import queue
    from jobs.models import Job

    paused, caller = make_caller(), make_caller()
    [template] = rows(paused, 1, age=500)
    pause_key(key_id=paused.key_id)
    with connection.cursor() as cursor:
        columns = "user_id, key_id, model, request, request_file, result_file, created_at"
        cursor.execute(
            f"INSERT INTO jobs_job (id, state, finished_at, error, {columns}) "
            f"SELECT gen_random_uuid(), k.state, k.finished, k.error, {columns} FROM jobs_job, "
            "(SELECT 'queued' AS state, NULL::timestamptz AS finished, NULL::jsonb AS error "
            "FROM generate_series(1, 20000) UNION ALL "
            "SELECT 'failed', now(), '{}' FROM generate_series(1, 80000)) k WHERE id = %s",
            [template.id],
        )
        cursor.execute("ANALYZE jobs_job")
    [mine] = rows(caller, 1)

    def touched(template: str, **values: object) -> int:
        statement = queue._statement(template, Job, by_turns=True)
        with connection.cursor() as cursor:
            cursor.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", {"owner": lease, **values}
            )
            plan = cursor.fetchone()[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    assert touched(queue._BARRED, most=100) < 500
    assert not Job.objects.filter(owner=lease).exists()
    assert touched(queue._FIRST, full=[]) < 500
    mine.refresh_from_db()
    assert mine.owner == lease
    assert Job.objects.filter(owner=lease).count() == 1


def test_a_ring_wakes_a_runner(caller, scripted, make_runner, settings):
    """The runner itself would look in a minute. The test hears the ring of the web process."""
    from inference import valkey
    from jobs.queue import RING
    from jobs.ringing import listen
    from jobs.tasks import ring

    settings.BASALT = settings.BASALT.model_copy(update={"work_poll_seconds": 60.0})
    runner = make_runner()
    listen(runner.ring)
    try:
        job = submit(caller)
        message = json.loads(valkey.connection().lindex("runner", 0))
        assert message["headers"]["task"] == RING
        ring("job")
        scripted.next(30).answer("a")
        job.wait("succeeded")
    finally:
        listen(lambda: None)
