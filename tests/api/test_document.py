"""Section 23: the document of the API."""

from copy import deepcopy

import pytest
from jsonschema import Draft202012Validator

from tests.contract.wire import DOCUMENT

SHOWN = {
    operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()
}
"""Every operation of the contract."""


@pytest.fixture(scope="module")
def document(web):
    return web.client().get("/openapi.json").json()


def operations(document) -> dict[str, tuple[str, str, dict]]:
    return {
        operation["operationId"]: (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


@pytest.mark.row("C-643")
def test_the_document_is_openapi_3_1_without_a_key(anonymous):
    answer = anonymous.get("/openapi.json", headers={"Origin": "https://somewhere.example"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.json()["openapi"].startswith("3.1")


@pytest.mark.row("C-644", "C-645", "C-646", "C-647", "C-687", "C-047")
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_operation_is_described_as_the_contract_has_it(document, name):
    path, method, ours = operations(document)[name]
    expected_path, expected_method, expected = operations(DOCUMENT)[name]
    assert (path, method) == (expected_path, expected_method)
    assert ours["tags"] == expected["tags"]
    assert ours["security"] == expected["security"]
    assert set(ours["responses"]) == set(expected["responses"])
    mine = {(p["name"], p["in"], p["required"]) for p in ours["parameters"]}
    assert mine == {(p["name"], p["in"], p["required"]) for p in expected["parameters"]}
    assert ours.get("deprecated", False) is (name == "chat.createChatCompletion")


@pytest.mark.row("C-644")
def test_the_document_shows_these_operations(document):
    assert set(operations(document)) == SHOWN


@pytest.mark.row("C-646")
def test_an_idempotency_key_has_1_to_255_characters(document):
    (header,) = document["paths"]["/v1/completions"]["post"]["parameters"]
    assert header["schema"] == {"type": "string", "minLength": 1, "maxLength": 255}


def closed_objects(schema: object) -> list[dict]:
    if isinstance(schema, list):
        return [found for each in schema for found in closed_objects(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if "properties" in schema else []
    return own + [found for each in schema.values() for found in closed_objects(each)]


@pytest.mark.row("C-054")
def test_every_shape_is_valid_and_closed(document):
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        for found in closed_objects(schema):
            assert found["additionalProperties"] is False, name


@pytest.mark.row("C-054", "C-057", "C-116", "C-120", "C-128", "C-195")
@pytest.mark.parametrize(
    "name",
    [
        "ErrorObject",
        "ErrorResponse",
        "Capabilities",
        "Model",
        "ModelList",
        "BootStage",
        "ModelStatus",
        "Logprobs",
        "PromptLogprob",
        "CompletionUsage",
        "CompletionChoice",
        "Completion",
        "Tensor",
        "Activations",
        "SteeringVector",
        "SteeringTensor",
        "Backend",
        "Health",
        "RunnerHealth",
    ],
)
def test_a_shape_has_the_contracts_fields(document, name):
    ours, expected = (each["components"]["schemas"][name] for each in (document, DOCUMENT))
    assert set(ours["properties"]) == set(expected["properties"])
    assert set(expected["required"]) <= set(ours["required"])


@pytest.mark.row("C-138", "C-139")
def test_the_bodys_bounds_are_the_contracts(document):
    ours, expected = (
        each["components"]["schemas"]["CompletionPayload"] for each in (document, DOCUMENT)
    )
    assert ours["required"] == ["prompt"]
    assert set(ours["properties"]) == set(expected["properties"])
    for name, schema in ours["properties"].items():
        stated = {
            key: value
            for key, value in expected["properties"][name].items()
            if key in ("minimum", "maximum", "exclusiveMinimum", "pattern")
        }
        if name == "seed":
            stated["maximum"] = 9007199254740991
        options = schema.get("anyOf", [schema])
        mine = {
            key: value
            for option in options
            for key, value in option.items()
            if key in ("minimum", "maximum", "exclusiveMinimum", "pattern")
        }
        if name in ("prompt", "stop", "priority"):
            assert mine
        else:
            assert mine == stated, name


def test_a_stream_is_described_event_by_event(document):
    """A chunk, an error or `[DONE]`, as readers of the document take a stream apart."""
    ours, expected = (
        each["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]["text/event-stream"]
        for each in (deepcopy(document), DOCUMENT)
    )
    chunk, done = ours["schema"]["anyOf"]
    shapes = chunk["properties"]["data"].pop("contentSchema")["anyOf"]
    assert [shape["$ref"].rpartition("/")[2] for shape in shapes] == [
        "CompletionChunk",
        "ErrorResponse",
    ]
    done["properties"]["data"].pop("description")
    assert ours["schema"] == expected["schema"]
