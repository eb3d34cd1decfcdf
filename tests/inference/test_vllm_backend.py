"""A vLLM server's answers become the events that a worker's would be, or a failure."""

import asyncio
import base64
import copy
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from pydantic import SecretStr

from inference.backends import vllm, vllm_apart
from inference.backends.vllm import READ_HERE_BYTES, VllmClient
from inference.backends.vllm_reading import Facts, Reading
from inference.catalogue import FolderSource, ModelEntry, VllmBackend
from inference.client import Patience
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    Given,
    PackedLogprobs,
    Sampling,
    Steering,
    Stopping,
)
from tests.live import ROOT
from tests.vllm_server import (
    DONE,
    RECORDED,
    FakeVllm,
    Hold,
    chunk,
    event,
    fake_vllm,
    head,
    recorded,
    stream,
    usage,
    whole,
)

CAPITAL = (504, 3575, 282, 4649, 314)
"""The capital of France is"""


@pytest.fixture(scope="module")
def running() -> Iterator[FakeVllm]:
    with fake_vllm() as server:
        yield server


@pytest.fixture
def server(running: FakeVllm) -> FakeVllm:
    for left in (running.seen, running.scripts):
        while not left.empty():
            left.get_nowait()
    return running


def model(server: FakeVllm, **changes) -> ModelEntry:
    fields = {
        "id": "smollm2",
        "served_name": "smollm2-135m",
        "source": FolderSource.model_construct(kind="folder", path="/nowhere"),
        "dtype": "float32",
        "device": "cuda",
        "gpu_shape": "1xH200",
        "price_per_hour": Decimal(1),
        "idle_seconds": 60,
        "start_seconds": 60,
        "max_model_len": 2048,
        "n_layers": 30,
        "hidden_size": 576,
        "vocab_size": 49152,
        "backend": VllmBackend(kind="vllm", url=server.url),
    }
    return ModelEntry(**fields | changes)


def request(prompts=(CAPITAL,), max_tokens=2, **fields) -> EngineRequest:
    return EngineRequest(
        request_id="r1", cache_scope="user", prompts=prompts, max_tokens=max_tokens, **fields
    )


def ask(server: FakeVllm, asked: EngineRequest, start=10.0, gap=10.0, **changes) -> list[Event]:
    async def run() -> list[Event]:
        client = VllmClient()
        patience = Patience(start=start, gap=gap)
        try:
            async with client.complete(model(server, **changes), asked, patience) as events:
                return [event async for event in events]
        finally:
            await client.close()

    return asyncio.run(run())


