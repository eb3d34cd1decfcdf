"""Section 10 over HTTP: what reaches the engine, and what is refused before anything is held."""

import numpy as np
import pytest

from billing.models import Hold
from inference.engine.messages import FailureCode
from tests.live import InBackground

HIDDEN = 64
ROW = [0.5] * HIDDEN
STEER = "apply_steering_vectors"
VECTOR = {"activations": [ROW], "layer_indices": [1]}
AT = {"activations": [[ROW]], "layer_indices": [1]}
BODY = {"prompt": [5, 6, 7, 8], "max_tokens": 2}


def reaches(position: int, prompt: int, max_tokens: int) -> str:
    """The contract's message for a position that is too far."""
    last = prompt + max_tokens - 2
    return (
        f"apply_steering_vectors steers position {position}, but the forward passes of this "
        f"request reach position {last} at most: the prompt has {prompt} tokens and max_tokens is "
        f"{max_tokens}, and the last generated token never runs through the model. Steer a "
        f"position up to {last}, or raise max_tokens."
    )


@pytest.mark.row("C-176", "C-267")
@pytest.mark.parametrize("stream", [False, True])
def test_vectors_reach_the_engine(caller, scripted, stream):
    vectors = [
        VECTOR | {"scale": 3},
        AT | {"position_indices": [4], "norm_match": True},
        VECTOR | {"position_spans": [[0, 2]]},
    ]
    request = InBackground(caller.client, BODY | {STEER: vectors, "stream": stream})
    asked = scripted.next()
    first, second, third = asked.request.steering
    assert np.frombuffer(first.data, "<f4").tolist() == ROW
    assert (first.layers, first.shape, first.scale) == ((1,), (1, HIDDEN), 3.0)
    assert (first.positions, second.positions, third.positions) == (None, (4,), (0, 1))
    assert (first.norm_match, second.norm_match) == (False, True)
    asked.answer("x")
    assert request.done().status == 200


REFUSED = {
    "no vectors": ([], "length of at least 1"),
    "nine vectors": ([VECTOR] * 9, "length of at most 8"),
    "an unknown field": (
        [VECTOR | {"scael": 1}],
        "Unknown parameter: 'apply_steering_vectors[0].scael'.",
    ),
    "rows for other layers": (
        [VECTOR | {"layer_indices": [0, 1]}],
        "activations needs one row for each layer in layer_indices.",
    ),
    "a repeated layer": ([{"activations": [ROW, ROW], "layer_indices": [1, 1]}], "Layer twice"),
    "an unknown layer": (
        [VECTOR | {"layer_indices": [4]}],
        "basalt/tiny-llama has Layers 0 to 3: it has no Layer 4.",
    ),
    "a short row": ([VECTOR | {"activations": [ROW[1:]]}], "the hidden size of basalt/tiny-llama"),
    "too large a number": ([VECTOR | {"activations": [[*ROW[1:], 1e39]]}], "3.4028235e+38"),
    "a boolean": ([VECTOR | {"activations": [[*ROW[1:], True]]}], "[0][63]': expected a number"),
    "positions of one vector": ([VECTOR | {"position_indices": [1]}], "position_indices needs"),
    "an empty span": ([VECTOR | {"position_spans": [[2, 2]]}], "after its start"),
    "an index too far": ([AT | {"position_indices": [5]}], reaches(5, 4, 2)),
    "a span too far": ([VECTOR | {"position_spans": [[0, 1], [4, 6]]}], reaches(5, 4, 2)),
    "implicit positions too far": ([AT | {"activations": [[ROW] * 6]}], reaches(5, 4, 2)),
}


