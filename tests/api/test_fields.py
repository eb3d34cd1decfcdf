"""Section 5: the fields of a Completion and what is said of those that do not fit.

Types and ranges are one function, tried without a server; one test shows that the route uses it.
"""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from api.bodies import CompletionPayload, completion_request
from api.harvest_bodies import HarvestPayload
from api.json_body import read_json
from api.loom_bodies import LoomFilePayload
from completions.failures import Failure
from completions.request import CompletionRequest
from inference.engine.messages import Sampling

PROMPT = {"prompt": "a"}
STEERING = "apply_steering_vectors"
NUL = "A text cannot hold the character U+0000 (NUL)."
SURROGATE = "A text cannot hold half of a surrogate pair."
PROMPT_TYPE = (
    "Invalid type for 'prompt': expected a string, a list of integers, a list of strings, or a "
    "list of lists of integers."
)


def read(**fields: object) -> CompletionRequest:
    return completion_request(read_json(json.dumps(PROMPT | fields).encode()))


def refusal(body: object) -> Failure:
    with pytest.raises(Failure) as raised:
        completion_request(read_json(json.dumps(body).encode()))
    failure = raised.value
    assert failure.status == 400
    assert failure.code == "invalid_request"
    assert failure.type.value == "invalid_request_error"
    return failure


def number(name: str, *, nullable: bool = False) -> str:
    return f"Invalid type for '{name}': expected a number{' or null' if nullable else ''}."


def boolean(name: str) -> str:
    return f"Invalid type for '{name}': expected a boolean."


def least(name: str, bound: object) -> str:
    return f"Invalid value for '{name}': expected a value greater than or equal to {bound}."


def above(name: str, bound: object) -> str:
    return f"Invalid value for '{name}': expected a value greater than {bound}."


def most(name: str, bound: object) -> str:
    return f"Invalid value for '{name}': expected a value less than or equal to {bound}."


# Defaults


@pytest.mark.row("C-140", "C-139")
def test_only_a_prompt_is_needed_and_the_rest_has_its_default():
    assert read() == CompletionRequest(
        model=None,
        prompts=("a",),
        max_tokens=None,
        n=1,
        stop=(),
        echo=False,
        add_special_tokens=True,
        sampling=Sampling(
            temperature=1,
            top_p=1,
            top_k=0,
            min_p=0,
            presence_penalty=0,
            frequency_penalty=0,
            repetition_penalty=1,
            seed=None,
        ),
        logprobs=None,
        prompt_logprobs=None,
        priority=0,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        read_layers=None,
        steering=(),
    )


OPTIONAL = [
    "model",
    "max_tokens",
    "temperature",
    "n",
    "echo",
    "logprobs",
    "prompt_logprobs",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "priority",
    "user",
    "add_special_tokens",
]


@pytest.mark.row("C-141", "C-138")
@pytest.mark.parametrize("name", OPTIONAL)
def test_null_counts_as_left_out(name):
    assert read(**{name: None}) == read()


@pytest.mark.row("C-142", "C-140")
def test_every_setting_reaches_inference_with_its_value(caller, scripted):
    body = {
        "prompt": [5, 6],
        "max_tokens": 3,
        "temperature": 0.5,
        "n": 2,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.2,
        "seed": 42,
        "stop": ["x", "y"],
        "priority": 3,
        "user": "somebody",
        "logprobs": 2,
        "prompt_logprobs": 1,
    }
    scripted.answers = ("x",)
    assert caller.client.post("/v1/completions", json=body | {"logprobs": None}).status_code == 200
    scripted.answers = None
    from tests.live import InBackground

    request = InBackground(caller.client, body)
    sent = scripted.next()
    assert sent.request.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=1.5,
        repetition_penalty=1.2,
        seed=42,
    )
    assert sent.request.prompts == ((5, 6),)
    assert sent.request.stopping.texts == ("x", "y")
    assert (sent.request.max_tokens, sent.request.n) == (3, 2)
    assert (sent.request.logprobs, sent.request.prompt_logprobs) == (2, 1)
    assert sent.request.priority == 3
    request.leave()
    defaults = InBackground(caller.client, {"prompt": [5], "max_tokens": 1, "temperature": None})
    assert scripted.next().request.sampling == Sampling()
    defaults.leave()


# What is taken


