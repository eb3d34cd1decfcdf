"""Sections 11 and 12: what a Completion holds, pays, and is refused for."""

import asyncio
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.db import connection, transaction

from billing.grants import grant_to_key, set_allowance, set_budget
from billing.models import Account, Hold
from inference.engine.messages import FailureCode, PackedLogprobs
from tests.live import InBackground, events, eventually, web_process

IDS = [5, 6, 7, 8]
BODY = {"prompt": IDS, "max_tokens": 10}
HELD = 14


def last_hold(caller) -> Hold:
    return Hold.objects.filter(user_id=caller.user_id).latest("opened_at")


def ask_more() -> str:
    return f"Ask for more tokens at {settings.BASALT.app_address}/usage/request."


def stream(body: dict) -> dict:
    return body | {"stream": True}


# Sizes


@pytest.mark.case("B02")
def test_a_left_out_or_huge_max_tokens_locks_nobody_out(make_caller, scripted):
    """A left-out one is the room of the context, not all that is left of the tokens."""
    caller = make_caller(tokens=2 * 512)
    requests = [InBackground(caller.client, {"prompt": [5]}) for _ in range(2)]
    asked = [scripted.next() for _ in requests]
    assert [each.request.max_tokens for each in asked] == [511, 511]
    huge = caller.client.post("/v1/completions", json={"prompt": [5], "max_tokens": 999_999_999})
    assert (huge.status_code, huge.json()["error"]["param"]) == (400, "max_tokens")
    for each in asked:
        each.answer("a")
    assert [request.done().status for request in requests] == [200, 200]
    assert caller.left() == 2 * 512 - 2 * 2


@pytest.mark.row("C-190", "C-327", "C-328", "C-332", "C-235", "C-241")
@pytest.mark.parametrize(
    ("fields", "prompt_tokens", "held"),
    [
        ({"prompt": IDS, "max_tokens": 2}, 4, 6),
        ({"prompt": [IDS, [5]], "max_tokens": 2, "n": 3}, 5, 5 + 12),
        ({"prompt": "The", "max_tokens": 2, "add_special_tokens": False}, 1, 3),
        ({"prompt": "The", "max_tokens": 2}, 2, 4),
        ({"prompt": ["The", "The"], "max_tokens": 2}, 4, 8),
    ],
)
def test_the_hold_counts_tokens_as_the_model_does(caller, scripted, fields, prompt_tokens, held):
    request = InBackground(caller.client, fields)
    asked = scripted.next()
    assert sum(map(len, asked.request.prompts)) == prompt_tokens
    assert last_hold(caller).tokens == held
    assert caller.left() == 100_000 - held
    asked.answer("x", "y")
    assert request.json()["usage"]["prompt_tokens"] == prompt_tokens


@pytest.mark.row("C-183", "C-185", "C-190", "C-191")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [5] * 21, "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a" * 20, "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": [5] * 101, "prompt_logprobs": 5}, "prompt_logprobs"),
        ({"prompt": [5] * 101, "logprobs": 5, "echo": True}, "logprobs"),
    ],
)
def test_caps_of_the_prompt_hold_before_anything_is_held(narrow_caller, scripted, fields, param):
    body = {"max_tokens": 1} | fields
    answer = narrow_caller.client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        "invalid_request",
        param,
    )
    assert not Hold.objects.filter(user_id=narrow_caller.user_id).exists()
    assert scripted.asked.empty()


@pytest.mark.row("C-181", "C-176")
def test_the_product_is_checked_before_the_deadline(caller, scripted):
    body = {"prompt": IDS, "n": 2, "max_tokens": 16001}
    error = caller.client.post("/v1/completions", json=body).json()["error"]
    assert error["code"] == "invalid_request"
    answer = caller.client.post("/v1/completions", json=body | {"n": 1})
    assert answer.json()["error"]["code"] == "deadline_infeasible"
    assert answer.headers["x-should-retry"] == "false"
    assert not Hold.objects.filter(user_id=caller.user_id).exists()


