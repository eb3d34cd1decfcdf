"""The body of `POST /v1/harvest`: what it takes, and what it refuses with which words."""

import base64
import json
from collections.abc import Callable
from uuid import UUID

import numpy as np
import pytest

from api.harvest_bodies import harvest_asked
from completions.failures import Failure
from tests.conftest import Caller
from tests.harvests.conftest import SMALL, UNHARVESTED, read, submitted


def encoded(directions: np.ndarray | bytes) -> str:
    raw = directions if isinstance(directions, bytes) else directions.tobytes()
    return base64.b64encode(raw).decode()


def projection(**fields: object) -> dict[str, object]:
    ones = np.ones((1, 64), dtype="<f4")
    return {"data": encoded(ones), "dtype": "float32", "shape": [1, 64], **fields}


@pytest.mark.row("C-479", "C-480", "C-481", "C-485", "C-055", "C-604")
def test_a_submitted_harvest_is_pending(reader: Caller) -> None:
    made = submitted(reader, prompts=["Größe", "a"])
    assert made["status"] == "pending"
    assert UUID(made["job_id"])
    assert made["run_id"] == made["job_id"]
    assert made["model"] == SMALL
    assert made["n_prompts"] == 2
    assert made["reserved_tokens"] == len("Größe".encode()) + 1 + 2
    assert made["tokens"] is made["started_at"] is made["completed_at"] is None
    assert not {"result", "urls_expire_at", "error"} & set(made)
    assert made["created_at"].endswith("+00:00")
    assert read(reader, made) == made
    assert reader.open_holds() == 0
    bare = submitted(reader, prompts=["Größe", "a"], add_special_tokens=False)
    assert bare["reserved_tokens"] == 8


@pytest.mark.row("C-456", "C-458")
def test_layers_are_read_once_and_ascending(reader: Caller) -> None:
    assert submitted(reader)["layers"] == [1, 2, 3]
    assert submitted(reader, layers="all")["layers"] == [0, 1, 2, 3]
    assert submitted(reader, layers=[3, 0, 3, 1.0])["layers"] == [0, 1, 3]


