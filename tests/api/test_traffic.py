"""Section 13: rate limits, the line, the model's places, and the breaker."""

import time

import pytest

from completions.breaker import BreakerName, breakers
from completions.places import places
from inference.engine.messages import FailureCode
from tests.api.test_budgets import line_of
from tests.live import InBackground, eventually

BODY = {"prompt": [5], "max_tokens": 4}
PATH = "/v1/completions"


def health(web) -> dict:
    return web.client().get("/health").json()


def backend(web, model: str = "tiny") -> dict:
    return next(entry for entry in health(web)["backends"] if entry["model_id"] == model)


# Buckets


@pytest.mark.row("C-364", "C-366")
@pytest.mark.parametrize("name", ["work", "other"])
def test_a_bucket_takes_a_burst_of_600_and_refills_one_in_a_tenth_of_a_second(name):
    from uuid import uuid4

    from api.limits import Bucket, key_bucket
    from completions.failures import Failure

    key = uuid4().hex
    bucket = key_bucket(key, Bucket(name))
    began = time.monotonic()
    for _ in range(600):
        bucket.take()
    with pytest.raises(Failure) as refused:
        for _ in range(2 + int((time.monotonic() - began) * 10)):
            bucket.take()
    assert refused.value.code == "rate_limited"
    assert refused.value.retry_after == 1
    time.sleep(0.11)
    bucket.take()
    other = Bucket.OTHER if name == "work" else Bucket.WORK
    key_bucket(key, other).take()
    key_bucket(uuid4().hex, Bucket(name)).take()


@pytest.mark.row("C-085", "C-364", "C-365", "C-366", "C-367", "C-368", "C-654")
def test_each_key_has_two_buckets_that_hold_across_processes(narrow, twin, make_caller, scripted):
    from accounts.keys import create_key
    from accounts.models import User

    caller = make_caller(at=narrow)
    elsewhere = twin.client(caller.secret)
    for _ in range(15):
        assert caller.client.get("/v1/models").status_code == 200
        assert elsewhere.get("/v1/models").status_code == 200
    refused = eventually(lambda: refusal(elsewhere))
    error = refused.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "rate_limited",
        "rate_limit_error",
        None,
    )
    seconds = int(refused.headers["retry-after"])
    assert 1 <= seconds <= 2
    assert "30" in error["message"]
    assert str(seconds) in error["message"]
    # The work bucket is full, and so are the buckets of another key of the User.
    scripted.answers = ("x",)
    assert caller.client.post(PATH, json=BODY).status_code == 200
    _, other = create_key(user=User.objects.get(id=caller.user_id), name="other")
    assert narrow.client(other).get("/v1/models").status_code == 200


def refusal(client):
    answer = client.get("/v1/models")
    return answer if answer.status_code == 429 else None


@pytest.mark.row("C-365", "C-136")
def test_completions_use_the_work_bucket(narrow_caller, scripted):
    bad = {"prompt": 5}
    statuses = [narrow_caller.client.post(PATH, json=bad).status_code for _ in range(40)]
    assert statuses[:30] == [400] * 30
    assert 429 in statuses
    assert narrow_caller.client.get("/v1/models").status_code == 200


# The line


@pytest.mark.row("C-086", "C-370", "C-371", "C-372", "C-374", "C-654")
def test_a_full_line_refuses_and_other_routes_answer(narrow, twin, make_caller, scripted):
    caller = make_caller(at=narrow)
    elsewhere = twin.client(caller.secret)
    running = [
        InBackground(caller.client, BODY | {"stream": True}),
        InBackground(elsewhere, BODY),
    ]
    asked = [scripted.next(), scripted.next()]
    waiting = InBackground(caller.client, BODY)
    eventually(lambda: line_of(caller) == 1)
    refused = elsewhere.post(PATH, json=BODY)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
    assert refused.headers["retry-after"] == "5"
    assert "x-should-retry" not in refused.headers
    assert caller.client.get("/v1/models").status_code == 200
    assert caller.open_holds() == 2
    assert places().running(str(caller.key_id)) == 2
    # A place is kept to the end, and then goes to who waits.
    asked[0].answer("a")
    third = scripted.next()
    for each in (asked[1], third):
        each.answer("a")
    assert [one.done().status for one in (*running, waiting)] == [200] * 3
    eventually(lambda: places().running(str(caller.key_id)) == 0)


