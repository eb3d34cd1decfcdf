"""Loom writes with an `Idempotency-Key`: each is done once (section 14)."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.looms.conftest import LoomApi

pytestmark = pytest.mark.timeout(120)


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid4().hex}


@pytest.mark.row("C-393", "C-394", "C-383", "C-387", "C-389")
def test_a_repeated_create_answers_the_loom_as_it_is_now(caller):
    once, body = key(), {"prompt": "Once"}
    first = caller.client.post("/v1/looms", json=body, headers=once)
    loom = LoomApi(caller.client, first.json()["id"])
    loom.on(loom.root, "", {"text": "Twice"})
    again = caller.client.post("/v1/looms", json=body, headers=once)
    assert again.status_code == 200
    assert again.json() == loom.read()
    assert len(caller.client.get("/v1/looms").json()["data"]) == 1
    loom.client.delete(loom.path)
    gone = caller.client.post("/v1/looms", json=body, headers=once)
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] is None


@pytest.mark.row("C-397")
def test_a_key_of_another_write_is_a_conflict(caller, loom):
    once = key()
    caller.client.post("/v1/looms", json={"prompt": "Once"}, headers=once)
    for answer in (
        caller.client.post("/v1/looms", json={"prompt": "Twice"}, headers=once),
        loom.post("/root", {"text": "x"}, **once),
    ):
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "idempotency_conflict"
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.row("C-400", "C-383")
@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("/split", {"offset": 1}),
        ("/sibling", {"text": "x"}),
        ("", {"text": "edited"}),
    ],
)
def test_a_repeated_change_is_made_once_and_answers_the_loom_as_it_is_now(plant, what, body):
    loom = plant({"id": "r", "text": "A"}, {"id": "1", "parent_id": "r", "text": "bcd"})
    node, once = loom.nodes()[1]["id"], key()
    first = loom.on(node, what, body, **once)
    assert first.status_code == 200
    loom.post("", {"title": "Later"})
    again = loom.on(node, what, body, **once)
    assert again.status_code == 200
    assert again.json() == loom.read()
    assert again.json()["nodes"] == first.json()["nodes"]
    assert again.json()["title"] == "Later"


@pytest.mark.row("C-400", "C-383")
def test_repeats_of_a_rename_a_root_a_cancel_and_an_import(loom, caller):
    rename, root, cancel, bring = key(), key(), key(), key()
    loom.post("", {"title": "Mine"}, **rename)
    loom.post("", {"title": "Yours"})
    assert loom.post("", {"title": "Mine"}, **rename).json()["title"] == "Yours"
    made = loom.post("/root", {"text": "x"}, **root).json()
    assert loom.post("/root", {"text": "x"}, **root).json() == made
    assert loom.post("/cancel", **cancel).json() == made
    assert loom.post("/cancel", **cancel).json() == made
    file = {"nodes": [{"id": "r", "text": "A"}]}
    first = caller.client.post("/v1/looms/import", json=file, headers=bring).json()
    assert caller.client.post("/v1/looms/import", json=file, headers=bring).json() == first


@pytest.mark.row("C-401")
def test_a_repeated_delete_with_a_key_is_no_404_and_one_without_is(plant):
    loom = plant({"id": "r", "text": "A"}, {"id": "1", "parent_id": "r", "text": "b"})
    node, once = loom.nodes()[1]["id"], key()
    first = loom.client.delete(f"{loom.path}/nodes/{node}", headers=once)
    assert loom.client.delete(f"{loom.path}/nodes/{node}", headers=once).json() == first.json()
    assert loom.client.delete(f"{loom.path}/nodes/{node}").status_code == 404
    once = key()
    first = loom.client.delete(loom.path, headers=once)
    again = loom.client.delete(loom.path, headers=once)
    assert (again.status_code, again.json()) == (200, first.json())
    assert loom.client.delete(loom.path).status_code == 404


@pytest.mark.row("C-393", "C-403", "C-404")
def test_a_repeated_branch_makes_its_nodes_once_and_answers_them_as_they_are_now(
    loom, caller, grows
):
    once, body = key(), {"model": "tiny", "n": 2}
    first = loom.on(loom.root, "/branch", body, **once).json()["data"]
    asked = [grows.next(), grows.next()]
    for each in asked:
        each.answer(" x")
    for node in first:
        loom.until(node["id"], "completed")
    again = loom.on(loom.root, "/branch", body, **once)
    assert again.status_code == 200
    assert again.json()["data"] == loom.nodes()[1:]
    assert [node["text"] for node in again.json()["data"]] == [" x", " x"]
    loom.client.delete(f"{loom.path}/nodes/{first[0]['id']}")
    left = loom.on(loom.root, "/branch", body, **once).json()["data"]
    assert [node["id"] for node in left] == [first[1]["id"]]
    loom.client.delete(loom.path)
    assert loom.on(first[0]["parent_id"], "/branch", body, **once).status_code == 404


@pytest.mark.row("C-403", "C-395")
def test_parallel_writes_with_one_key_are_made_once(loom):
    once, root = key(), loom.root
    loom.on(root, "/split", {"offset": 2})
    under = loom.nodes()[1]["id"]

    def write(_: int):
        return loom.on(under, "/sibling", {"text": "x"}, **once)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(write, range(6)))
    statuses = {answer.status_code for answer in answers}
    assert 200 in statuses
    assert statuses <= {200, 409}
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["error"]["code"] == "running"
    assert [node["text"] for node in loom.nodes()] == ["On", "ce", "x"]


@pytest.mark.row("C-398")
def test_a_refused_write_frees_its_key(loom, grows):
    once = key()
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    loom.until(node["id"], "running")
    assert loom.post("/root", {"text": "x"}, **once).status_code == 409
    asked.answer(" x")
    loom.until(node["id"], "completed")
    assert loom.post("/root", {"text": "x"}, **once).status_code == 200


@pytest.mark.row("C-385")
def test_an_empty_or_long_key_is_refused(loom):
    for bad in ("", "x" * 256):
        answer = loom.post("", {"title": "x"}, **{"Idempotency-Key": bad})
        assert answer.status_code == 400
    assert loom.post("", {"title": "x"}, **{"Idempotency-Key": "y" * 255}).status_code == 200
