"""Nodes of a real engine: the same request gives the same tokens, and their ids are kept."""

from collections.abc import Iterator

import pytest

from looms.tokens import spans_of
from tests.live import end, eventually, start_process

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def engine(database, tiny_catalogue, logs) -> Iterator[None]:
    """A worker of `tiny-other`, whose model no other test of Looms calls."""
    log = logs / "looms-engine.log"
    worker = start_process("worker", "engine.tiny-other", log=log)
    try:
        eventually(lambda: "serving" in log.read_text(), 120)
        yield
    finally:
        end(worker)


def grown(loom, parent: str, **options) -> dict:
    (node,) = loom.branch(parent, **{"model": "tiny-other", "max_tokens": 12, **options})
    return eventually(
        lambda: (now := loom.node(node["id"]))["status"] in ("completed", "failed") and now, 60
    )


def origins(loom) -> dict[str, dict]:
    answer = loom.client.get(f"/v1/lab/looms/{loom.id}/provenance")
    assert answer.status_code == 200
    assert answer.json()["object"] == "list"
    return {each["id"]: each for each in answer.json()["data"]}


@pytest.mark.row("C-552", "C-551", "C-681")
@pytest.mark.case(7, 20)
def test_a_nodes_request_under_the_same_parent_gives_the_same_tokens(make_loom, engine, grows):
    loom = make_loom("Once upon a time there was a king")
    root = loom.root
    first = grown(loom, root, temperature=1.0, seed=5, logprobs=2)
    other = grown(loom, root, temperature=1.0, seed=6)
    again = grown(loom, root, **first["request"])
    fresh = make_loom("Once upon a time there was a king")
    cold = grown(fresh, fresh.root, **first["request"])
    for node in (again, cold):
        assert node["status"] == "completed"
        assert node["text"] == first["text"]
        assert node["logprobs"]["tokens"] == first["logprobs"]["tokens"]
        assert node["logprobs"]["text_offset"] == first["logprobs"]["text_offset"]
    assert other["text"] != first["text"]
    assert len(first["logprobs"]["tokens"]) == 12
    kept = origins(loom)
    assert kept[again["id"]]["token_ids"] == kept[first["id"]]["token_ids"]
    assert len(kept[first["id"]]["token_ids"]) == 12
    assert kept[other["id"]]["alternative_ids"] is None
    rows = kept[first["id"]]["alternative_ids"]
    assert [row[0] for row in rows] == kept[first["id"]]["token_ids"]
    assert all(2 <= len(row) <= 3 for row in rows)
    assert kept[first["id"]]["weights"]
    assert kept[first["id"]]["options"]["seed"] == 5
    assert (kept[root]["chosen"], kept[root]["token_ids"]) == (True, None)


@pytest.mark.row("C-571", "C-570")
def test_a_split_divides_the_tokens_that_were_drawn(make_loom, engine, grows):
    loom = make_loom("A tale")
    node = grown(loom, loom.root, seed=1, logprobs=0)
    before = origins(loom)[node["id"]]["token_ids"]
    # The tiny model breaks characters off, so its offsets are not always places of the text.
    tokens = node["logprobs"]["tokens"]
    spans = spans_of(tokens, node["text"])
    offset = next(span[0] for token, span in list(zip(tokens, spans, strict=True))[5:] if token)
    loom.on(node["id"], "/split", {"offset": offset})
    _, upper, lower = loom.nodes()
    kept = origins(loom)
    assert kept[upper["id"]]["token_ids"] + kept[lower["id"]]["token_ids"] == before
    assert upper["logprobs"]["tokens"] + lower["logprobs"]["tokens"] == node["logprobs"]["tokens"]
    assert kept[lower["id"]]["weights"] == kept[upper["id"]]["weights"]


def test_the_runner_knows_of_nodes():
    from jobs.kinds import kinds

    assert "node" in {kind.name for kind in kinds()}
