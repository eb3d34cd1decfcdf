"""The wire schemas of the contract: what any answer of a route must look like."""

import json
import re
from functools import cache
from pathlib import Path

import httpx
from jsonschema import Draft202012Validator

DOCUMENT = json.loads(Path(__file__).with_name("openapi.json").read_text())


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": DOCUMENT["components"]})


def conform(value: object, name: str) -> None:
    """Check a value against a schema of the contract, by its name."""
    _check(value, {"$ref": f"#/components/schemas/{name}"})


def _check(value: object, schema: dict[str, object]) -> None:
    faults = sorted(_validator(json.dumps(schema)).iter_errors(value), key=str)
    assert not faults, f"{faults[0].message} at {list(faults[0].absolute_path)}"


def conform_answer(answer: httpx.Response) -> None:
    """Check the status, the headers and the JSON body of an answer; a hook for httpx."""
    answer.read()
    path, method = answer.request.url.path, answer.request.method
    if not path.startswith("/v1") and path != "/health":
        return
    assert re.fullmatch(r"[\w-]{1,64}", answer.headers["x-request-id"])
    assert answer.headers["access-control-allow-origin"] == "*"
    if method not in ("GET", "POST", "DELETE"):
        return
    if answer.headers["content-type"] != "application/json":
        assert answer.headers["content-type"].startswith("text/event-stream")
        return
    operation = _operation(path, method.lower())
    if answer.status_code in (404, 405) or operation is None:
        conform(answer.json(), "ErrorResponse")
    else:
        described = operation["responses"][str(answer.status_code)]
        _check(answer.json(), described["content"]["application/json"]["schema"])
    if answer.status_code >= 400 and "error" in answer.json():
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def _operation(path: str, method: str) -> dict[str, dict[str, dict]] | None:
    for template in sorted(DOCUMENT["paths"], key=len, reverse=True):
        pattern = re.sub(r"\{model_id\}", ".+", template)
        pattern = re.sub(r"\{\w+\}", "[^/]+", pattern)
        if re.fullmatch(pattern, path) and method in DOCUMENT["paths"][template]:
            return DOCUMENT["paths"][template][method]
    return None