@pytest.mark.row(
    "C-146",
    "C-147",
    "C-149",
    "C-150",
    "C-151",
    "C-152",
    "C-153",
    "C-154",
    "C-155",
    "C-156",
    "C-157",
    "C-158",
    "C-159",
    "C-161",
    "C-175",
)
@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"prompt": "abc"}, "prompts", ("abc",)),
        ({"prompt": [1, 2]}, "prompts", ((1, 2),)),
        ({"prompt": [1.0, 2]}, "prompts", ((1, 2),)),
        ({"prompt": ["a", "b"]}, "prompts", ("a", "b")),
        ({"prompt": [[1], [2, 3]]}, "prompts", ((1,), (2, 3))),
        ({"prompt": ""}, "prompts", ("",)),
        ({"prompt": "é\U0001f336"}, "prompts", ("é\U0001f336",)),
        ({"model": "x"}, "model", "x"),
        ({"max_tokens": 32000}, "max_tokens", 32000),
        ({"max_tokens": 2.0}, "max_tokens", 2),
        ({"n": 128}, "n", 128),
        ({"echo": True}, "echo", True),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": 100}, "logprobs", 100),
        ({"prompt_logprobs": -1}, "prompt_logprobs", -1),
        ({"prompt_logprobs": 100}, "prompt_logprobs", 100),
        ({"temperature": 0}, "sampling", Sampling(temperature=0)),
        ({"temperature": 2}, "sampling", Sampling(temperature=2)),
        ({"temperature": 1}, "sampling", Sampling(temperature=1)),
        ({"top_p": 1}, "sampling", Sampling(top_p=1)),
        ({"top_p": 1e-9}, "sampling", Sampling(top_p=1e-9)),
        ({"top_k": -1}, "sampling", Sampling(top_k=-1)),
        ({"top_k": 0}, "sampling", Sampling(top_k=0)),
        ({"min_p": 0}, "sampling", Sampling(min_p=0)),
        ({"min_p": 1}, "sampling", Sampling(min_p=1)),
        ({"presence_penalty": -2}, "sampling", Sampling(presence_penalty=-2)),
        ({"presence_penalty": 2}, "sampling", Sampling(presence_penalty=2)),
        ({"frequency_penalty": -2}, "sampling", Sampling(frequency_penalty=-2)),
        ({"frequency_penalty": 2}, "sampling", Sampling(frequency_penalty=2)),
        ({"repetition_penalty": 0.001}, "sampling", Sampling(repetition_penalty=0.001)),
        ({"repetition_penalty": 50}, "sampling", Sampling(repetition_penalty=50)),
        ({"seed": 0}, "sampling", Sampling(seed=0)),
        ({"seed": 9007199254740991}, "sampling", Sampling(seed=9007199254740991)),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": []}, "stop", ()),
        ({"stop": ["1", "2", "3", "4"]}, "stop", ("1", "2", "3", "4")),
        ({"user": "somebody"}, "prompts", ("a",)),
        ({"add_special_tokens": False}, "add_special_tokens", False),
        ({"stream": True}, "stream", True),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            "include_usage",
            True,
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "continuous_usage",
            True,
        ),
        ({"stream": True, "stream_options": {}}, "include_usage", False),
        ({"stream": False, "stream_options": None}, "include_usage", False),
        ({"stream": True, "prompt_logprobs": None}, "prompt_logprobs", None),
        ({"user": "somebody"}, "user", "somebody"),
        ({"user": ""}, "user", ""),
    ],
)
def test_values_within_the_ranges_are_taken(fields, attribute, value):
    assert getattr(read(**fields), attribute) == value


@pytest.mark.row("C-161")
def test_the_user_of_a_request_changes_nothing_else():
    assert read(user=None) == read()
    assert replace(read(user="somebody"), user=None) == read()


@pytest.mark.row("C-160")
@pytest.mark.parametrize(
    ("sent", "priority"),
    [
        (None, 0),
        (False, 0),
        (True, 1),
        (0, 0),
        (7, 7),
        ("0", 0),
        ("007", 7),
        ("999999999", 999999999),
    ],
)
def test_a_priority_is_read_from_several_kinds(sent, priority):
    assert read(priority=sent).priority == priority


@pytest.mark.row("C-160")
@pytest.mark.parametrize(
    "sent", ["-1", "1.5", -1, "1234567890", 1.5, "", " 1", "１", "one", [], {}, [1]]
)
def test_another_priority_is_refused(sent):
    assert refusal(PROMPT | {"priority": sent}).param == "priority"