@pytest.mark.row("C-312")
def test_a_request_past_the_context_costs_nothing(caller, scripted):
    answer = caller.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 509})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "maximum context length is 512 tokens" in error["message"]
    assert caller.left() == 100_000


# The clamp


@pytest.mark.row("C-306", "C-307", "C-309", "C-302", "C-303", "C-315")
@pytest.mark.parametrize("streams", [False, True])
def test_max_tokens_is_lowered_to_what_the_tokens_hold(make_caller, scripted, streams):
    caller = make_caller(tokens=25)
    body = {"prompt": IDS, "max_tokens": 200, "stream": streams}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    assert asked.request.max_tokens == 21
    assert caller.left() == 0
    asked.answer(*["x"] * 21)
    request.done()
    assert request.headers["x-acs-max-tokens-clamped"] == (
        "requested=200,applied=21,reason=budget,source=client"
    )
    assert caller.left() == 0


@pytest.mark.row("C-306")
def test_the_room_is_shared_by_all_choices(make_caller, scripted):
    caller = make_caller(tokens=30)
    body = {"prompt": [[5, 6], [7]], "n": 2, "max_tokens": 50}
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json=body)
    # (30 - 3) // 4
    assert answer.headers["x-acs-max-tokens-clamped"] == (
        "requested=50,applied=6,reason=budget,source=client"
    )


@pytest.mark.row("C-295", "C-303", "C-306")
def test_a_default_that_was_lowered_says_so(make_caller, scripted):
    caller = make_caller(tokens=25)
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS})
    assert answer.headers["x-acs-max-tokens-clamped"] == (
        "requested=508,applied=21,reason=budget,source=default"
    )


@pytest.mark.row("C-300", "C-304", "C-303", "C-122")
def test_the_deadline_lowers_a_default_and_a_budget_lowers_it_again(narrow, make_caller, scripted):
    caller = make_caller(tokens=1000, at=narrow)
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS})
    assert answer.headers["x-acs-max-tokens-clamped"] == (
        "requested=508,applied=200,reason=deadline"
    )
    poor = make_caller(tokens=100, at=narrow)
    answer = poor.client.post("/v1/completions", json={"prompt": IDS})
    assert answer.headers["x-acs-max-tokens-clamped"] == (
        "requested=508,applied=96,reason=deadline+budget,source=default"
    )
    # With a stream the deadline does not apply.
    answer = caller.client.post("/v1/completions", json=stream({"prompt": IDS}))
    assert "x-acs-max-tokens-clamped" not in answer.headers


@pytest.mark.row("C-305")
def test_what_was_not_lowered_has_no_header(caller, scripted):
    scripted.answers = ("x",)
    for body in (BODY, stream(BODY), {"prompt": IDS}):
        answer = caller.client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert "x-acs-max-tokens-clamped" not in answer.headers


@pytest.mark.row("C-306", "C-318")
@pytest.mark.parametrize(
    ("allowance", "budget", "key", "applied"),
    [(20, 50, None, 46), (50, 20, None, 46), (50, 50, 12, 8), (20, 0, None, 16)],
)
def test_the_clamp_measures_the_larger_purse_within_the_keys_own(
    make_caller, scripted, allowance, budget, key, applied
):
    caller = make_caller(tokens=budget, allowance=allowance)
    if key is not None:
        grant_to_key(key_id=caller.key_id, tokens=key, by=None)
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 100})
    assert answer.headers["x-acs-max-tokens-clamped"] == (
        f"requested=100,applied={applied},reason=budget,source=client"
    )


