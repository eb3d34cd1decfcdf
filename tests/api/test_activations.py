"""Section 9: what a read answers, and what becomes of an answer without the read it owes."""

import json
import tracemalloc

import httpx
import numpy as np
import pytest

from billing.models import Hold
from completions.activations import activation_pieces
from inference.engine.messages import FailureCode, Residuals
from tests.api.tensors import decode
from tests.contract.wire import conform
from tests.live import InBackground, events, eventually

HIDDEN, LAYERS = 64, 4
BODY = {"prompt": [5, 6, 7], "max_tokens": 2, "output_residual_stream": [3, 1]}
STREAM = BODY | {"stream": True}
FIT = "Inference's answer does not fit the request: "


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def residuals(array: np.ndarray, dtype: str = "float32") -> Residuals:
    return Residuals(shape=array.shape, dtype=dtype, data=array.tobytes())


def answer_with(request: InBackground, scripted, found: Residuals | None) -> None:
    """Two tokens and an end with these residuals; the second token is the last."""
    asked = scripted.next()
    asked.say("one")
    asked.say(" two", finish="length")
    asked.finish(residuals=found)
    request.done()


# The answer


@pytest.mark.row("C-193", "C-242", "C-243", "C-244", "C-245", "C-246", "C-054")
def test_an_answer_has_what_was_read(caller, scripted):
    request = InBackground(caller.client, BODY)
    array = rows(2, 4, HIDDEN)
    answer_with(request, scripted, residuals(array))
    body = request.json()
    conform(body, "Completion")
    assert request.status == 200
    assert request.headers["content-type"] == "application/json"
    assert body["choices"][0]["text"] == "one two"
    used = body["usage"]
    assert body["activations"]["residual_stream"]["shape"] == [
        2,
        used["prompt_tokens"] + used["completion_tokens"] - 1,
        HIDDEN,
    ]
    assert np.array_equal(decode(body["activations"]), array)


@pytest.mark.row("C-209", "C-667", "C-203")
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_ends_with_what_was_read(caller, scripted, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    request = InBackground(caller.client, STREAM | options)
    array = rows(2, 4, HIDDEN)
    answer_with(request, scripted, residuals(array))
    chunks = events(request.text)
    assert chunks[-1] == "[DONE]"
    assert len(chunks) == 4 + usage
    *others, last = chunks[:-1]
    assert set(last) == {"id", "object", "created", "model", "choices", "activations"}
    assert last["choices"] == []
    assert np.array_equal(decode(last["activations"]), array)
    assert not any("activations" in chunk for chunk in others)
    assert [chunk["choices"][0]["text"] for chunk in others[:2]] == ["one", " two"]
    assert ("usage" in others[-1]) is usage
    for name in ("id", "object", "created", "model"):
        assert len({chunk[name] for chunk in chunks[:-1]}) == 1


@pytest.mark.row("C-247", "C-248", "C-665")
@pytest.mark.parametrize(
    ("field", "layers"),
    [([3, 1, 3], (1, 3)), ([0], (0,)), (True, (0, 1, 2, 3)), ([2.0], (2,))],
    ids=str,
)
def test_each_layer_is_read_once_ascending(caller, scripted, field, layers):
    request = InBackground(caller.client, BODY | {"output_residual_stream": field})
    asked = scripted.next()
    assert asked.request.read_layers == layers
    array = rows(len(layers), 3, HIDDEN)
    asked.say("one", finish="length")
    asked.finish(residuals=residuals(array))
    assert np.array_equal(decode(request.json()["activations"]), array)


@pytest.mark.row("C-248", "C-688", "C-193")
@pytest.mark.parametrize("field", [False, None])
@pytest.mark.parametrize("stream", [False, True])
def test_no_read_has_no_activations(caller, scripted, field, stream):
    body = BODY | {"output_residual_stream": field, "stream": stream}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    assert asked.request.read_layers == ()
    asked.answer("x")
    assert "activations" not in request.done().text


@pytest.mark.row("C-244")
def test_bfloat16_goes_out_as_the_bits_of_int16():
    array = rows(2, 3, HIDDEN)
    bits = (array.view(np.uint32) >> 16).astype(np.uint16)
    text = b"".join(activation_pieces(residuals(bits, "bfloat16")))
    activations = json.loads(text)
    conform(activations, "Activations")
    assert activations["residual_stream"]["dtype"] == "int16"
    assert activations["residual_stream"]["original_dtype"] == "torch.bfloat16"
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(decode(activations), expected)


@pytest.mark.row("C-243")
@pytest.mark.parametrize("numbers", [1, 2, 3, 3 * 2**16 - 1, 3 * 2**16, 2**20 + 5, 3 * 2**20])
def test_pieces_join_to_one_frame_whatever_the_size(numbers):
    array = rows(1, 1, numbers)
    activations = json.loads(b"".join(activation_pieces(residuals(array))))
    assert np.array_equal(decode(activations), array)


def test_a_large_read_is_never_copied_whole():
    array = rows(1, 2**10, 2**13)
    found = residuals(array)
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in activation_pieces(found))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 2**25
    assert peak < 2**23


