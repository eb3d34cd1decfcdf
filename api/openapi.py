"""`GET /openapi.json`: the API's description, made from the table of routes (C-643 to C-647).

Shapes come from pydantic: bodies from the models that check them, answers from `api.schemas`.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus

from django.conf import settings
from django.http import HttpResponse
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from rest_framework.request import Request

from api.path_ids import UUID_PATTERN
from api.routes import ROUTES
from api.routing import Operation, Route
from api.schemas import ErrorResponse
from api.views import ContractView

Json = dict[str, object]

IDEMPOTENCY_KEY: Json = {
    "name": "idempotency-key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
BEARER = "bearer"
LEFT_OUT: tuple[object, ...] = (None, [], "", False)
"""Defaults that only mean that a field was left out."""
DONE: Json = {"enum": ["[DONE]"], "description": "The last event"}
BOUNDS = {"ge": "minimum", "le": "maximum"}
ROWS = re.compile(r" \([CU]-\d[^)]*\)")
REFERENCES = "#/components/schemas/{model}"


class ReadDocument(ContractView):
    """Answers without a key."""

    def get(self, request: Request) -> HttpResponse:
        """Return the document."""
        return HttpResponse(_written(), content_type="application/json")


@cache
def _written() -> bytes:
    return json.dumps(document()).encode()


def document() -> Json:
    """Return the OpenAPI 3.1 document of the routes that exist."""
    env = settings.BASALT
    shown = [
        (route, method.lower(), operation)
        for route in ROUTES
        for method, operation in route.operations.items()
        if operation.documented
    ]
    references, schemas = _schemas(operation for _, _, operation in shown)
    paths: dict[str, Json] = {}
    for route, method, operation in shown:
        described = _operation(route, operation, references)
        paths.setdefault(route.path, {})[method] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{env.site_name} API", "version": "1"},
        "servers": [{"url": env.api_url}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for _, _, each in shown)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[type[BaseModel], Json], Json]:
    """Return a reference for each model of the operations, and the schemas they refer to."""
    modes: dict[type[BaseModel], JsonSchemaMode] = {}
    for operation in operations:
        modes |= dict.fromkeys(operation.statuses.values(), "serialization")
        if operation.event is not None:
            modes[operation.event] = "serialization"
        if operation.body is not None:
            modes[operation.body] = "validation"
    found, definitions = models_json_schema(list(modes.items()), ref_template=REFERENCES)
    references: dict[type[BaseModel], Json] = {}
    for model in modes:
        references[model] = dict(found[model, modes[model]])
    return references, _plain(definitions["$defs"])


def _plain(schemas: dict[str, Json]) -> Json:
    """Return the schemas as readers of the document want them.

    Titles made from names and defaults that mean "left out" say nothing, and rows of the contract
    say nothing to others. A bound behind a validator of our own has pydantic's name, not JSON
    Schema's.
    """
    return {name: _clean(schema) for name, schema in schemas.items()}


def _clean(value: object, *, are_names: bool = False) -> object:
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, str):
        return ROWS.sub("", value)
    if not isinstance(value, dict):
        return value
    if are_names:
        return {name: _clean(each) for name, each in value.items()}
    return {
        BOUNDS.get(key, key): _clean(each, are_names=key == "properties")
        for key, each in value.items()
        if not (key == "title" or (key == "default" and each in LEFT_OUT))
    }


def _operation(route: Route, operation: Operation, references: dict[type[BaseModel], Json]) -> Json:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": _path_value(route, name)}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in operation.queries
    ]
    if operation.idempotent:
        parameters.append(IDEMPOTENCY_KEY)
    described: Json = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "parameters": parameters,
        "security": [{BEARER: []}] if operation.bucket is not None else [],
        "responses": _responses(operation, references),
    }
    if operation.deprecated:
        described["deprecated"] = True
    if operation.body is not None:
        content = {"application/json": {"schema": references[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _event(data: Json) -> Json:
    """Return the schema of one event of a stream, as readers of the document take it apart."""
    return {
        "type": "object",
        "properties": {
            "data": {"type": "string", **data},
            "event": {"type": "string", "enum": ["message"]},
        },
        "required": ["data", "event"],
        "additionalProperties": False,
    }


def _path_value(route: Route, name: str) -> Json:
    """Return the schema of a path parameter: a name where the route says so, else a UUID."""
    if name in route.patterns:
        return {"type": "string"}
    return {"type": "string", "format": "uuid", "pattern": UUID_PATTERN}


def _responses(operation: Operation, references: dict[type[BaseModel], Json]) -> Json:
    """Return the answers of an operation, by status; a stream of events is a form of its 200."""
    contents: dict[int, Json] = {
        status: {"application/json": {"schema": references[model]}}
        for status, model in operation.statuses.items()
    }
    if operation.event is not None:
        data: Json = {"anyOf": [references[operation.event], references[ErrorResponse]]}
        said: Json = {"contentMediaType": "application/json", "contentSchema": data}
        events: Json = {"schema": {"anyOf": [_event(said), _event(DONE)]}}
        contents.setdefault(HTTPStatus.OK, {})["text/event-stream"] = events
    return {
        str(int(status)): {"description": HTTPStatus(status).phrase, "content": content}
        for status, content in sorted(contents.items())
    }