@pytest.mark.row("C-310", "C-360")
def test_a_lowered_request_that_loses_its_room_is_told_the_lowered_hold(
    database, make_caller, monkeypatch, settings
):
    from accounts.keys import read_key
    from billing.models import OwnerKind
    from completions import admission
    from completions.failures import Failure
    from completions.owner import own_as
    from completions.request import CompletionRequest
    from inference import catalogue

    caller = make_caller(tokens=25)

    def lose_the_race(**whose):
        left = tokens_left(**whose)
        set_budget(user_id=caller.user_id, tokens=10, by=None)
        return left

    tokens_left = admission.tokens_left
    monkeypatch.setattr(admission, "tokens_left", lose_the_race)
    request = CompletionRequest(prompts=(tuple(IDS),), max_tokens=200)
    model = catalogue.current().default
    ownership = own_as(OwnerKind.WEB)
    try:
        with pytest.raises(Failure) as refused:
            asyncio.run(lowered_hold(request, model, read_key(caller.key_id)))
    finally:
        ownership.close()
    assert refused.value.code == "budget_exceeded"
    assert "can use up to 25 tokens" in refused.value.message
    assert caller.open_holds() == 0


async def lowered_hold(request, model, key):
    from completions import admission, caps, counting

    counted = await counting.count(request, model)
    output = caps.settle_output(request, model, counted.counts)
    return await admission.take_hold(
        counted, output, payer=key, request_id="req_1", policy=admission.LIVE, record=None
    )


# Refusals


@pytest.mark.row("C-084", "C-308", "C-356", "C-357", "C-360", "C-654")
@pytest.mark.case("B06")
def test_without_room_for_one_token_a_request_is_refused(make_caller, scripted):
    caller = make_caller(tokens=4)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 9})
    assert answer.status_code == 429
    assert answer.json()["error"] == {
        "message": "This request can use up to 13 tokens, more than your token budget has left. "
        + ask_more(),
        "type": "invalid_request_error",
        "param": None,
        "code": "budget_exceeded",
    }
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert scripted.asked.empty()
    assert caller.left() == 4


@pytest.mark.row("C-356")
def test_one_token_for_each_choice_is_enough(make_caller, scripted):
    scripted.answers = ("x",)
    body = {"prompt": IDS, "n": 3, "max_tokens": 9}
    assert make_caller(tokens=6).client.post("/v1/completions", json=body).status_code == 429
    assert make_caller(tokens=7).client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.row("C-358")
def test_a_short_key_budget_is_named_without_an_address(make_caller, scripted):
    caller = make_caller()
    grant_to_key(key_id=caller.key_id, tokens=3, by=None)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 9})
    assert answer.status_code == 429
    assert answer.json()["error"]["message"] == (
        "This request can use up to 13 tokens, more than this API key's token budget has left."
    )