@pytest.mark.row("C-032", "C-033", "C-034")
@pytest.mark.parametrize("zipped", [True, False])
def test_activations_are_zipped_for_who_takes_it(caller, scripted, web, zipped):
    """An answer in pieces, too, is zipped for clients that take gzip and for no others."""
    array = rows(2, 4, HIDDEN)
    headers = {**caller.client.headers, "accept-encoding": "gzip" if zipped else "identity"}
    with httpx.Client(base_url=web.address, headers=headers) as client:
        request = InBackground(client, BODY)
        answer_with(request, scripted, residuals(array))
    assert request.headers.get("content-encoding") == ("gzip" if zipped else None)
    assert np.array_equal(decode(request.json()["activations"]), array)


@pytest.mark.row("C-217", "C-219")
def test_a_late_answer_has_its_activations_after_the_spaces(narrow_caller, scripted):
    request = InBackground(narrow_caller.client, BODY | {"output_residual_stream": [2]})
    asked = scripted.next()
    eventually(lambda: request.status == 200)
    array = rows(1, 3, HIDDEN)
    asked.say("one", finish="length")
    asked.finish(residuals=residuals(array))
    request.done()
    assert request.text.startswith(" ")
    assert np.array_equal(decode(json.loads(request.text)["activations"]), array)


@pytest.mark.row("C-389")
def test_a_repeat_has_the_first_answers_activations(caller, scripted):
    headers = {**caller.client.headers, "idempotency-key": f"read-{caller.key_id}"}
    with httpx.Client(base_url=caller.client.base_url, headers=headers) as client:
        request = InBackground(client, BODY)
        answer_with(request, scripted, residuals(rows(2, 4, HIDDEN)))
        again = client.post("/v1/completions", json=BODY)
    assert again.status_code == 200
    assert again.json() == request.json()


# Answers that do not fit


BAD = {
    "absent": None,
    "fewer layers": residuals(rows(1, 4, HIDDEN)),
    "fewer tokens": residuals(rows(2, 3, HIDDEN)),
    "more tokens": residuals(rows(2, 5, HIDDEN)),
    "another width": residuals(rows(2, 4, HIDDEN - 1)),
    "another dtype": residuals(np.zeros((2, 4, HIDDEN), dtype=np.int16), "bfloat16"),
    "layers and tokens swapped": residuals(rows(4, 2, HIDDEN)),
    "too few bytes": Residuals(shape=(2, 4, HIDDEN), dtype="float32", data=bytes(4)),
}


@pytest.mark.row("C-255", "C-347")
@pytest.mark.parametrize("name", BAD)
def test_an_answer_without_its_read_is_not_passed_on_and_costs_nothing(caller, scripted, name):
    request = InBackground(caller.client, BODY)
    answer_with(request, scripted, BAD[name])
    assert request.status == 502
    error = request.json()["error"]
    assert error["code"] == "upstream_server_error"
    assert error["message"].startswith(FIT)
    assert error["retryable"] is False
    assert caller.open_holds() == 0
    assert caller.left() == 100_000


@pytest.mark.row("C-215", "C-255", "C-347", "C-212")
@pytest.mark.parametrize("name", BAD)
def test_a_stream_without_its_read_ends_with_the_error_and_pays_what_was_sent(
    caller, scripted, name
):
    request = InBackground(caller.client, STREAM | {"stream_options": {"include_usage": True}})
    answer_with(request, scripted, BAD[name])
    assert request.status == 200
    first, second, error, done = events(request.text)
    assert [chunk["choices"][0]["text"] for chunk in (first, second)] == ["one", " two"]
    assert error["error"]["code"] == "upstream_server_error"
    assert error["error"]["message"].startswith(FIT)
    assert error["error"]["request_id"] == request.headers["x-request-id"]
    assert done == "[DONE]"
    assert caller.open_holds() == 0
    assert caller.left() == 100_000 - (3 + 2)


