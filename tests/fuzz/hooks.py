"""Hooks of Schemathesis: requests that reach the engine, and the contract's own schemas.

Schemathesis loads this module by SCHEMATHESIS_HOOKS, in a process without Django.
"""

import json
import os
import re
import zlib
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response

from tests.contract.wire import check_answer, conform

SERVED = ("tiny", "basalt/tiny-llama")
VOCABULARY = 384
FITTING = 64
"""Tokens that always fit the context of the tiny model."""
UUID = re.compile(
    "(?i:[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|[0-]{36}|[f-]{36})"
)
CHOICE_FIELDS = {"index", "text", "logprobs", "finish_reason", "stop_reason"}
"""Of a chunk."""


def every_second(value: object) -> bool:
    """The same for the same value, so that a failure can be repeated."""
    return zlib.crc32(repr(value).encode()) % 2 == 0


OBJECTS: dict[str, list[dict[str, str]]] = json.loads(os.environ["FUZZ_OBJECTS"])
"""Parameters of paths to objects that are there, by the beginning of the path."""


def of_completion(context: HookContext) -> bool:
    """Whether the body of the operation is one of a Completion."""
    return context.operation is None or context.operation.path in (
        "/v1/completions",
        "/v1/completion-jobs",
    )


@schemathesis.hook
def map_query(context: HookContext, query: Any) -> Any:
    """Wait for a harvest for a moment only."""
    if query and isinstance(query.get("wait"), int | float):
        query["wait"] = min(query["wait"], 0.1)
    return query


@schemathesis.hook
def map_path_parameters(context: HookContext, path_parameters: Any) -> Any:
    """Every second name of a model is one that is served, and every second object is there.

    An id that is no UUID stays as it is: it has to be refused.
    """
    if path_parameters and context.operation is not None:
        for start, there in OBJECTS.items():
            valid = context.operation.path.startswith(start) and all(
                UUID.fullmatch(str(value)) for value in path_parameters.values()
            )
            if valid and every_second(path_parameters):
                chosen = there[zlib.crc32(repr(path_parameters).encode()) % len(there)]
                path_parameters |= {name: chosen[name] for name in path_parameters}
    if path_parameters and "model_id" in path_parameters:
        name = path_parameters["model_id"]
        if every_second(name):
            path_parameters["model_id"] = SERVED[every_second((name,))]
    return path_parameters


@schemathesis.hook
def map_headers(context: HookContext, headers: Any) -> Any:
    """Keep every second Idempotency-Key: a random one often stands twice, which is refused.

    One that is too long, or empty, stays: it has to be refused.
    """
    for name in [name for name in headers or () if name.lower() == "idempotency-key"]:
        if 1 <= len(headers[name]) <= 255 and every_second(headers[name]):
            del headers[name]
    return headers


@schemathesis.hook
def map_body(context: HookContext, body: Any) -> Any:
    """Change valid values that would end most requests before they reach the engine.

    A random name of a model is never served, random ids are not in the vocabulary, a random
    `max_tokens` never fits the context, and random fields exclude each other. What is not valid
    stays as it is, and so does every second body.
    """
    if not isinstance(body, dict) or not every_second(body):
        return body
    if not of_completion(context):
        if isinstance(body.get("model"), str) and "\0" not in body["model"]:
            body["model"] = SERVED[0]
        return body
    model = body.get("model")
    if isinstance(model, str) and "\0" not in model:
        del body["model"]
    if _whole(body.get("max_tokens"), 1, 32_000):
        body["max_tokens"] = body["max_tokens"] % FITTING + 1
    if _whole(body.get("n"), 1, 128):
        body["n"] = body["n"] % 3 + 1
    if body.get("max_tokens") is None:
        body["max_tokens"] = 2
    if "prompt" in body:
        body["prompt"] = _prompt(body["prompt"])
    _settle_conflicts(body)
    return body


def _whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _prompt(value: object) -> object:
    """Ids of the vocabulary in place of others, and a text in place of nothing."""
    if value in ("", [], [""], [[]]):
        return "Hello"
    if isinstance(value, list) and value:
        if all(type(each) is int for each in value):
            return [each % VOCABULARY for each in value][:FITTING]
        if all(isinstance(each, list) for each in value):
            return [_prompt(each) for each in value][:3]
    return value


def _settle_conflicts(body: dict[str, Any]) -> None:
    """Keep one of two fields that exclude each other."""
    if isinstance(body.get("stream_options"), dict):
        body["stream"] = True
    if body.get("stream") is True and _whole(body.get("prompt_logprobs"), -1, 100):
        del body["prompt_logprobs"]
    reads = body.get("output_residual_stream")
    if reads is True or (isinstance(reads, list) and all(_whole(each, 0, 10**9) for each in reads)):
        body["output_residual_stream"] = True if reads is True else [each % 4 for each in reads]
        if _whole(body.get("n"), 2, 128):
            del body["n"]


@schemathesis.check
def contract_conformance(context: CheckContext, response: Response, case: Case) -> None:
    """The answer is one of the contract's for this path, whatever the served document says."""
    method, path = response.request.method, response.request.path_url.partition("?")[0]
    headers = {name.lower(): values[0] for name, values in response.headers.items()}
    check_answer(str(method), path, response.status_code, headers, response.content)
    if headers.get("content-type", "").startswith("text/event-stream"):
        check_stream(response.content.decode())


def check_stream(text: str) -> None:
    """Each event is a chunk or an error of the contract, and the last one is `[DONE]`."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1:] == ["[DONE]"], f"the stream ends with {text[-300:]!r}"
    for event in map(json.loads, data[:-1]):
        if event.get("object") == "loom.node":
            conform(event, "Node")
            continue
        if "error" in event:
            conform(event, "ErrorResponse")
            continue
        assert event.get("object") == "text_completion", f"an event is {event}"
        for choice in event["choices"]:
            assert set(choice) == CHOICE_FIELDS, f"a choice has {sorted(choice)}"
            if choice["logprobs"] is not None:
                conform(choice["logprobs"], "Logprobs")
        if "usage" in event:
            conform(event["usage"], "CompletionUsage")
        if "activations" in event:
            conform(event["activations"], "Activations")