def failure(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events
    assert not any(isinstance(event, Finished | Failed) for event in events[:-1])
    return events[-1]


def rows(packed: PackedLogprobs | None) -> list[dict[int, tuple[float, int]]]:
    """Each row as id -> (log probability, rank), in order."""
    assert packed is not None
    shape = (packed.rows, packed.width)
    ids = np.frombuffer(packed.ids, "<i4").reshape(shape)
    logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(shape)
    ranks = np.frombuffer(packed.ranks, "<i4").reshape(shape)
    return [
        {int(i): (float(p), int(r)) for i, p, r in zip(*row, strict=True) if i >= 0}
        for row in zip(ids, logprobs, ranks, strict=True)
    ]


@pytest.mark.row("C-666")
def test_a_stream_has_the_servers_id_and_time(server: FakeVllm) -> None:
    said = [json.loads(line[6:]) for line in RECORDED["uni_cjk_stream_ids"]["response"][:-1]]
    server.will(recorded("uni_cjk_stream_ids"))
    prompt = tuple(said[0]["choices"][0]["prompt_token_ids"])
    _, first, *others, _ = ask(server, request((prompt,), max_tokens=24))
    assert first.given == Given(id=said[0]["id"], created=said[0]["created"])
    assert all(delta.given is None for delta in others)


@pytest.mark.row("C-666")
def test_a_whole_answer_has_the_servers_id_and_time(server: FakeVllm) -> None:
    body = with_ids("prompt_logprobs5", [7042, 30])
    server.will(whole(body))
    _, first, _ = ask(server, request(prompt_logprobs=5))
    assert first.given == Given(id=body["id"], created=body["created"])


@pytest.mark.parametrize("name", ["uni_cjk_stream_ids", "uni_emoji_stream_ids"])
def test_a_recorded_stream_becomes_events(server: FakeVllm, name: str) -> None:
    said = [json.loads(line[6:]) for line in RECORDED[name]["response"][:-1]]
    prompt = tuple(said[0]["choices"][0]["prompt_token_ids"])
    server.will(recorded(name))
    accepted, *deltas, end = ask(server, request((prompt,), max_tokens=24))
    assert isinstance(accepted, Accepted)
    assert isinstance(end, Finished)
    assert all(isinstance(delta, Delta) for delta in deltas)
    choices = [answer["choices"][0] for answer in said[:-1]]
    assert [d.text for d in deltas] == [choice["text"] for choice in choices]
    assert [list(d.token_ids) for d in deltas] == [choice["token_ids"] for choice in choices]
    assert [d.finish_reason for d in deltas] == [None] * 23 + ["length"]
    counts = said[-1]["usage"]
    assert (end.prompt_tokens, end.completion_tokens) == (counts["prompt_tokens"], 24)
    assert [event.seq for event in [accepted, *deltas, end]] == list(range(26))


def test_several_choices_are_told_apart_by_their_index(server: FakeVllm) -> None:
    server.will(
        head(), chunk("a"), chunk("x", index=1), chunk("y", index=1, finish="stop"),
        chunk("b", finish="length"), usage(5, 4), DONE,
    )  # fmt: skip
    events = ask(server, request(n=2))
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [(d.index, d.text) for d in deltas] == [(0, "a"), (1, "x"), (1, "y"), (0, "b")]
    assert server.next().body["n"] == 2


@pytest.mark.row("C-197")
def test_a_finish_reason_of_the_server_is_passed_on(server: FakeVllm) -> None:
    server.will(stream(5, "a", "b", finish="repetition"))
    events = ask(server, request())
    assert isinstance(events[-2], Delta)
    assert events[-2].finish_reason == "repetition"


def test_a_line_separator_inside_a_text_does_not_end_an_event(server: FakeVllm) -> None:
    text = "a\u2028b\x85c\x0bd"
    server.will(stream(5, text))
    events = ask(server, request())
    assert isinstance(events[1], Delta)
    assert events[1].text == text


def test_events_that_arrive_in_pieces_are_put_together(server: FakeVllm) -> None:
    hold = Hold()
    raw = stream(5, "é")
    middle = raw.index("é".encode()) + 1
    server.will(raw[:middle], hold, raw[middle:])
    asyncio.run(_later(hold, server))


async def _later(hold: Hold, server: FakeVllm) -> None:
    asyncio.get_running_loop().call_later(0.1, hold.go.set)
    client = VllmClient()
    async with client.complete(model(server), request(), Patience(start=5, gap=5)) as events:
        found = [event async for event in events]
    await client.close()
    assert isinstance(found[1], Delta)
    assert found[1].text == "é"


@pytest.mark.row("C-142", "C-161")
def test_every_field_is_sent_with_its_default(server: FakeVllm) -> None:
    server.will(stream(5, "a"))
    ask(server, request(max_tokens=9))
    seen = server.next()
    assert seen.path == "/v1/completions"
    assert seen.body == {
        "model": "smollm2-135m",
        "request_id": "r1",
        "prompt": [list(CAPITAL)],
        "max_tokens": 9,
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": None,
        "stop": [],
        "stop_token_ids": [],
        "include_stop_str_in_output": False,
        "min_tokens": 0,
        "ignore_eos": False,
        "logit_bias": None,
        "allowed_token_ids": None,
        "truncate_prompt_tokens": None,
        "use_beam_search": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "echo": False,
        "logprobs": None,
        "prompt_logprobs": None,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "priority": 0,
        "user": None,
        "cache_salt": "user",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.row("C-161")
def test_the_user_is_sent(server: FakeVllm) -> None:
    server.will(stream(5, "a"))
    ask(server, request(max_tokens=9, user="lab-3"))
    assert server.next().body["user"] == "lab-3"


def test_sampling_and_stopping_are_sent(server: FakeVllm) -> None:
    server.will(stream(5, "a"))
    sampling = Sampling(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=0.2,
        frequency_penalty=0.3, repetition_penalty=1.4, seed=42,
    )  # fmt: skip
    stopping = Stopping(
        texts=("x",), token_ids=(3,), include_text=True, min_tokens=1, ignore_end=True
    )
    ask(server, request(sampling=sampling, stopping=stopping, priority=3))
    body = server.next().body
    sent = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "repetition_penalty": 1.4, "seed": 42, "stop": ["x"],
        "stop_token_ids": [3], "include_stop_str_in_output": True, "min_tokens": 1,
        "ignore_eos": True, "priority": 3,
    }  # fmt: skip
    assert {name: body[name] for name in sent} == sent


def test_log_probabilities_of_a_recorded_answer(server: FakeVllm) -> None:
    said = RECORDED["greedy_return_tokens_as_token_ids"]["response"]["choices"][0]
    lists = said["logprobs"]
    ids = [int(name.removeprefix("token_id:")) for name in lists["tokens"]]
    head_, tail = (
        {name: value[part] for name, value in lists.items()} for part in (slice(2), slice(2, None))
    )
    server.will(
        head(),
        chunk("ab", logprobs=head_, token_ids=ids[:2]),
        chunk("cd", logprobs=tail, token_ids=ids[2:], finish="length"),
        usage(5, 6),
        DONE,
    )
    _, first, second, _ = ask(server, request(max_tokens=6, logprobs=2))
    assert server.next().body["logprobs"] == 2
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    found = rows(first.logprobs) + rows(second.logprobs)
    for row, token_id, top in zip(found, ids, lists["top_logprobs"], strict=True):
        assert next(iter(row)) == token_id
        told = {int(name.removeprefix("token_id:")): value for name, value in top.items()}
        assert {i: p for i, (p, _) in row.items()} == pytest.approx(told, abs=1e-6)
        assert [r for _, r in row.values()] == list(range(1, len(row) + 1))


def test_a_token_outside_of_the_likeliest_has_the_rank_after_them(server: FakeVllm) -> None:
    top = {"token_id:9": -5.0, "token_id:1": -0.5, "token_id:2": -1.5}
    lists = {"tokens": ["token_id:9"], "token_logprobs": [-5.0], "top_logprobs": [top]}
    server.will(head(), chunk("a", logprobs=lists, token_ids=[9], finish="stop"), usage(5, 1), DONE)
    _, delta, _ = ask(server, request(logprobs=2))
    assert isinstance(delta, Delta)
    assert rows(delta.logprobs) == [{9: (-5.0, 3), 1: (-0.5, 1), 2: (-1.5, 2)}]


def with_ids(name: str, token_ids: list[int]) -> dict:
    """A recorded whole answer with the ids that its request did not ask for."""
    body = copy.deepcopy(RECORDED[name]["response"])
    choice = body["choices"][0]
    choice["token_ids"] = token_ids
    if choice["logprobs"]:
        lists = choice["logprobs"]
        lists["tokens"] = [f"token_id:{i}" for i in token_ids]
        lists["top_logprobs"] = [
            {f"token_id:{i}": p} for i, p in zip(token_ids, lists["token_logprobs"], strict=True)
        ]
    return body


@pytest.mark.parametrize("by", ["field", "echo"])
def test_log_probabilities_of_a_prompt_come_in_one_piece(server: FakeVllm, by: str) -> None:
    told = RECORDED["prompt_logprobs5"]["response"]["choices"][0]["prompt_logprobs"]
    answer = with_ids("prompt_logprobs2_logprobs2", [7042, 30])
    answer["choices"][0]["prompt_logprobs"] = told
    server.will(whole(answer))
    fields = {"prompt_logprobs": 5} if by == "field" else {"echo": True, "logprobs": 5}
    _, delta, end = ask(server, request(**fields))
    body = server.next().body
    assert (body["prompt_logprobs"], body["stream"], body["echo"]) == (5, False, False)
    assert body["stream_options"] is None
    assert isinstance(delta, Delta)
    assert isinstance(end, Finished)
    assert delta.token_ids == (7042, 30)
    found = rows(delta.prompt_logprobs)
    assert [next(iter(row)) for row in found] == list(CAPITAL[1:])
    for row, position in zip(found, told[1:], strict=True):
        assert {i: r for i, (_, r) in row.items()} == {
            int(i): entry["rank"] for i, entry in position.items()
        }
        assert {i: p for i, (p, _) in row.items()} == pytest.approx(
            {int(i): entry["logprob"] for i, entry in position.items()}, abs=1e-5
        )


def test_a_prompt_of_one_token_has_no_row(server: FakeVllm) -> None:
    server.will(whole(with_ids("prompt_logprobs5_single_token", [29])))
    _, delta, end = ask(server, request(((504,),), max_tokens=1, prompt_logprobs=5))
    assert isinstance(end, Finished)
    assert isinstance(delta, Delta)
    assert rows(delta.prompt_logprobs) == []


def test_the_whole_vocabulary_of_a_prompt(server: FakeVllm) -> None:
    position = {
        str(i): {"logprob": -1.0 - i, "rank": i + 1, "decoded_token": "x"} for i in range(8)
    }
    body = with_ids("prompt_logprobs5_single_token", [1])
    body["choices"][0]["prompt_logprobs"] = [None, position]
    body["usage"]["prompt_tokens"] = 2
    server.will(whole(body))
    asked = request(((3, 5),), max_tokens=1, prompt_logprobs=-1)
    _, delta, _ = ask(server, asked, vocab_size=8)
    assert isinstance(delta, Delta)
    (row,) = rows(delta.prompt_logprobs)
    assert list(row) == [5, 0, 1, 2, 3, 4, 6, 7]
    assert row[5] == (-6.0, 6)


def test_max_tokens_zero_runs_one_token_and_shows_none(server: FakeVllm) -> None:
    server.will(stream(5, "a", finish="stop"))
    _, delta, end = ask(server, request(max_tokens=0, echo=True))
    assert server.next().body["max_tokens"] == 1
    assert isinstance(delta, Delta)
    assert isinstance(end, Finished)
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), "length")
    assert end.completion_tokens == 1