@pytest.mark.row("C-370", "C-371", "C-676", "C-326")
def test_sixteen_run_and_the_rest_wait_in_order_of_arrival(caller, scripted):
    running = [InBackground(caller.client, BODY) for _ in range(16)]
    asked = [scripted.next() for _ in running]
    waiting = []
    for place, priority in enumerate((9, 0, 5)):
        body = BODY | {"priority": priority, "max_tokens": 5 + place}
        waiting.append(InBackground(caller.client, body))
        eventually(lambda: line_of(caller) == len(waiting))
    assert scripted.asked.empty()
    assert caller.open_holds() == 16
    order = []
    for each in asked[:3]:
        each.answer("x")
        following = scripted.next()
        order.append(following.request.max_tokens)
        asked.append(following)
    assert order == [5, 6, 7]
    for each in asked[3:]:
        each.answer("x")
    assert [one.done().status for one in (*running, *waiting)] == [200] * 19


@pytest.mark.row("C-368")
def test_the_places_of_one_key_are_not_anothers(narrow, make_caller, scripted):
    first, second = make_caller(at=narrow), make_caller(at=narrow)
    requests = [InBackground(who.client, BODY) for who in (first, first, second, second)]
    asked = [scripted.next() for _ in requests]
    for each in asked:
        each.answer("x")
    assert [one.done().status for one in requests] == [200] * 4


# The model's places