# What is refused, and how it reads


@pytest.mark.row("C-168", "C-169")
@pytest.mark.case("W04")
@pytest.mark.parametrize(
    "name",
    [
        "temprature",
        "best_of",
        "suffix",
        "logit_bias",
        "extra_body",
        "return_token_ids",
        "messages",
        "metadata",
        "__proto__",
        "",
        "Prompt",
    ],
)
def test_an_unknown_field_is_named(name):
    failure = refusal(PROMPT | {name: None})
    assert failure.message == f"Unknown parameter: '{name}'."
    assert failure.param == name


MANY = dict.fromkeys(map(str, range(1000)), 1)


@pytest.mark.parametrize(
    ("payload", "body", "named"),
    [
        (CompletionPayload, PROMPT | MANY, "0"),
        (CompletionPayload, PROMPT | {"stream_options": {"include_usage": True} | MANY}, "0"),
        (CompletionPayload, PROMPT | {STEERING: [MANY]}, "0"),
        (CompletionPayload, PROMPT | {STEERING: [{"layer_indices": ["a"] * 1000}]}, 0),
        (HarvestPayload, MANY, "0"),
        (LoomFilePayload, {"nodes": [MANY]}, "0"),
        (LoomFilePayload, {"nodes": [1] * 1000}, 0),
        (LoomFilePayload, {"nodes": [{"id": "a", "logprobs": [{}] * 1000}]}, "token"),
    ],
)
def test_a_thousand_faults_of_one_kind_are_written_down_once(payload, body, named):
    """A body of many megabytes must not become a report of gigabytes."""
    with pytest.raises(ValidationError) as raised:
        payload.model_validate(body)
    faults = raised.value.errors()
    assert len(faults) < 10
    assert named in [fault["loc"][-1] for fault in faults]


@pytest.mark.row("C-168")
def test_an_unknown_field_is_told_before_a_wrong_one():
    assert refusal({"temperature": "x", "temprature": 1}).param == "temprature"


@pytest.mark.row("C-162", "C-170", "C-059")
def test_an_unknown_field_of_an_object_is_named_with_its_path():
    failure = refusal(PROMPT | {"stream": True, "stream_options": {"usage": True}})
    assert failure.message == "Unknown parameter: 'stream_options.usage'."
    assert failure.param == "stream_options"