LONG = "x" * 4000
REFUSED = {
    "C-452": [
        ({"prompt": "a"}, "prompt", "Unknown parameter: 'prompt'."),
        ({"max_tokens": 4}, "max_tokens", "Unknown parameter: 'max_tokens'."),
        ({"prompts": ...}, "prompts", "Missing required parameter: 'prompts'."),
        ({"model": ...}, "model", "Missing required parameter: 'model'."),
    ],
    "C-453": [
        ({"prompts": []}, "prompts", "expected 1 to 4096 texts, not 0"),
        ({"prompts": ["a"] * 4097}, "prompts", "expected 1 to 4096 texts, not 4097"),
        ({"prompts": ["a", ""]}, "prompts", "'prompts[1]': expected at least 1 character"),
        ({"prompts": [[1, 2]]}, "prompts", "'prompts[0]': expected a string"),
        ({"prompts": ["a", 5]}, "prompts", "'prompts[1]': expected a string"),
        ({"prompts": "a"}, "prompts", "expected a list"),
    ],
    "C-454": [
        ({"prompts": ["a", "b\ud800"]}, "prompts", "half of a surrogate pair"),
        ({"prompts": ["a\0"]}, "prompts", "A text cannot hold the character U+0000 (NUL)."),
    ],
    "C-455": [({"prompts": [LONG] * 2001}, "prompts", "2,001,000 tokens (characters / 4)")],
    "C-456": [
        ({"layers": "some"}, "layers", 'expected "all" or a list of integers'),
        ({"layers": []}, "layers", "expected 1 to 256 Layers, not 0"),
        ({"layers": [1] * 257}, "layers", "expected 1 to 256 Layers, not 257"),
        ({"layers": [0, -1]}, "layers", "'layers[1]': expected a value from 0 to 512"),
        ({"layers": [513]}, "layers", "'layers[0]': expected a value from 0 to 512"),
        ({"layers": [1.5]}, "layers", "a list of integers"),
        ({"layers": [True]}, "layers", "a list of integers"),
        ({"layers": 1}, "layers", "a list of integers"),
    ],
    "C-457": [
        ({"layers": [1, 40]}, "layers", "basalt/reads has layers 0 to 3: it has no layer 40.")
    ],
    "C-459": [
        ({"shard_size": 0}, "shard_size", "greater than or equal to 1"),
        ({"shard_size": 4097}, "shard_size", "less than or equal to 4096"),
        ({"shard_size": "8"}, "shard_size", "expected a number"),
        ({"shard_size": 2.5}, "shard_size", "expected"),
    ],
    "C-460": [
        ({"batch_size": 0}, "batch_size", "greater than or equal to 1"),
        ({"batch_size": 65}, "batch_size", "less than or equal to 64"),
    ],
    "C-461": [({"add_special_tokens": "no"}, "add_special_tokens", "expected a boolean")],
    "C-462": [
        ({"project_onto": projection(scale=2)}, "project_onto", "'project_onto.scale'"),
        (
            {"project_onto": {"data": "", "dtype": "float32"}},
            "project_onto",
            "'project_onto.shape'",
        ),
        ({"project_onto": projection(compression="zstd")}, "project_onto", "'none'"),
        ({"project_onto": [1]}, "project_onto", "expected an object"),
    ],
    "C-463": [
        ({"project_onto": projection(dtype="float64")}, "project_onto", "'float32', 'float16'"),
        ({"project_onto": projection(shape=[65, 64])}, "project_onto", "1 to 64 directions"),
        ({"project_onto": projection(shape=[0, 64])}, "project_onto", "1 to 64 directions"),
        ({"project_onto": projection(shape=[64])}, "project_onto", "[directions, hidden size]"),
        ({"project_onto": projection(shape=[1, 1.5])}, "project_onto", "[directions, hidden size]"),
        (
            {
                "project_onto": {
                    "data": encoded(b"\0\0\x80?" * 3),
                    "dtype": "float32",
                    "shape": [1, 3],
                }
            },
            "project_onto",
            "project_onto.shape is 1 × 3, but the hidden size of basalt/reads is 64.",
        ),
    ],
    "C-465": [
        (
            {"project_onto": {"data": encoded(b"12345678"), "dtype": "float32", "shape": [1, 3]}},
            "project_onto",
            "project_onto.data is 8 bytes; the shape 1 × 3 of float32 needs 12.",
        ),
        (
            {"project_onto": projection(dtype="bfloat16")},
            "project_onto",
            "project_onto.data is 256 bytes; the shape 1 × 64 of bfloat16 needs 128.",
        ),
    ],
    "C-466": [
        (
            {"project_onto": projection(data=encoded(np.full(64, np.nan, "<f4")))},
            "project_onto",
            "project_onto has numbers that are not finite.",
        ),
        (
            {"project_onto": projection(dtype="bfloat16", data=encoded(b"\x80\x7f" * 64))},
            "project_onto",
            "project_onto has numbers that are not finite.",
        ),
    ],
    "C-467": [
        (
            {"project_onto": projection(data=encoded(np.zeros(64, "<f4")))},
            "project_onto",
            "project_onto has a direction whose length is 0.",
        )
    ],
    "C-468": [
        (
            {"project_onto": projection(data=bad)},
            "project_onto",
            "project_onto.data is not valid base64.",
        )
        for bad in ("AAA", "A===", "é", "AA*A", "AAAA====")
    ],
}


def _cases() -> list[object]:
    return [
        pytest.param(*case, marks=pytest.mark.row(row), id=f"{row}-{number}")
        for row, cases in REFUSED.items()
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("fields", "param", "words"), _cases())
def test_what_does_not_fit_is_refused(
    reader: Caller, fields: dict[str, object], param: str, words: str
) -> None:
    from harvests.models import Harvest, HarvestInput

    body = {"model": SMALL, "prompts": ["a"], **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    answer = reader.client.post("/v1/harvest", content=json.dumps(body).encode())
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert words in error["message"]
    assert not Harvest.objects.filter(user_id=reader.user_id).exists()
    assert not HarvestInput.objects.exclude(harvest__in=Harvest.objects.all()).exists()


@pytest.mark.row("C-469", "C-069", "C-471")
def test_a_model_that_is_not_harvested_is_refused(reader: Caller) -> None:
    body = {"model": "gpt-2", "prompts": ["a"]}
    error = reader.client.post("/v1/harvest", json=body).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    body["model"] = UNHARVESTED
    answer = reader.client.post("/v1/harvest", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["param"]) == ("harvest_unsupported", "model")
    assert SMALL in error["message"]


@pytest.mark.row("C-470", "C-038")
def test_a_body_may_have_50_mib(reader: Caller, another: Callable[..., Caller]) -> None:
    rich = another(100_000_000)
    white = b" " * (50 * 2**20 - 200)
    text = json.dumps({"model": SMALL, "prompts": ["a"]}).encode()
    assert rich.client.post("/v1/harvest", content=text + white).status_code == 202
    answer = rich.client.post("/v1/harvest", content=text + white + b" " * 200)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.row("C-464")
def test_white_space_in_base64_is_skipped() -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 32)).astype("<f4")
    text = encoded(numbers)
    spread = text[:5] + "\n" + text[5:9] + " \t\r\n" + text[9:]
    for data in (text, spread):
        asked = harvest_asked(
            {
                "model": "m",
                "prompts": ["a"],
                "project_onto": {"data": data, "dtype": "float32", "shape": [2, 32]},
            }
        )
        np.testing.assert_array_equal(asked.projection.directions, numbers)