def test_a_recorded_read_of_the_residual_stream(server: FakeVllm) -> None:
    server.will(whole(with_ids("lens_ors_max1", [7042])))
    _, _, end = ask(server, request(max_tokens=1, read_layers=(0,)))
    body = server.next().body
    assert body["vllm_xargs"] == {"output_residual_stream": [0]}
    assert body["stream"] is False
    assert isinstance(end, Finished)
    assert end.residuals is not None
    assert (end.residuals.shape, end.residuals.dtype) == ((1, 5, 576), "float32")
    told = RECORDED["lens_ors_max1"]["response"]["activations"]["residual_stream"]["data"]
    frame = zstandard.ZstdDecompressor().decompress(base64.b64decode(told))
    assert bytes(end.residuals.data) == frame


@pytest.mark.row("C-255")
@pytest.mark.parametrize("fault", ["shape", "dtype", "base64", "zstd"])
def test_a_broken_read_does_not_fit(server: FakeVllm, fault: str) -> None:
    body = with_ids("lens_ors_max1", [7042])
    read = body["activations"]["residual_stream"]
    changes = {
        "shape": {"shape": [1, 4, 576]},
        "dtype": {"original_dtype": "torch.bfloat16"},
        "base64": {"data": "?" + read["data"][1:]},
        "zstd": {"data": base64.b64encode(b"nothing").decode()},
    }
    read |= changes[fault]
    server.will(whole(body))
    failed = failure(ask(server, request(max_tokens=1, read_layers=(0,))))
    assert failed.message.startswith("Inference's answer does not fit the request: ")