@pytest.mark.row("C-359")
def test_a_short_allowance_says_when_it_refills(make_caller, scripted):
    caller = make_caller(tokens=0, allowance=3)
    answer = caller.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 9})
    now = datetime.now(UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    day = f"1 {datetime(year, month, 1):%B %Y}"
    message = answer.json()["error"]["message"]
    assert message.startswith(
        "This request can use up to 13 tokens, more than your monthly allowance has left this "
        "month and more than your token budget has left. "
    )
    assert day in message
    assert message.endswith(ask_more())


@pytest.mark.row("C-319", "C-317")
def test_the_allowance_is_spent_first(make_caller, scripted):
    caller = make_caller(tokens=1000, allowance=1000)
    scripted.answers = ("x",)
    assert caller.client.post("/v1/completions", json=BODY).status_code == 200
    assert caller.left() == 1000
    set_allowance(user_id=caller.user_id, tokens=10)
    assert caller.client.post("/v1/completions", json=BODY).status_code == 200
    assert caller.left() == 1000 - 5


@pytest.mark.row("C-325", "C-356")
@pytest.mark.case("B01")
@pytest.mark.parametrize(("n", "admitted"), [(1, 4), (4, 1)])
def test_parallel_requests_never_hold_more_than_is_left(make_caller, scripted, n, admitted):
    tokens = 100 if n == 1 else 85
    caller = make_caller(tokens=tokens)
    body = {"prompt": [5] * 5, "max_tokens": 20, "n": n}
    requests = [InBackground(caller.client, body) for _ in range(20)]
    eventually(lambda: sum(r.status == 429 for r in requests) >= 4)
    asked = [scripted.next() for _ in range(admitted)]
    assert sum(h.tokens for h in Hold.objects.open().filter(user_id=caller.user_id)) == tokens
    assert all(each.request.max_tokens == 20 for each in asked)
    eventually(lambda: sum(r.status == 429 for r in requests) == 20 - admitted)
    for each in asked:
        each.answer(*["x"] * 20)
    statuses = sorted(request.done().status for request in requests)
    assert statuses == [200] * admitted + [429] * (20 - admitted)
    assert caller.left() == 0


# Endings


@pytest.mark.row("C-336", "C-355", "C-674")
@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_in_full_pays_what_inference_reports(caller, scripted, streams):
    request = InBackground(caller.client, BODY | {"stream": streams})
    asked = scripted.next()
    asked.say("a")
    asked.say("b", finish="stop")
    asked.finish()
    assert request.done().status == 200
    hold = last_hold(caller)
    assert (hold.paid, hold.prompt_tokens, hold.completion_tokens) == (6, 4, 2)
    assert (hold.status, hold.counted) == ("completed", "reported")
    assert caller.left() == 100_000 - 6


@pytest.mark.row("C-349")
def test_usage_above_the_hold_is_taken_from_what_is_left(make_caller, scripted):
    caller = make_caller(tokens=20)
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    asked.say("a", finish="stop")
    asked.finish(completion_tokens=50)
    assert request.done().status == 200
    assert caller.left() == 0
    assert last_hold(caller).paid == 20


FAILURES = [
    FailureCode.INVALID_REQUEST,
    FailureCode.CONTEXT_LENGTH,
    FailureCode.OUT_OF_MEMORY,
    FailureCode.ENGINE_DEAD,
    FailureCode.DEADLINE,
    FailureCode.SERVER_ERROR,
]


@pytest.mark.row("C-342", "C-338", "C-355")
@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("streams", [False, True])
def test_a_failure_before_a_token_costs_nothing(caller, scripted, code, streams):
    request = InBackground(caller.client, BODY | {"stream": streams})
    scripted.next().fail(code)
    assert request.done().status in (400, 502, 504)
    hold = last_hold(caller)
    assert (hold.state, hold.paid) == ("released", None)
    assert caller.left() == 100_000


@pytest.mark.row("C-337", "C-355", "C-112")
@pytest.mark.case("S03")
def test_a_stream_that_fails_after_tokens_pays_those_sent(caller, scripted):
    request = InBackground(caller.client, stream(BODY))
    asked = scripted.next()
    for word in ("a", "b", "c"):
        asked.say(word)
        request.line()
    asked.fail(FailureCode.SERVER_ERROR)
    assert request.done().status == 200
    hold = last_hold(caller)
    assert (hold.paid, hold.completion_tokens) == (7, 3)
    assert (hold.status, hold.counted) == ("failed", "partial")


@pytest.mark.row("C-342")
def test_an_unstreamed_answer_that_fails_after_tokens_costs_nothing(caller, scripted):
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    asked.say("a")
    asked.fail(FailureCode.SERVER_ERROR)
    assert request.done().status == 502
    assert caller.left() == 100_000


@pytest.mark.row("C-342", "C-343", "C-108", "C-221")
@pytest.mark.parametrize(("words", "paid"), [((), 0), (("a", "b"), 6)])
def test_a_stream_that_times_out_pays_the_tokens_sent(narrow_caller, scripted, words, paid):
    request = InBackground(narrow_caller.client, stream(BODY))
    asked = scripted.next()
    for word in words:
        asked.say(word)
    assert asked.aborted.wait(10)
    request.done()
    if words:
        *_, error, done = events(request.text)
        assert done == "[DONE]"
        assert error["error"]["code"] == "upstream_deadline"
    else:
        assert request.status == 504
    eventually(lambda: narrow_caller.open_holds() == 0)
    assert narrow_caller.left() == 100_000 - paid


@pytest.mark.row("C-106", "C-201", "C-347", "C-657")
@pytest.mark.parametrize("words", [(), ("a",)])
def test_an_unstreamed_answer_that_does_not_fit_costs_nothing(caller, scripted, words):
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    for word in words:
        asked.say(word)
    asked.finish()
    answer = request.json()
    assert request.status == 502
    assert answer["error"]["code"] == "upstream_server_error"
    assert answer["error"]["message"].startswith("Inference's answer does not fit the request")
    assert answer["error"]["retryable"] is False
    assert request.headers["x-should-retry"] == "false"
    assert caller.left() == 100_000


@pytest.mark.row("C-347", "C-201")
def test_a_choice_that_nobody_asked_for_does_not_fit(caller, scripted):
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    asked.say("a", index=1, finish="length")
    assert request.json()["error"]["code"] == "upstream_server_error"
    assert asked.aborted.wait(5)
    assert caller.left() == 100_000


@pytest.mark.row("C-347")
def test_a_stream_that_does_not_fit_pays_the_tokens_before_the_error(caller, scripted):
    request = InBackground(caller.client, stream(BODY | {"n": 2}))
    asked = scripted.next()
    asked.say("a", index=0, finish="length")
    asked.finish()
    *_, error, _ = events(request.done().text)
    assert error["error"]["code"] == "upstream_server_error"
    hold = last_hold(caller)
    assert (hold.paid, hold.status, hold.counted) == (5, "failed", "partial")


@pytest.mark.row("C-340", "C-355")
@pytest.mark.case("S07")
def test_an_unstreamed_client_that_leaves_pays_the_whole_hold(narrow_caller, scripted):
    request = InBackground(narrow_caller.client, BODY)
    asked = scripted.next()
    asked.say("a")
    # The early 200 comes long after the word that Inference has it.
    eventually(lambda: request.status == 200)
    request.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: narrow_caller.open_holds() == 0)
    hold = last_hold(narrow_caller)
    assert (hold.paid, hold.status, hold.counted) == (HELD, "stopped", "held")
    assert narrow_caller.left() == 100_000 - HELD