def test_a_fault_of_one_read_harms_no_other(caller, scripted):
    bad = InBackground(caller.client, BODY)
    answer_with(bad, scripted, None)
    good = InBackground(caller.client, BODY)
    answer_with(good, scripted, residuals(rows(2, 4, HIDDEN)))
    assert (bad.status, good.status) == (502, 200)


# Refusals


REFUSED = {
    "an empty list": ({"output_residual_stream": []}, "length of at least 1"),
    "a negative layer": (
        {"output_residual_stream": [0, -1]},
        "Invalid value for 'output_residual_stream[1]': expected a value greater than or equal to",
    ),
    "a layer in a text": ({"output_residual_stream": ["1"]}, "expected a list of integers"),
    "a boolean in a list": ({"output_residual_stream": [True]}, "expected a list of integers"),
    "a number": ({"output_residual_stream": 1}, "expected a list, a boolean, or null"),
    "an unknown layer": (
        {"output_residual_stream": [4]},
        "basalt/tiny-llama has Layers 0 to 3: it has no Layer 4.",
    ),
    "two choices": (
        {"n": 2},
        "Set n to 1: activations and steering vectors are for one choice only.",
    ),
    "no choice": (
        {"n": 0},
        "Set n to 1: activations and steering vectors are for one choice only.",
    ),
    "two prompts": ({"prompt": [[5], [6]]}, "Send one prompt"),
    "two prompts without max_tokens": (
        {"prompt": ["a", "b"], "max_tokens": None},
        "Send one prompt",
    ),
    "two choices, steered": (
        {"n": 2, "apply_steering_vectors": [{"activations": [[0.0] * 64], "layer_indices": [0]}]},
        "Set n to 1: activations and steering vectors are for one choice only.",
    ),
}


@pytest.mark.row("C-166", "C-176", "C-191", "C-250", "C-251", "C-252", "C-253", "C-254")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_read_that_cannot_be_is_refused_before_anything_is_held(caller, scripted, name, stream):
    changes, message = REFUSED[name]
    answer = caller.client.post("/v1/completions", json=BODY | {"stream": stream} | changes)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_request", "invalid_request_error")
    assert error["param"] == "output_residual_stream"
    assert message in error["message"]
    assert not Hold.objects.filter(user_id=caller.user_id).exists()
    assert scripted.asked.empty()


@pytest.mark.row("C-121", "C-122", "C-186", "C-191")
def test_the_models_list_tells_how_many_tokens_a_whole_read_may_have(narrow_caller, scripted):
    """The narrow process holds a read to 600 numbers: 2 tokens of 4 Layers of 64."""
    client = narrow_caller.client
    told = client.get("/v1/models/tiny").json()["capabilities"]
    assert told["max_activation_prompt_tokens"] == 600 // (LAYERS * HIDDEN) == 2
    body = {"prompt": [5], "max_tokens": 1, "output_residual_stream": True}
    request = InBackground(client, body)
    asked = scripted.next()
    asked.say("x", finish="length")
    asked.finish(residuals=residuals(rows(LAYERS, 1, HIDDEN)))
    assert request.done().status == 200
    for over in ({"prompt": [5, 6]}, {"max_tokens": 2}, {"max_tokens": None}):
        refused = client.post("/v1/completions", json=body | over)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "output_residual_stream"
        assert refused.json()["error"]["code"] == "invalid_request"
    assert Hold.objects.filter(user_id=narrow_caller.user_id).count() == 1


@pytest.mark.row("C-183", "C-191")
def test_the_whole_vocabulary_with_a_read_is_for_16_prompt_tokens(caller, scripted):
    body = BODY | {"prompt": [5] * 17, "max_tokens": 1, "prompt_logprobs": -1}
    refused = caller.client.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt_logprobs"
    assert not Hold.objects.filter(user_id=caller.user_id).exists()
    for taken in ({"prompt": [5] * 16}, {"output_residual_stream": False}):
        request = InBackground(caller.client, body | taken)
        asked = scripted.next()
        assert asked.request.prompt_logprobs == -1
        asked.fail(FailureCode.SERVER_ERROR)
        request.done()