def read_of_one_token() -> dict:
    """A recorded read, cut to the first token."""
    body = with_ids("lens_ors_max1", [7042])
    read = body["activations"]["residual_stream"]
    rows_ = zstandard.ZstdDecompressor().decompress(base64.b64decode(read["data"]))
    read["data"] = base64.b64encode(zstandard.compress(rows_[: 576 * 4])).decode()
    read["shape"] = [1, 1, 576]
    body["usage"] |= {"prompt_tokens": 1, "total_tokens": 2}
    return body


def test_steering_is_a_text_of_json_and_never_shares_its_cache(server: FakeVllm) -> None:
    server.will(whole(read_of_one_token()))
    server.will(stream(5, "a"))
    data = np.arange(4, dtype="<f4").tobytes()
    steering = (
        Steering(
            layers=(3, 1), data=data, dtype="float32", shape=(2, 2), scale=2.0, norm_match=True
        ),
        Steering(layers=(0,), data=b"\0\1\2\3", dtype="bfloat16", shape=(1, 2)),
    )
    assert isinstance(ask(server, request(steering=steering))[-1], Finished)
    probe = server.next().body
    assert (probe["prompt"], probe["max_tokens"], probe["stream"]) == ([[504]], 1, False)
    assert probe["cache_salt"] == "r1-probe"
    assert probe["vllm_xargs"]["output_residual_stream"] == [3]
    body = server.next().body
    assert body["vllm_xargs"] == {
        "apply_steering_vectors": probe["vllm_xargs"]["apply_steering_vectors"]
    }
    assert body["cache_salt"] == "r1"
    assert body["stream"] is True
    first, second = json.loads(body["vllm_xargs"]["apply_steering_vectors"])
    assert first == {
        "activations": {
            "data": base64.b64encode(data).decode(),
            "dtype": "float32",
            "original_dtype": "torch.float32",
            "shape": [2, 2],
        },
        "layer_indices": [3, 1],
        "scale": 2.0,
        "norm_match": True,
        "position_indices": None,
    }
    assert second["activations"]["dtype"] == "int16"
    assert second["activations"]["original_dtype"] == "torch.bfloat16"