@pytest.mark.row("C-337", "C-214")
def test_a_streaming_client_that_leaves_before_a_token_pays_nothing(caller, scripted):
    request = InBackground(caller.client, stream(BODY))
    asked = scripted.next()
    request.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000


@pytest.mark.row("C-344", "C-326", "C-373")
def test_a_client_that_leaves_the_line_pays_nothing(narrow_caller, scripted):
    running = [InBackground(narrow_caller.client, BODY) for _ in range(2)]
    asked = [scripted.next(), scripted.next()]
    waiting = InBackground(narrow_caller.client, BODY)
    eventually(lambda: line_of(narrow_caller) == 1)
    assert narrow_caller.open_holds() == 2
    waiting.leave()
    eventually(lambda: line_of(narrow_caller) == 0)
    for each in asked:
        each.answer("x")
    assert [one.done().status for one in running] == [200, 200]
    assert scripted.asked.empty()
    assert Hold.objects.filter(user_id=narrow_caller.user_id).count() == 2


def line_of(caller) -> int:
    from inference import valkey

    return valkey.connection().zcard(f"{valkey.PREFIX}places:line:{caller.key_id}")


ONE_ROW = PackedLogprobs(rows=1, width=1, ids=b"\7\0\0\0", logprobs=b"\0" * 4, ranks=b"\1\0\0\0")
BROKEN = PackedLogprobs(rows=3, width=1, ids=b"\0" * 4, logprobs=b"\0" * 4, ranks=b"\0" * 4)