@pytest.mark.row("C-176", "C-191", "C-268", "C-271", "C-273", "C-274", "C-276", "C-282", "C-283")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_vector_that_cannot_be_is_refused_before_anything_is_held(caller, scripted, name, stream):
    vectors, message = REFUSED[name]
    answer = caller.client.post("/v1/completions", json=BODY | {STEER: vectors, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_request", "invalid_request_error")
    assert error["param"] == STEER
    assert message in error["message"]
    assert not Hold.objects.filter(user_id=caller.user_id).exists()
    assert scripted.asked.empty()


@pytest.mark.row("C-270")
def test_vectors_are_for_one_choice(caller, scripted):
    message = "Set n to 1: activations and steering vectors are for one choice only."
    for changes in ({"n": 2}, {"n": 0}, {"prompt": ["a", "b"]}):
        answer = caller.client.post("/v1/completions", json=BODY | {STEER: [VECTOR]} | changes)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_request", STEER)
        assert (error["message"] == message) is ("n" in changes)
    assert not Hold.objects.filter(user_id=caller.user_id).exists()
    assert scripted.asked.empty()


@pytest.mark.row("C-282", "C-190")
def test_the_prompt_of_a_position_is_counted_with_its_start_token(caller, scripted):
    """`a` is two tokens with the start token: with one more to generate, position 1 is the last."""
    body = {"prompt": "a", "max_tokens": 1}
    refused = caller.client.post(
        "/v1/completions", json=body | {STEER: [AT | {"position_indices": [2]}]}
    )
    assert refused.json()["error"]["message"] == reaches(2, 2, 1)
    request = InBackground(caller.client, body | {STEER: [AT | {"position_indices": [1]}]})
    scripted.next().answer("x")
    assert request.done().status == 200
    bare = caller.client.post(
        "/v1/completions",
        json=body | {STEER: [AT | {"position_indices": [1]}], "add_special_tokens": False},
    )
    assert bare.json()["error"]["message"] == reaches(1, 1, 1)


@pytest.mark.row("C-282", "C-295")
@pytest.mark.parametrize("stream", [False, True])
def test_a_left_out_max_tokens_reaches_as_far_as_its_default(caller, scripted, stream):
    """The context of 512 has room for 508 tokens after the prompt: position 510 is the last."""
    body = {"prompt": [5, 6, 7, 8], "stream": stream}
    refused = caller.client.post(
        "/v1/completions", json=body | {STEER: [AT | {"position_indices": [511]}]}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == reaches(511, 4, 508)
    request = InBackground(caller.client, body | {STEER: [AT | {"position_indices": [510]}]})
    scripted.next().answer("x")
    assert request.done().status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_position_that_a_lowered_max_tokens_does_not_reach_holds_nothing(
    make_caller, scripted, stream
):
    """U-24: 10 tokens are left, so the 4 of the prompt leave 6 to generate: position 8."""
    poor = make_caller(tokens=10)
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 50, "stream": stream}
    refused = poor.client.post(
        "/v1/completions", json=body | {STEER: [AT | {"position_indices": [9]}]}
    )
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", STEER)
    assert error["message"] == reaches(9, 4, 6)
    assert not Hold.objects.filter(user_id=poor.user_id).exists()
    assert scripted.asked.empty()
    assert poor.left() == 10
    request = InBackground(poor.client, body | {STEER: [AT | {"position_indices": [8]}]})
    asked = scripted.next()
    assert asked.request.max_tokens == 6
    asked.answer("x")
    assert request.done().status == 200
    assert request.headers["x-acs-max-tokens-clamped"].startswith("requested=50,applied=6,")


@pytest.mark.row("C-284", "C-671", "C-258")
@pytest.mark.parametrize("param", ["apply_steering_vectors", "output_residual_stream"])
def test_what_inference_finds_wrong_is_passed_on(caller, scripted, param):
    body = BODY | {STEER: [VECTOR], "output_residual_stream": [1]}
    request = InBackground(caller.client, body)
    scripted.next().fail(FailureCode.INVALID_REQUEST, "no such place", param)
    error = request.json()["error"]
    assert (request.status, error["message"]) == (400, "no such place")
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert caller.left() == 100_000


@pytest.mark.row("C-122", "C-189")
def test_the_most_vectors_are_those_of_the_models_list(caller, scripted):
    most = caller.client.get("/v1/models/tiny").json()["capabilities"]["max_steering_vectors"]
    request = InBackground(caller.client, BODY | {STEER: [VECTOR] * most})
    asked = scripted.next()
    assert len(asked.request.steering) == most == 8
    asked.answer("x")
    assert request.done().status == 200
    refused = caller.client.post("/v1/completions", json=BODY | {STEER: [VECTOR] * (most + 1)})
    assert refused.status_code == 400