VECTOR = Steering(layers=(2,), data=b"\0" * 8, dtype="float32", shape=(1, 2))


def test_a_server_that_would_answer_unsteered_is_found_out(server: FakeVllm) -> None:
    silent = read_of_one_token()
    del silent["activations"]
    server.will(whole(silent))
    (failed,) = ask(server, request(steering=(VECTOR,)))
    assert isinstance(failed, Failed)
    assert failed.message == (
        "Inference's answer does not fit the request: its server applies no steering vectors."
    )
    assert failed.request_id == "r1"
    server.next()
    assert server.seen.empty()


def test_a_server_that_steered_lately_is_not_probed_again(server: FakeVllm) -> None:
    server.will(whole(read_of_one_token()))
    server.will(stream(5, "a"))
    server.will(stream(5, "a"))

    async def run() -> list[Event]:
        client, last = VllmClient(), []
        for _ in range(2):
            asked = request(steering=(VECTOR,))
            async with client.complete(model(server), asked, Patience(start=5, gap=5)) as events:
                last.append([event async for event in events][-1])
        await client.close()
        return last

    assert all(isinstance(last, Finished) for last in asyncio.run(run()))
    assert [server.next().body["request_id"] for _ in range(3)] == ["r1-probe", "r1", "r1"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "steering": (
                    Steering(
                        layers=(0,), data=b"\0" * 8, dtype="float32", shape=(1, 2), positions=(1,)
                    ),
                )
            },
            "apply_steering_vectors",
        ),
        ({"read_layers": (0,), "n": 2}, "output_residual_stream"),
        ({"read_layers": (0,), "prompts": ((1,), (2,))}, "output_residual_stream"),
    ],
)
def test_what_vllm_lens_does_wrongly_is_never_sent(server: FakeVllm, fields, param) -> None:
    (failed,) = ask(server, request(**fields))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == (FailureCode.INVALID_REQUEST, param)
    assert server.seen.empty()


