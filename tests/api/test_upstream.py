"""Models on a vLLM server: what it answers, and every way in which it fails, over HTTP."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings

from completions.breaker import breakers
from inference import valkey
from inference.catalogue import load_catalogue
from inference.fleet import Fleet
from inference.preparation import prepare
from tests.conftest import Caller
from tests.contract.wire import conform
from tests.live import ROOT, InBackground, Web, events, eventually, web_process
from tests.vllm_server import (
    DONE,
    FakeVllm,
    Hold,
    Script,
    chunk,
    error,
    fake_vllm,
    head,
    recorded,
    stream,
    usage,
    whole,
)

ENTRY = """
[[models]]
id = "{id}"
served_name = "basalt/{id}"
{more}
dtype = "float32"
device = "cuda"
gpu_shape = "1xH200"
price_per_hour = 3.5
idle_seconds = 600
start_seconds = 60
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384
backend = {{ kind = "vllm", url = "{url}" }}
"""
MODEL = "far"
BODY = {"prompt": [5], "max_tokens": 4}
LIMITS = {"ANSWER_TIMEOUT": "1.5", "BREAKER_FAILURES": "1000", "KEEPALIVE_SECONDS": "0.3"}


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def running() -> Iterator[FakeVllm]:
    with fake_vllm() as server:
        yield server


@pytest.fixture(scope="module")
def far_web(
    database: None, tiny_catalogue: Path, running: FakeVllm, tmp_path_factory, logs: Path
) -> Iterator[Web]:
    """A web process whose models are on vLLM servers, one of them not there."""
    folder = tmp_path_factory.mktemp("far-catalogue")
    source = f'source = {{ kind = "folder", path = "{tiny_catalogue.parent / "source"}" }}\n'
    nowhere = f"http://127.0.0.1:{closed_port()}"
    path = folder / "catalogue.toml"
    path.write_text(
        ENTRY.format(id=MODEL, more=source + "default = true", url=running.url)
        + ENTRY.format(id="gone", more=source, url=nowhere)
        + ENTRY.format(id="raw", more=source, url=running.url)
        + ENTRY.format(id="bare", more="tokenizer = false", url=running.url)
    )
    for entry in load_catalogue(path).enabled:
        if entry.id in (MODEL, "gone"):
            prepare(entry, folder / "models", lambda progress: None)
    with web_process(
        logs / "far.log",
        CATALOGUE_PATH=str(path),
        MODELS_DIR=str(folder / "models"),
        **LIMITS,
    ) as web:
        yield web


@pytest.fixture
def server(running: FakeVllm) -> FakeVllm:
    for left in (running.seen, running.scripts):
        while not left.empty():
            left.get_nowait()
    return running


@pytest.fixture
def far(far_web: Web, make_caller: Callable[..., Caller]) -> Caller:
    return make_caller(at=far_web)


def test_a_completion_runs_on_a_vllm_server(server: FakeVllm, far: Caller) -> None:
    server.will(stream(1, "a", "b"))
    answer = far.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["model"] == "basalt/far"
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert far.left() == 100_000 - 3
    sent = server.next().body
    assert (sent["model"], sent["prompt"]) == ("basalt/far", [[5]])
    assert sent["cache_salt"] == str(far.user_id)


def test_a_stream_and_its_echo(server: FakeVllm, far: Caller) -> None:
    server.will(stream(1, "a", "b"))
    request = InBackground(
        far.client,
        BODY | {"stream": True, "prompt": "x", "add_special_tokens": False, "echo": True},
    )
    chunks = events(request.done().text)
    assert chunks[-1] == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "xab"
    assert server.next().body["echo"] is False


@pytest.mark.row("C-211")
def test_the_answer_starts_with_the_servers_first_token(server: FakeVllm, far: Caller) -> None:
    hold = Hold()
    server.will(head(), chunk("a"), hold, chunk("b", finish="stop"), usage(1, 2), DONE)
    request = InBackground(far.client, BODY | {"stream": True})
    assert '"a"' in request.line()
    hold.go.set()
    assert events(request.done().text)[-1] == "[DONE]"


CONTEXT = "This model's maximum context length is 2048 tokens. However, you requested 100 output"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB."
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

Row = tuple[int, str, str, bool | None, int | None, dict[str, str | None]]
FINAL = {"x-should-retry": "false", "retry-after": None}
AGAIN = {"x-should-retry": None, "retry-after": "30"}
PLAIN = {"x-should-retry": None, "retry-after": None}
ROWS: dict[str, tuple[Script, Row]] = {
    "bad request": (
        [recorded("err_stop_token_ids_oov")],
        (400, "invalid_request", "invalid_request_error", None, 400, PLAIN),
    ),
    "context": (
        [recorded("err_ctx_sum_too_long")],
        (400, "context_length_exceeded", "invalid_request_error", None, 400, PLAIN),
    ),
    "context by 5xx": (
        [error(500, CONTEXT)],
        (400, "vllm_context_length", "upstream_error", False, 500, FINAL),
    ),
    "request by 5xx": (
        [recorded("lens_err_bad_layer_99")],
        (400, "vllm_invalid_request", "upstream_error", False, 500, FINAL),
    ),
    "busy": (
        [error(429, "slow down", retry_after="7", retry_after_ms="6500")],
        (429, "rate_limited", "rate_limit_error", None, 429,
         {"x-should-retry": None, "retry-after": "7", "retry-after-ms": "6500"}),
    ),
    "busy until": (
        [error(429, "slow down", retry_after="Mon, 30 Nov 2026 13:00:00 GMT")],
        (429, "rate_limited", "rate_limit_error", None, 429,
         {"retry-after": "Mon, 30 Nov 2026 13:00:00 GMT", "retry-after-ms": None}),
    ),
    "memory": ([error(500, OOM)], (502, "vllm_oom", "upstream_error", True, 500, AGAIN)),
    "dead": (
        [recorded("err_oov_49152")], (502, "vllm_engine_dead", "upstream_error", True, 500, AGAIN),
    ),
    "dead by 503": ([error(503, DEAD)], (502, "vllm_engine_dead", "upstream_error", True, 503,
                                         AGAIN)),
    **{
        f"status {status}": (
            [head(status, "text/html") + b"<h1>Bad Gateway</h1>"],
            (502, "upstream_server_error", "upstream_error", True, status, AGAIN),
        )
        for status in (502, 503, 504)
    },
    **{
        f"status {status}": (
            [error(status, "it broke")],
            (502, "upstream_server_error", "upstream_error", False, status, FINAL),
        )
        for status in (500, 501, 599, 418, 204)
    },
    "no such model": (
        [recorded("err_model_unknown")],
        (502, "upstream_server_error", "upstream_error", False, 404, FINAL),
    ),
    **{
        f"status {status}": (
            [head(status, location="http://elsewhere.example/")],
            (502, "upstream_auth", "upstream_error", False, status, FINAL),
        )
        for status in (301, 307, 308, 401, 403)
    },
    **{
        f"status {status}": (
            [b"HTTP/1.1 %s Odd\r\nconnection: close\r\n\r\n" % status.encode()],
            (502, "upstream_server_error", "upstream_error", False, None, FINAL),
        )
        for status in ("600", "999", "099", "abc")
    },
    "no answer": ([b""], (502, "upstream_unreachable", "upstream_error", True, None, AGAIN)),
    "too late": ([Hold()], (504, "upstream_deadline", "upstream_error", False, None, FINAL)),
    "error in the stream": (
        [recorded("lens_err_stream_bad")],
        (400, "invalid_request", "invalid_request_error", None, 400, PLAIN),
    ),
    "cut": (
        [head()], (502, "upstream_server_error", "upstream_error", False, None, FINAL),
    ),
}  # fmt: skip
MESSAGES = {
    "no answer": "Could not reach Inference: Connection error.",
    "too late": "Could not reach Inference: Request timed out.",
    "cut": "Inference ended the stream before it was complete.",
    "memory": OOM,
    "busy": "slow down",
    "status 401": "Inference refused the API's own credentials.",
    "status 502": "Inference answered with the status 502.",
}


@pytest.mark.row(
    "C-063", "C-096", "C-097", "C-098", "C-099", "C-100", "C-101", "C-102", "C-103", "C-104",
    "C-105", "C-107", "C-108", "C-109", "C-110", "C-111", "C-211", "C-654", "C-655", "C-657",
)  # fmt: skip
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_a_failure_of_the_server(server: FakeVllm, far: Caller, name: str, streams: bool) -> None:
    script, (status, code, kind, retryable, upstream, headers) = ROWS[name]
    before = breakers().state(MODEL).failures
    server.will(*script)
    answer = far.client.post("/v1/completions", json=BODY | {"stream": streams})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()["error"]
    assert (told["code"], told["type"]) == (code, kind)
    assert told.get("retryable") is retryable
    assert told.get("upstream_status") == upstream
    assert {header: answer.headers.get(header) for header in headers} == headers
    if name in MESSAGES:
        assert told["message"] == MESSAGES[name]
    if name == "bad request":
        assert told["param"] == "stop_token_ids"
        assert told["message"].startswith("token_id(s) [99999] in stop_token_ids")
    if name == "context":
        assert told["param"] == "prompt"
        assert told["message"].startswith("This model's maximum context length is 2048 tokens.")
    server.next()
    assert server.seen.empty(), "the request was sent again"
    assert far.left() == 100_000
    counts = status >= 500
    eventually(lambda: (breakers().state(MODEL).failures > before) is counts)
    assert far.open_holds() == 0


@pytest.mark.row("C-101")
def test_a_server_that_is_not_there(far: Caller) -> None:
    answer = far.client.post("/v1/completions", json=BODY | {"model": "gone"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_unreachable"
    assert answer.json()["error"]["message"] == "Could not reach Inference: Connection error."
    assert answer.headers["retry-after"] == "30"


@pytest.mark.row("C-112", "C-212", "C-113", "C-213")
@pytest.mark.parametrize("ending", ["cut", "error"])
def test_a_stream_that_fails_after_it_started(server: FakeVllm, far: Caller, ending: str) -> None:
    inner = b'data: {"error": {"message": "it broke", "type": "x", "param": null, "code": 500}}\n\n'
    server.will(head() + chunk("a") + (inner + DONE if ending == "error" else b""))
    request = InBackground(far.client, BODY | {"stream": True})
    first, last, done = events(request.done().text)
    assert request.status == 200
    assert done == "[DONE]"
    assert first["choices"][0]["text"] == "a"
    conform(last, "ErrorResponse")
    assert last["error"]["type"] == "upstream_error"
    assert last["error"]["retryable"] is False
    assert last["error"]["request_id"] == last["request_id"]
    cut = "Inference ended the stream before it was complete."
    assert last["error"]["message"] == ("it broke" if ending == "error" else cut)
    eventually(lambda: far.open_holds() == 0)
    assert far.left() == 100_000 - 2


@pytest.mark.row("C-106", "C-201")
def test_an_answer_without_all_its_choices_is_not_passed_on(server: FakeVllm, far: Caller) -> None:
    server.will(head() + chunk("a", finish="stop") + usage(1, 1) + DONE)
    answer = far.client.post("/v1/completions", json=BODY | {"n": 2})
    assert answer.status_code == 502
    told = answer.json()["error"]
    assert told["code"] == "upstream_server_error"
    assert told["message"] == (
        "Inference's answer does not fit the request: choice 1 is unfinished."
    )
    assert answer.headers["x-should-retry"] == "false"
    assert far.left() == 100_000


@pytest.mark.row("C-255")
def test_an_answer_without_its_activations_is_not_passed_on(server: FakeVllm, far: Caller) -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "length", "token_ids": [7]}
    counts = {"prompt_tokens": 1, "completion_tokens": 1}
    server.will(whole({"id": "cmpl-1", "created": 1, "choices": [choice], "usage": counts}))
    body = BODY | {"max_tokens": 1, "output_residual_stream": [0]}
    answer = far.client.post("/v1/completions", json=body)
    assert answer.status_code == 502
    told = answer.json()["error"]
    assert told["message"] == (
        "Inference's answer does not fit the request: it has no activations."
    )
    assert far.left() == 100_000


def test_a_client_that_leaves_ends_the_request_at_the_server(server: FakeVllm, far: Caller) -> None:
    server.will(head(), chunk("a"), Hold())
    request = InBackground(far.client, BODY | {"stream": True})
    request.line()
    request.leave()
    assert server.next().gone.wait(5)


@pytest.mark.row("C-340")
@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": 1}], ids=["streamed", "whole"])
def test_leaving_before_the_servers_first_word_pays_the_hold(
    server: FakeVllm, far: Caller, fields: dict
) -> None:
    server.will(Hold())
    request = InBackground(far.client, BODY | fields)
    seen = server.next()
    request.leave()
    assert seen.gone.wait(5)
    eventually(lambda: far.open_holds() == 0)
    assert far.left() == 100_000 - 5


@pytest.mark.row("C-134")
def test_a_server_that_answered_is_warm_and_asks_for_no_worker(
    server: FakeVllm, far: Caller
) -> None:
    valkey.connection().delete(valkey.answered(MODEL))
    status = f"/v1/models/{MODEL}/status"
    assert far.client.get(status).json()["warm"] is False
    server.will(stream(1, "a"))
    assert far.client.post("/v1/completions", json=BODY).status_code == 200
    eventually(lambda: far.client.get(status).json()["warm"] is True)
    assert far.client.get(status).json()["boot"] is None
    life = valkey.connection().pttl(valkey.answered(MODEL)) / 1000
    assert life == pytest.approx(settings.BASALT.warm_after_answer_seconds, abs=30)
    assert Fleet(valkey.connection()).demand(MODEL) is None


@pytest.mark.parametrize("body", [BODY | {"prompt": "x"}, BODY | {"logprobs": 1}])
def test_a_model_whose_tokenizer_is_not_prepared_says_so(far: Caller, body: dict) -> None:
    answer = far.client.post("/v1/completions", json=body | {"model": "raw"})
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == (
        "Could not reach Inference: the model raw is not prepared on this server."
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (BODY | {"prompt": "x"}, "prompt"),
        (BODY | {"logprobs": 1}, "logprobs"),
        (BODY | {"prompt_logprobs": 1}, "prompt_logprobs"),
        (BODY | {"echo": True}, "echo"),
    ],
)
def test_a_model_without_a_tokenizer_refuses_what_needs_one(
    far: Caller, body: dict, param: str
) -> None:
    answer = far.client.post("/v1/completions", json=body | {"model": "bare"})
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert told["param"] == param
    assert "is served without a tokenizer" in told["message"]


def test_a_model_without_a_tokenizer_takes_ids(server: FakeVllm, far: Caller) -> None:
    server.will(stream(1, "a"))
    answer = far.client.post("/v1/completions", json=BODY | {"model": "bare"})
    assert answer.status_code == 200, answer.text


def test_steered_positions_are_refused(server: FakeVllm, far: Caller) -> None:
    vector = {"activations": [[[0.5] * 64]], "layer_indices": [1], "position_indices": [0]}
    body = BODY | {"apply_steering_vectors": [vector]}
    answer = far.client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "apply_steering_vectors"
    assert "cannot steer single positions" in answer.json()["error"]["message"]
    assert server.seen.empty()
    assert far.left() == 100_000


def test_the_catalogue_of_vllm_servers_starts(database: None, logs: Path) -> None:
    catalogue = str(ROOT / "deploy" / "catalogue-acs.toml")
    with web_process(logs / "acs.log", CATALOGUE_PATH=catalogue) as web:
        assert web.client().get("/health").status_code == 200
