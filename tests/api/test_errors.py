"""Section 3: the error object, its codes and its headers."""

import time
from uuid import uuid4

import pytest

from completions.failures import Failure, of_engine
from inference import valkey
from inference.engine.messages import Failed, FailureCode
from inference.fleet import Fleet, Stage, WorkerReport
from tests.contract.wire import conform
from tests.live import InBackground, events

BODY = {"prompt": [5], "max_tokens": 4}
TYPES = {
    "invalid_request_error",
    "rate_limit_error",
    "upstream_error",
    "service_unavailable",
    "internal_error",
}

# code of the engine: status, code, type, retryable, upstream_status, Retry-After, x-should-retry
TOLD = {
    FailureCode.INVALID_REQUEST: (400, "invalid_request", "invalid_request_error", None, None),
    FailureCode.CONTEXT_LENGTH: (
        400,
        "context_length_exceeded",
        "invalid_request_error",
        None,
        None,
    ),
    FailureCode.OUT_OF_MEMORY: (502, "vllm_oom", "upstream_error", True, 500),
    FailureCode.ENGINE_DEAD: (502, "vllm_engine_dead", "upstream_error", True, None),
    FailureCode.UNREACHABLE: (502, "upstream_unreachable", "upstream_error", True, None),
    FailureCode.DEADLINE: (504, "upstream_deadline", "upstream_error", False, None),
    FailureCode.SERVER_ERROR: (502, "upstream_server_error", "upstream_error", False, 500),
    FailureCode.INCOMPLETE: (502, "upstream_server_error", "upstream_error", False, None),
    FailureCode.RATE_LIMITED: (429, "rate_limited", "rate_limit_error", None, None),
    FailureCode.AUTH: (502, "upstream_auth", "upstream_error", False, None),
    FailureCode.UPSTREAM_CONTEXT: (400, "vllm_context_length", "upstream_error", False, None),
    FailureCode.UPSTREAM_INVALID: (400, "vllm_invalid_request", "upstream_error", False, None),
}


@pytest.mark.row("C-058")
def test_every_failure_of_an_engine_has_an_error():
    assert set(TOLD) == set(FailureCode)
    for code in FailureCode:
        failure = of_engine(Failed(request_id="r", seq=1, code=code, message="m"))
        assert isinstance(failure, Failure)
        assert failure.type.value in TYPES


@pytest.mark.row(
    "C-056",
    "C-057",
    "C-058",
    "C-060",
    "C-061",
    "C-062",
    "C-063",
    "C-096",
    "C-101",
    "C-102",
    "C-103",
    "C-105",
    "C-108",
    "C-111",
    "C-654",
    "C-211",
)
@pytest.mark.parametrize("code", FailureCode)
@pytest.mark.parametrize("streams", [False, True])
def test_a_failure_of_inference_before_the_answer_starts(caller, scripted, code, streams):
    status, name, kind, retryable, upstream = TOLD[code]
    request = InBackground(caller.client, BODY | {"stream": streams})
    scripted.next().fail(code, message="it broke", param="prompt")
    body = request.json()
    conform(body, "ErrorResponse")
    error = body["error"]
    assert request.status == status
    assert request.headers["content-type"] == "application/json"
    assert (error["message"], error["code"], error["type"]) == ("it broke", name, kind)
    assert error["param"] == ("prompt" if kind == "invalid_request_error" else None)
    assert error.get("retryable") is retryable
    assert error.get("upstream_status") == upstream
    assert "request_id" not in error
    assert body["request_id"] == request.headers["x-request-id"]
    if retryable:
        assert error["retry_after_seconds"] == 30
        assert request.headers["retry-after"] == "30"
        assert "x-should-retry" not in request.headers
    else:
        assert "retry_after_seconds" not in error
        assert "retry-after" not in request.headers
        assert request.headers.get("x-should-retry") == ("false" if retryable is False else None)
    assert "retry-after-ms" not in request.headers