@pytest.mark.row("C-092", "C-345")
@pytest.mark.parametrize("streams", [False, True])
def test_a_fault_of_the_api_itself_costs_nothing(caller, scripted, streams):
    body = BODY | {"stream": streams, "logprobs": 0}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    if streams:
        asked.say("a", logprobs=ONE_ROW)
        request.line()
    asked.say("b", logprobs=BROKEN)
    request.done()
    error = (events(request.text)[-2] if streams else request.json())["error"]
    assert error["message"] == "The server had an error while processing your request."
    assert (error["code"], error["type"]) == ("internal_error", "internal_error")
    if not streams:
        assert request.status == 500
        assert request.headers["x-should-retry"] == "false"
    assert asked.aborted.wait(5)
    assert caller.left() == 100_000


@pytest.mark.row("C-350")
def test_clients_that_leave_as_the_answer_comes_end_their_holds_once(caller, scripted):
    for number in range(24):
        request = InBackground(caller.client, BODY | {"stream": number % 2 == 0})
        asked = scripted.next()
        if number % 3:
            asked.answer("a", "b")
            request.leave()
        else:
            request.leave()
            asked.answer("a", "b")
    eventually(lambda: caller.open_holds() == 0)
    holds = Hold.objects.filter(user_id=caller.user_id)
    assert holds.count() == 24
    assert caller.left() == 100_000 - sum(hold.paid or 0 for hold in holds)


# A busy database


@pytest.fixture
def tight(database, tiny_catalogue, logs):
    settings = {"DB_POOL_SIZE": "1", "DB_POOL_TIMEOUT": "0.3", "KEEPALIVE_SECONDS": "0.3"}
    with web_process(logs / "tight.log", **settings) as running:
        yield running


@pytest.mark.row("C-094", "C-348", "C-354", "C-633", "C-635", "C-654", "C-686")
def test_a_busy_database(tight, make_caller, scripted):
    caller, other = make_caller(at=tight), make_caller(at=tight)
    finishing = InBackground(caller.client, BODY)
    asked = scripted.next()
    with transaction.atomic():
        Account.objects.select_for_update().get(user_id=other.user_id)
        blocked = InBackground(other.client, BODY)
        eventually(someone_waits_for_a_row)
        # Nothing runs and nothing is held for a new request.
        refused = caller.client.post("/v1/completions", json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"] == {
            "message": "The database was busy. Nothing ran and nothing is held.",
            "type": "service_unavailable",
            "param": None,
            "code": "db_pool_exhausted",
        }
        assert refused.headers["retry-after"] == "1"
        # A Completion that ends meanwhile is answered, and pays later.
        asked.answer("a", "b")
        assert finishing.done().status == 200
        assert caller.open_holds() == 1
        # The pool is not the database: health is degraded, and still answers.
        waiting = [InBackground(caller.client, BODY) for _ in range(3)]
        health = eventually(lambda: saturated(caller))
        assert health["status"] == "degraded"
        assert health["wrapper"]["database"]["ok"] is True
        assert health["degraded_reasons"]
        for each in waiting:
            each.done()
    scripted.next().answer("a")
    assert blocked.done().status == 200
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000 - 6
    assert Hold.objects.filter(user_id=caller.user_id).count() == 1


def someone_waits_for_a_row() -> bool:
    with connection.cursor() as cursor:
        # Within a transaction the first look would be seen again and again.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        # Tests that run beside this one have databases of their own on the same server.
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone()[0] > 0


def saturated(caller) -> dict | None:
    answer = caller.client.get("/health")
    assert answer.status_code == 200
    return answer.json() if answer.json()["wrapper"]["db_pool"]["saturated"] else None


@pytest.mark.row("C-344", "C-350")
def test_a_client_that_leaves_while_its_hold_is_taken_holds_nothing(caller, scripted):
    with transaction.atomic():
        Account.objects.select_for_update().get(user_id=caller.user_id)
        request = InBackground(caller.client, BODY)
        eventually(someone_waits_for_a_row)
        request.leave()
    eventually(lambda: Hold.objects.filter(user_id=caller.user_id).exists())
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000
    assert scripted.asked.empty()