@pytest.mark.row("C-113", "C-213")
@pytest.mark.parametrize(
    "rest",
    [b"", chunk("b", finish="length"), chunk("b", finish="length") + usage(5, 2), b"data: {"],
)
def test_a_stream_without_its_end_is_incomplete(server: FakeVllm, rest: bytes) -> None:
    server.will(head() + chunk("a") + rest)
    failed = failure(ask(server, request()))
    assert failed.code is FailureCode.INCOMPLETE
    assert failed.message == "Inference ended the stream before it was complete."


def test_a_whole_answer_that_breaks_off_is_incomplete(server: FakeVllm) -> None:
    server.will(whole(with_ids("prompt_logprobs5", [7042, 30]))[:-20])
    failed = failure(ask(server, request(prompt_logprobs=5)))
    assert failed.code is FailureCode.INCOMPLETE


@pytest.mark.parametrize(
    "answer",
    [
        head() + chunk("a", finish="stop") + DONE,
        head() + chunk("a", finish="stop") + usage(5, 2) + DONE,
        head() + chunk("a", finish="stop") + usage(4, 1) + DONE,
        head() + chunk("a", token_ids=None, finish="stop") + usage(5, 1) + DONE,
        head() + chunk("a", index=-1, finish="stop") + usage(5, 1) + DONE,
        head() + event("data: what") + DONE,
    ],
    ids=["no usage", "generated", "prompt", "no ids", "index", "no json"],
)
def test_an_answer_that_contradicts_itself_does_not_fit(server: FakeVllm, answer: bytes) -> None:
    server.will(answer)
    failed = failure(ask(server, request()))
    assert failed.message.startswith("Inference's answer does not fit the request: ")


@pytest.mark.parametrize("told", ["missing", "another token", "text"])
def test_wrong_log_probabilities_do_not_fit(server: FakeVllm, told: str) -> None:
    name = {"missing": "", "another token": "token_id:8", "text": "token_id:7"}[told]
    top = {"x" if told == "text" else name: -1.0}
    lists = {"tokens": [name], "token_logprobs": [-1.0], "top_logprobs": [top]}
    logprobs = None if told == "missing" else lists
    server.will(head() + chunk("a", logprobs=logprobs, finish="stop") + usage(5, 1) + DONE)
    failed = failure(ask(server, request(logprobs=0)))
    assert failed.message.startswith("Inference's answer does not fit the request: ")


def test_an_error_inside_of_a_stream(server: FakeVllm) -> None:
    server.will(recorded("lens_err_stream_bad"))
    failed = failure(ask(server, request()))
    assert failed.code is FailureCode.INVALID_REQUEST
    assert "must match len(layer_indices)" in failed.message


@pytest.mark.row("C-108")
def test_the_first_token_and_each_gap_have_a_time(server: FakeVllm) -> None:
    for steps in ([Hold()], [head(), Hold()]):
        server.will(*steps)
        failed = failure(ask(server, request(), start=0.2))
        assert failed.code is FailureCode.DEADLINE
        assert server.next().gone.wait(5)
    server.will(head(), chunk("a"), Hold())
    events = ask(server, request(), gap=0.2)
    assert [type(event) for event in events] == [Accepted, Delta, Failed]
    assert failure(events).code is FailureCode.DEADLINE
    assert server.next().gone.wait(5)


def test_leaving_closes_the_connection(server: FakeVllm) -> None:
    server.will(head(), chunk("a"), Hold())

    async def run() -> None:
        client = VllmClient()
        async with client.complete(model(server), request(), Patience(start=5, gap=5)) as events:
            assert isinstance(await anext(events), Accepted)
            assert isinstance(await anext(events), Delta)
        assert await asyncio.to_thread(server.next().gone.wait, 5)
        await client.close()

    asyncio.run(run())


# Large answers


def whole_vocabulary(tokens: int, vocabulary: int) -> dict:
    """An answer with every token's log probability at each position of a prompt of zeros."""
    position = {
        str(i): {"logprob": -float(i), "rank": i + 1, "decoded_token": '}, "5'}
        for i in range(vocabulary)
    }
    body = with_ids("prompt_logprobs5_single_token", [29])
    body["choices"][0]["prompt_logprobs"] = [None] + [position] * (tokens - 1)
    body["usage"] = {"prompt_tokens": tokens, "completion_tokens": 1}
    return body


