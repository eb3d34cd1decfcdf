"""The wire schemas of the contract: what any answer of a route must look like."""

import json
import re
from collections.abc import Mapping
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
    check_answer(
        answer.request.method,
        answer.request.url.path,
        answer.status_code,
        answer.headers,
        answer.content,
    )


def check_answer(
    method: str, path: str, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """Check an answer to a request; names of headers in lower case."""
    if not path.startswith("/v1") and path != "/health":
        return
    assert re.fullmatch(r"[\w-]{1,64}", headers["x-request-id"])
    assert headers["access-control-allow-origin"] == "*"
    if method not in ("GET", "POST", "DELETE"):
        return
    if headers["content-type"] != "application/json":
        assert headers["content-type"].startswith("text/event-stream")
        return
    operation = _operation(path, method.lower())
    value = json.loads(body, parse_constant=_refuse_number)
    if path.startswith("/v1/lab/") and status < 400:
        return  # An addition: the contract has no schema of it.
    if status in (404, 405) or operation is None:
        conform(value, "ErrorResponse")
    else:
        described = operation["responses"][str(status)]
        _check(value, described["content"]["application/json"]["schema"])
    if status >= 400 and "error" in value:
        # The stored error of a Job keeps the Job's own id (C-026).
        is_stored = path.endswith("/result") and value["request_id"].startswith("req_job_")
        assert is_stored or value["request_id"] == headers["x-request-id"]


def _refuse_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON number")


def _operation(path: str, method: str) -> dict[str, dict[str, dict]] | None:
    for template in sorted(DOCUMENT["paths"], key=len, reverse=True):
        pattern = re.sub(r"\{model_id\}", ".+", template)
        pattern = re.sub(r"\{\w+\}", "[^/]+", pattern)
        if re.fullmatch(pattern, path) and method in DOCUMENT["paths"][template]:
            return DOCUMENT["paths"][template][method]
    return None