@pytest.mark.row("C-463")
@pytest.mark.parametrize(
    ("dtype", "raw"),
    [
        ("float16", np.array([[1.5, -2.0]], dtype="<f2").tobytes()),
        (
            "bfloat16",
            (np.array([[1.5, -2.0]], dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes(),
        ),
        ("float32", np.array([[1.5, -2.0]], dtype="<f4").tobytes()),
    ],
)
def test_directions_come_in_three_types(dtype: str, raw: bytes) -> None:
    shape = {"dtype": dtype, "shape": [1, 2.0], "compression": "none", "data": encoded(raw)}
    asked = harvest_asked({"model": "m", "prompts": ["a"], "project_onto": shape})
    np.testing.assert_array_equal(asked.projection.directions, [[1.5, -2.0]])


@pytest.mark.row("C-459", "C-460", "C-461")
def test_what_is_left_out_or_null_has_its_default() -> None:
    optional = ("layers", "shard_size", "batch_size", "add_special_tokens", "project_onto")
    for fields in ({}, dict.fromkeys(optional)):
        asked = harvest_asked({"model": "m", "prompts": ["a"], **fields})
        assert asked.shard_size == 32
        assert asked.batch_size is None
        assert asked.add_special_tokens
        assert asked.layers is asked.projection is None
    edges = harvest_asked(
        {"model": "m", "prompts": ["a"] * 4096, "shard_size": 4096, "batch_size": 64}
    )
    assert (edges.shard_size, edges.batch_size) == (4096, 64)


@pytest.mark.row("C-455")
def test_the_size_is_that_of_characters_and_not_of_bytes() -> None:
    full = ["é" * 2_000_000] * 4
    assert harvest_asked({"model": "m", "prompts": full}).reserved_tokens == 16_000_004
    with pytest.raises(Failure):
        harvest_asked({"model": "m", "prompts": [*full, "e"]})


@pytest.mark.row("C-487", "C-073", "C-044")
def test_an_id_that_names_nothing(reader: Caller, another: Callable[..., Caller]) -> None:
    made = submitted(reader)
    for method in ("GET", "DELETE"):
        answer = reader.client.request(method, "/v1/harvest/nothing")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "job_id"
        for client, job_id in (
            (reader.client, "6ba7b810-9dad-41d1-80b4-00c04fd430c8"),
            (another().client, made["job_id"]),
        ):
            answer = client.request(method, f"/v1/harvest/{job_id}")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "harvest_job_not_found"
    assert read(reader, made)["status"] == "pending"


@pytest.mark.row("C-048", "C-052")
def test_there_is_no_list(reader: Caller) -> None:
    answer = reader.client.get("/v1/harvest")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert reader.client.post("/v1/harvests", json={}).status_code == 404


@pytest.mark.row("C-478", "C-397")
def test_a_repeat_with_the_same_key_is_the_same_harvest(reader: Caller) -> None:
    body = {"model": SMALL, "prompts": ["a"]}
    headers = {"Idempotency-Key": "one"}
    first = reader.client.post("/v1/harvest", json=body, headers=headers)
    again = reader.client.post("/v1/harvest", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    reader.client.delete(f"/v1/harvest/{first.json()['job_id']}")
    later = reader.client.post("/v1/harvest", json=body, headers=headers)
    assert later.json()["status"] == "cancelled"
    other = reader.client.post("/v1/harvest", json={**body, "layers": [1]}, headers=headers)
    assert other.json()["error"]["code"] == "idempotency_conflict"
    refused = reader.client.post(
        "/v1/harvest", json={**body, "layers": [9]}, headers={"Idempotency-Key": "two"}
    )
    assert refused.status_code == 400
    assert (
        reader.client.post("/v1/harvest", json=body, headers={"Idempotency-Key": "two"}).status_code
        == 202
    )