@pytest.mark.row("C-234")
def test_a_large_answer_is_read_beside_the_process(server: FakeVllm, monkeypatch) -> None:
    asked = request(((0,) * 5,), max_tokens=1, prompt_logprobs=-1)
    body = whole_vocabulary(5, 9000)
    kept = []
    monkeypatch.setattr(Reading, "whole", lambda self, file: pytest.fail("read in the process"))
    for limit in (READ_HERE_BYTES, 2**30):
        monkeypatch.setattr(vllm, "READ_HERE_BYTES", limit)
        server.will(whole(body))
        kept.append(ask(server, asked, vocab_size=9000))
        monkeypatch.undo()
    (_, apart, end), (_, here, same_end) = kept
    assert isinstance(apart, Delta)
    assert isinstance(here, Delta)
    assert rows(apart.prompt_logprobs) == rows(here.prompt_logprobs)
    assert rows(apart.prompt_logprobs)[3][8999] == (-8999.0, 9000)
    assert replace(apart, prompt_logprobs=None) == replace(here, prompt_logprobs=None)
    assert (apart.seq, end) == (1, same_end)


def test_a_large_answer_to_another_request_does_not_fit(server: FakeVllm) -> None:
    server.will(whole(whole_vocabulary(5, 9000)))
    failed = failure(ask(server, request(((0,) * 4,), 1, prompt_logprobs=-1), vocab_size=9000))
    assert "log probabilities of the prompt are missing" in failed.message


def test_a_large_answer_whose_reader_dies_is_incomplete(server: FakeVllm, monkeypatch) -> None:
    monkeypatch.setattr(vllm_apart.sys, "executable", "/bin/false")
    server.will(whole(whole_vocabulary(5, 9000)))
    failed = failure(ask(server, request(((0,) * 5,), 1, prompt_logprobs=-1), vocab_size=9000))
    assert failed.code is FailureCode.INCOMPLETE


def test_a_reader_ends_with_who_asked(tmp_path: Path) -> None:
    """It has its job, whose answer is too long to read, when its input is closed."""
    answer = tmp_path / "answer"
    answer.write_text(json.dumps(whole_vocabulary(40, 9000)))
    with answer.open("rb") as file, (tmp_path / "events").open("wb") as events:
        files = (file.fileno(), events.fileno())
        child = subprocess.Popen(
            [sys.executable, "-m", "inference.backends.vllm_apart"],
            cwd=ROOT,
            pass_fds=files,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        asked = request(((0,) * 40,), 1, prompt_logprobs=-1)
        job = msgspec.msgpack.encode(vllm_apart.Job(asked, Facts(9000, "float32"), 0, *files))
        child.communicate(len(job).to_bytes(4, "big") + job, timeout=20)
    assert child.returncode == 1


# Credentials and certificates


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    path.write_bytes(
        made.public_bytes(Encoding.PEM)
        + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return path


def with_settings(settings, **changes: object) -> None:
    settings.BASALT = settings.BASALT.model_copy(update=changes)


def test_a_key_goes_to_the_server_of_its_model_alone(server: FakeVllm, settings) -> None:
    with_settings(settings, vllm_keys={"smollm2": SecretStr("far-secret"), "x": SecretStr("no")})
    server.will(stream(5, "a"))
    ask(server, request(), id="smollm2")
    assert server.next().headers["authorization"] == "Bearer far-secret"
    server.will(stream(5, "a"))
    ask(server, request(), id="another")
    assert "authorization" not in server.next().headers
    assert "far-secret" not in repr(settings.BASALT)


@pytest.mark.parametrize("trusted", [True, False])
def test_the_certificate_of_a_server_is_checked(certificate: Path, settings, trusted: bool) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    if trusted:
        with_settings(settings, vllm_ca_file=certificate)
    with fake_vllm(tls) as server:
        server.will(stream(5, "a", "b"))
        events = ask(server, request())
        if trusted:
            assert isinstance(events[-1], Finished)
            return
        assert failure(events).code is FailureCode.UNREACHABLE
        assert server.seen.empty()