BAD = [
    ({}, "prompt", "Missing required parameter: 'prompt'."),
    ({"prompt": None}, "prompt", PROMPT_TYPE),
    ({"prompt": 5}, "prompt", PROMPT_TYPE),
    ({"prompt": {}}, "prompt", PROMPT_TYPE),
    ({"prompt": True}, "prompt", PROMPT_TYPE),
    ({"prompt": [True]}, "prompt", PROMPT_TYPE),
    ({"prompt": [1.5]}, "prompt", PROMPT_TYPE),
    ({"prompt": [1, "a"]}, "prompt", PROMPT_TYPE),
    ({"prompt": ["a", 1]}, "prompt", PROMPT_TYPE),
    ({"prompt": ["19556", 905]}, "prompt", PROMPT_TYPE),
    ({"prompt": [[1], "a"]}, "prompt", PROMPT_TYPE),
    ({"prompt": [[1], 2]}, "prompt", PROMPT_TYPE),
    ({"prompt": [["a"]]}, "prompt", PROMPT_TYPE),
    ({"prompt": [None]}, "prompt", PROMPT_TYPE),
    ({"prompt": []}, "prompt", None),
    ({"prompt": "a\0b"}, "prompt", NUL),
    ({"prompt": ["a", "\0"]}, "prompt", NUL),
    ({"prompt": "a\ud83d b"}, "prompt", SURROGATE),
    ({"prompt": ["a", "\udc00"]}, "prompt", SURROGATE),
    (PROMPT | {"model": 5}, "model", "Invalid type for 'model': expected a string."),
    (PROMPT | {"model": "a\0"}, "model", NUL),
    (PROMPT | {"model": "\ud800"}, "model", SURROGATE),
    (PROMPT | {"user": 5}, "user", "Invalid type for 'user': expected a string or null."),
    (PROMPT | {"user": "\0"}, "user", NUL),
    (PROMPT | {"user": "\udfff"}, "user", SURROGATE),
    (PROMPT | {"max_tokens": 32001}, "max_tokens", most("max_tokens", 32000)),
    (PROMPT | {"max_tokens": 10**30}, "max_tokens", most("max_tokens", 32000)),
    (PROMPT | {"max_tokens": 999999999}, "max_tokens", most("max_tokens", 32000)),
    (PROMPT | {"max_tokens": 1.5}, "max_tokens", number("max_tokens")),
    (PROMPT | {"max_tokens": "10"}, "max_tokens", number("max_tokens")),
    (PROMPT | {"max_tokens": True}, "max_tokens", number("max_tokens")),
    (PROMPT | {"max_tokens": [1]}, "max_tokens", number("max_tokens")),
    (PROMPT | {"n": 129}, "n", most("n", 128)),
    (PROMPT | {"n": True}, "n", number("n")),
    (PROMPT | {"n": "2"}, "n", number("n")),
    (PROMPT | {"n": 2.5}, "n", number("n")),
    (PROMPT | {"temperature": 2.01}, "temperature", most("temperature", 2)),
    (PROMPT | {"temperature": -0.1}, "temperature", least("temperature", 0)),
    (PROMPT | {"temperature": "1"}, "temperature", number("temperature")),
    (PROMPT | {"temperature": True}, "temperature", number("temperature")),
    (PROMPT | {"temperature": 10**400}, "temperature", None),
    (PROMPT | {"top_p": 0}, "top_p", above("top_p", 0)),
    (PROMPT | {"top_p": 1.1}, "top_p", most("top_p", 1)),
    (PROMPT | {"top_k": -2}, "top_k", least("top_k", -1)),
    (PROMPT | {"top_k": 0.5}, "top_k", number("top_k")),
    (PROMPT | {"min_p": -0.01}, "min_p", least("min_p", 0)),
    (PROMPT | {"min_p": 1.01}, "min_p", most("min_p", 1)),
    (PROMPT | {"presence_penalty": -2.1}, "presence_penalty", least("presence_penalty", -2)),
    (PROMPT | {"presence_penalty": 2.1}, "presence_penalty", most("presence_penalty", 2)),
    (PROMPT | {"frequency_penalty": -2.1}, "frequency_penalty", least("frequency_penalty", -2)),
    (PROMPT | {"frequency_penalty": 2.1}, "frequency_penalty", most("frequency_penalty", 2)),
    (PROMPT | {"repetition_penalty": 0}, "repetition_penalty", above("repetition_penalty", 0)),
    (PROMPT | {"seed": -1}, "seed", least("seed", 0)),
    (PROMPT | {"seed": 2**53}, "seed", most("seed", 9007199254740991)),
    (PROMPT | {"seed": 1.5}, "seed", number("seed", nullable=True)),
    (PROMPT | {"seed": "1"}, "seed", number("seed", nullable=True)),
    (PROMPT | {"logprobs": -1}, "logprobs", least("logprobs", 0)),
    (PROMPT | {"logprobs": 101}, "logprobs", most("logprobs", 100)),
    (PROMPT | {"logprobs": True}, "logprobs", number("logprobs", nullable=True)),
    (PROMPT | {"logprobs": "2"}, "logprobs", number("logprobs", nullable=True)),
    (PROMPT | {"prompt_logprobs": -2}, "prompt_logprobs", least("prompt_logprobs", -1)),
    (PROMPT | {"prompt_logprobs": 101}, "prompt_logprobs", most("prompt_logprobs", 100)),
    (PROMPT | {"prompt_logprobs": []}, "prompt_logprobs", number("prompt_logprobs", nullable=True)),
    (PROMPT | {"echo": "false"}, "echo", boolean("echo")),
    (PROMPT | {"echo": 1}, "echo", boolean("echo")),
    (PROMPT | {"echo": 0}, "echo", boolean("echo")),
    (PROMPT | {"stream": "true"}, "stream", boolean("stream")),
    (PROMPT | {"stream": 1}, "stream", boolean("stream")),
    (PROMPT | {"add_special_tokens": 0}, "add_special_tokens", boolean("add_special_tokens")),
    (PROMPT | {"stop": 5}, "stop", None),
    (PROMPT | {"stop": [5]}, "stop", None),
    (PROMPT | {"stop": True}, "stop", None),
    (PROMPT | {"stop": ["a"] * 5}, "stop", None),
    (PROMPT | {"stop": ""}, "stop", None),
    (PROMPT | {"stop": ["", "END"]}, "stop", None),
    (PROMPT | {"stop": "a\0"}, "stop", NUL),
    (PROMPT | {"stop": ["a", "\ud83d"]}, "stop", SURROGATE),
    (
        PROMPT | {"stream": True, "stream_options": 5},
        "stream_options",
        "Invalid type for 'stream_options': expected an object or null.",
    ),
    (
        PROMPT | {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options",
        "Invalid type for 'stream_options.include_usage': expected a boolean.",
    ),
    (PROMPT | {"stream_options": {}}, "stream_options", None),
    (PROMPT | {"stream": False, "stream_options": {"include_usage": True}}, "stream_options", None),
    (PROMPT | {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", None),
    ([], None, None),
    ("prompt", None, None),
    (5, None, None),
    (None, None, None),
]


@pytest.mark.row(
    "C-059",
    "C-065",
    "C-114",
    "C-139",
    "C-146",
    "C-147",
    "C-149",
    "C-150",
    "C-151",
    "C-152",
    "C-153",
    "C-154",
    "C-155",
    "C-156",
    "C-157",
    "C-158",
    "C-159",
    "C-161",
    "C-162",
    "C-163",
    "C-164",
    "C-171",
    "C-172",
    "C-173",
    "C-174",
    "C-175",
    "C-228",
)
@pytest.mark.case("W02", "T05", "T10")
@pytest.mark.parametrize(("body", "param", "message"), BAD, ids=lambda value: repr(value)[:50])
def test_a_wrong_field_is_named_with_what_is_expected(body, param, message):
    failure = refusal(body)
    assert failure.param == param
    if message is not None:
        assert failure.message == message
    assert failure.message


@pytest.mark.row("C-064", "C-065", "C-176")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt": "a", "n": 0, "max_tokens": 1}, "n"),
        ({"prompt": "a", "n": -1, "max_tokens": 1}, "n"),
        ({"prompt": ["a"] * 5, "n": 26, "max_tokens": 1}, "n"),
        ({"prompt": "a", "n": 2}, "max_tokens"),
        ({"prompt": ["a", "b"]}, "max_tokens"),
        ({"prompt": "a", "n": 2, "temperature": 0, "max_tokens": 1}, "n"),
        ({"prompt": "a", "n": 2, "temperature": 0.000009, "max_tokens": 1}, "n"),
        ({"prompt": [[]], "max_tokens": 1}, "prompt"),
        ({"prompt": [5, 384], "max_tokens": 1}, "prompt"),
        ({"prompt": [-1], "max_tokens": 1}, "prompt"),
        ({"prompt": [5279552648203111001], "max_tokens": 1}, "prompt"),
        ({"prompt": [10**30], "max_tokens": 1}, "prompt"),
        ({"prompt": "\ud83d", "max_tokens": 1}, "prompt"),
    ],
)
@pytest.mark.case("E01", "E02")
def test_a_refusal_reaches_neither_the_tokens_nor_inference(caller, scripted, body, param):
    from billing.models import Hold

    answer = caller.client.post("/v1/completions", content=json.dumps(body).encode())
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert set(error) == {"message", "type", "param", "code"}
    assert not Hold.objects.filter(user_id=caller.user_id).exists()
    assert scripted.asked.empty()


@pytest.mark.row("C-148")
def test_several_choices_need_max_tokens_and_run_with_it(caller, scripted):
    scripted.answers = ("x",)
    one = caller.client.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 1})
    two = caller.client.post("/v1/completions", json={"prompt": "a", "n": 2, "max_tokens": 1})
    assert (one.status_code, two.status_code) == (200, 200)


@pytest.mark.row("C-165")
def test_several_choices_at_the_least_temperature_pass(caller, scripted):
    scripted.answers = ("x",)
    body = {"prompt": "a", "n": 2, "temperature": 0.00001, "max_tokens": 1}
    assert caller.client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.row("C-177")
def test_the_last_id_of_the_vocabulary_is_taken(caller, scripted):
    scripted.answers = ("x",)
    body = {"prompt": [383], "max_tokens": 1}
    assert caller.client.post("/v1/completions", json=body).status_code == 200
    answer = caller.client.post("/v1/completions", json={"prompt": [384], "max_tokens": 1})
    assert answer.json()["error"]["message"] == "Token id 384 is out of vocabulary"