@pytest.mark.row("C-095", "C-375", "C-348", "C-654")
def test_a_model_with_its_most_requests_in_flight_refuses(narrow, make_caller, scripted):
    callers = [make_caller(at=narrow) for _ in range(3)]
    requests = [InBackground(callers[number // 2].client, BODY) for number in range(5)]
    asked = [scripted.next() for _ in requests]
    assert backend(narrow)["in_flight"] == 5
    refused = callers[2].client.post(PATH, json=BODY)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("circuit_open", "upstream_error")
    assert (error["retryable"], error["retry_after_seconds"]) == (True, 5)
    assert refused.headers["retry-after"] == "5"
    assert callers[2].open_holds() == 1
    for each in asked:
        each.answer("x")
    assert [one.done().status for one in requests] == [200] * 5
    eventually(lambda: backend(narrow)["in_flight"] == 0)


# The breaker


def run(caller, scripted, code: FailureCode | None) -> int | None:
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    if code is None:
        asked.answer("x")
    else:
        asked.fail(code)
    return request.done().status


@pytest.mark.row("C-376", "C-377", "C-381", "C-095", "C-632", "C-633", "C-654", "C-686")
def test_failures_in_a_row_open_the_breaker_for_every_process(
    narrow, twin, make_caller, narrow_caller, scripted
):
    assert run(narrow_caller, scripted, FailureCode.SERVER_ERROR) == 502
    entry = backend(twin)
    assert (entry["breaker_state"], entry["breaker_consecutive_failures"]) == ("closed", 1)
    assert run(narrow_caller, scripted, FailureCode.OUT_OF_MEMORY) == 502
    elsewhere = make_caller(at=twin)
    refused = elsewhere.client.post(PATH, json=BODY)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("circuit_open", "upstream_error")
    assert error["retryable"] is True
    seconds = int(refused.headers["retry-after"])
    assert 1 <= seconds <= 2
    assert error["retry_after_seconds"] == seconds
    assert "x-should-retry" not in refused.headers
    assert elsewhere.left() == 100_000
    assert scripted.asked.empty()
    seen = health(narrow)
    assert seen["status"] == "degraded"
    assert seen["degraded_backends"] == ["tiny"]
    assert any("tiny" in reason for reason in seen["degraded_reasons"])
    entry = backend(narrow)
    assert entry["breaker_state"] == "open"
    assert 1 <= entry["breaker_open_seconds"] <= 2
    assert backend(narrow, "tiny-other")["breaker_state"] == "closed"


@pytest.mark.row("C-378")
def test_after_its_time_the_next_requests_try_the_model(narrow, narrow_caller, scripted):
    for _ in range(2):
        run(narrow_caller, scripted, FailureCode.SERVER_ERROR)
    eventually(lambda: backend(narrow)["breaker_state"] == "half_open")
    assert health(narrow)["degraded_backends"] == []
    assert backend(narrow)["breaker_open_seconds"] is None
    # One failure opens it again.
    assert run(narrow_caller, scripted, FailureCode.SERVER_ERROR) == 502
    assert backend(narrow)["breaker_state"] == "open"
    assert narrow_caller.client.post(PATH, json=BODY).status_code == 503
    eventually(lambda: backend(narrow)["breaker_state"] == "half_open")
    # One success closes it.
    assert run(narrow_caller, scripted, None) == 200
    entry = backend(narrow)
    assert (entry["breaker_state"], entry["breaker_consecutive_failures"]) == ("closed", 0)
    assert run(narrow_caller, scripted, FailureCode.SERVER_ERROR) == 502
    assert backend(narrow)["breaker_state"] == "closed"


@pytest.mark.row("C-379")
def test_a_success_in_between_counts_from_the_beginning(narrow, narrow_caller, scripted):
    for code in (FailureCode.SERVER_ERROR, None, FailureCode.SERVER_ERROR):
        run(narrow_caller, scripted, code)
    assert backend(narrow)["breaker_state"] == "closed"


@pytest.mark.row("C-376")
def test_what_is_no_failure_of_inference_does_not_count(narrow, narrow_caller, scripted):
    for code in (FailureCode.INVALID_REQUEST, FailureCode.CONTEXT_LENGTH):
        assert run(narrow_caller, scripted, code) == 400
    request = InBackground(narrow_caller.client, BODY)
    asked = scripted.next()
    request.leave()
    assert asked.aborted.wait(5)
    entry = backend(narrow)
    assert (entry["breaker_state"], entry["breaker_consecutive_failures"]) == ("closed", 0)


@pytest.mark.row("C-376", "C-213")
@pytest.mark.parametrize("code", [FailureCode.DEADLINE, FailureCode.ENGINE_DEAD])
def test_a_stream_that_fails_after_its_start_counts(narrow, narrow_caller, scripted, code):
    request = InBackground(narrow_caller.client, BODY | {"stream": True})
    asked = scripted.next()
    asked.say("a")
    request.line()
    asked.fail(code)
    request.done()
    assert backend(narrow)["breaker_consecutive_failures"] == 1


@pytest.mark.row("C-376", "C-378")
def test_what_began_before_the_breaker_opened_does_not_move_it(narrow, narrow_caller, scripted):
    early = InBackground(narrow_caller.client, BODY)
    asked = scripted.next()
    for _ in range(2):
        run(narrow_caller, scripted, FailureCode.SERVER_ERROR)
    eventually(lambda: backend(narrow)["breaker_state"] == "half_open")
    asked.fail(FailureCode.SERVER_ERROR)
    early.done()
    assert backend(narrow)["breaker_state"] == "half_open"


@pytest.mark.row("C-376")
def test_five_failures_open_a_breaker_for_sixty_seconds(settings):
    import asyncio
    from uuid import uuid4

    model = uuid4().hex

    async def fail(times: int) -> None:
        for _ in range(times):
            await breakers().note_failure(model, breakers().enter(model))

    asyncio.run(fail(4))
    assert breakers().state(model).name is BreakerName.CLOSED
    asyncio.run(fail(1))
    state = breakers().state(model)
    assert state.name is BreakerName.OPEN
    assert 55_000 < state.open_ms <= 60_000
    assert 55 < state.open_seconds <= 60
