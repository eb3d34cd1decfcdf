"""Hooks of Schemathesis: requests that reach the engine, and the contract's own schemas.

Schemathesis loads this module by SCHEMATHESIS_HOOKS, in a process without Django.
"""

import json
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response

from tests.contract.wire import check_answer, conform

SERVED = ("tiny", "basalt/tiny-llama")
SMALL = 64


@schemathesis.hook
def map_path_parameters(context: HookContext, path_parameters: Any) -> Any:
    """Every second name of a model is one that is served."""
    if path_parameters and len(str(path_parameters.get("model_id", ""))) % 2:
        path_parameters["model_id"] = SERVED[len(path_parameters["model_id"]) % 3 == 0]
    return path_parameters


@schemathesis.hook
def map_body(context: HookContext, body: Any) -> Any:
    """Take out valid values that would end most requests before they reach the engine.

    A random name of a model is never served, and a large `max_tokens` never fits the context.
    """
    if not isinstance(body, dict):
        return body
    model, most = body.get("model"), body.get("max_tokens")
    if isinstance(model, str) and "\0" not in model:
        body.pop("model")
    if type(most) is int and SMALL < most <= 32_000 and most % 4:
        body["max_tokens"] = most % SMALL + 1
    return body


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
    assert data[-1] == "[DONE]"
    for event in map(json.loads, data[:-1]):
        if "error" in event:
            conform(event, "ErrorResponse")
            continue
        assert event["object"] == "text_completion"
        for choice in event["choices"]:
            assert set(choice) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
            if choice["logprobs"] is not None:
                conform(choice["logprobs"], "Logprobs")
        if "usage" in event:
            conform(event["usage"], "CompletionUsage")
        if "activations" in event:
            conform(event["activations"], "Activations")