@pytest.mark.row("C-025", "C-061", "C-112", "C-212")
@pytest.mark.case("S03")
@pytest.mark.parametrize("code", FailureCode)
def test_a_failure_after_the_stream_started_is_its_last_event(caller, scripted, code):
    _, name, kind, retryable, _ = TOLD[code]
    request = InBackground(caller.client, BODY | {"stream": True})
    asked = scripted.next()
    asked.say("a")
    request.line()
    asked.fail(code)
    first, last, done = events(request.done().text)
    assert request.status == 200
    assert done == "[DONE]"
    assert first["choices"][0]["text"] == "a"
    conform(last, "ErrorResponse")
    error = last["error"]
    assert (error["code"], error["type"]) == (name, kind)
    assert error["retryable"] is bool(retryable)
    assert error["request_id"] == last["request_id"] == request.headers["x-request-id"]


@pytest.mark.row("C-025", "C-061", "C-217", "C-218", "C-219")
@pytest.mark.parametrize("code", FailureCode)
def test_a_failure_after_the_early_200_is_its_body(narrow_caller, scripted, code):
    _, name, _, retryable, _ = TOLD[code]
    request = InBackground(narrow_caller.client, BODY)
    asked = scripted.next()
    while request.status is None:
        time.sleep(0.02)
    asked.fail(code)
    body = request.json()
    assert request.status == 200
    assert request.headers["content-type"] == "application/json"
    conform(body, "ErrorResponse")
    assert body["error"]["code"] == name
    assert body["error"]["retryable"] is bool(retryable)
    assert body["error"]["request_id"] == body["request_id"] == request.headers["x-request-id"]


@pytest.mark.row("C-113", "C-213")
@pytest.mark.case("S11")
def test_a_stream_with_a_lost_event_says_that_it_broke_off(caller, scripted):
    request = InBackground(caller.client, BODY | {"stream": True})
    asked = scripted.next()
    asked.say("a")
    request.line()
    asked.skip_event()
    asked.say("c")
    _, last, done = events(request.done().text)
    assert done == "[DONE]"
    assert last["error"]["message"] == "Inference ended the stream before it was complete."
    assert last["error"]["type"] == "upstream_error"
    assert asked.aborted.wait(5)


@pytest.mark.row("C-101", "C-110")
def test_a_worker_that_takes_nothing_is_unreachable(caller):
    fleet = Fleet(valkey.connection())
    deaf = WorkerReport(
        worker_id=uuid4().hex,
        model_id="tiny-other",
        stage=Stage.SERVING,
        started_at=time.time(),
        idle_since=None,
        host="test",
        pid=1,
    )
    request = InBackground(caller.client, BODY | {"model": "tiny-other"})
    deadline = time.monotonic() + 20
    try:
        while request.status is None and time.monotonic() < deadline:
            fleet.report(deaf)
            time.sleep(0.2)
        body = request.json()
    finally:
        fleet.retire(deaf)
    assert request.status == 502
    assert body["error"]["code"] == "upstream_unreachable"
    assert body["error"]["message"] == "Could not reach Inference: Connection error."
    assert body["error"]["retryable"] is True
    assert caller.left() == 100_000


@pytest.mark.row("C-108", "C-221")
def test_an_answer_that_does_not_come_is_a_504(narrow_caller, scripted):
    request = InBackground(narrow_caller.client, BODY | {"stream": True})
    asked = scripted.next()
    body = request.json()
    assert request.status == 504
    assert body["error"] == {
        "message": "Could not reach Inference: Request timed out.",
        "type": "upstream_error",
        "param": None,
        "code": "upstream_deadline",
        "retryable": False,
    }
    assert request.headers["x-should-retry"] == "false"
    assert "retry-after" not in request.headers
    assert asked.aborted.wait(5)


@pytest.mark.row("C-110")
def test_a_failed_request_is_not_tried_again(caller, scripted):
    request = InBackground(caller.client, BODY)
    scripted.next().fail(FailureCode.SERVER_ERROR)
    assert request.done().status == 502
    assert scripted.asked.empty()


@pytest.mark.row("C-061", "C-064")
def test_errors_of_the_api_itself_have_no_retryable(caller, anonymous):
    for answer in (
        caller.client.post("/v1/completions", json={}),
        anonymous.get("/v1/models"),
        anonymous.get("/v1/nothing"),
        anonymous.put("/v1/models"),
    ):
        assert set(answer.json()) == {"error", "request_id"}
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "retry-after" not in answer.headers
        assert "retry-after-ms" not in answer.headers
