"""Loom files: written, read back, and read from other tools."""

import json
from copy import deepcopy

import pytest

from tests.looms.conftest import LoomApi

OPTIONS = {
    "model": "tiny",
    "max_tokens": 16,
    "temperature": 0.5,
    "logprobs": 2,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 7,
    "stop": ["x"],
}
TOKENS = [
    {"token": " b", "logprob": -1.25, "top": [{"token": " b", "logprob": -1.25}]},
    {"token": "c", "logprob": -0.5, "top": None},
]


def post_file(caller, file: object):
    return caller.client.post("/v1/looms/import", json=file)


def export(loom: LoomApi) -> dict:
    answer = loom.client.get(f"{loom.path}/export")
    assert answer.status_code == 200
    return answer.json()


def shape_of(file: dict) -> list[tuple]:
    """A file without its ids: each Node with the place of its parent."""
    place = {node["id"]: at for at, node in enumerate(file["nodes"])}
    return [
        (
            place.get(node["parent_id"]),
            *(node.get(name) for name in ("text", "status", "position", "logprobs")),
            node["generation_config"],
            node.get("error"),
        )
        for node in file["nodes"]
    ]


@pytest.mark.row("C-584", "C-585", "C-586", "C-587")
def test_an_export_has_the_files_shape(plant):
    loom = plant(
        {"id": "r", "text": "A"},
        {"id": "1", "parent_id": "r", "text": " bc", "generation_config": OPTIONS,
         "logprobs": TOKENS},
        {"id": "2", "parent_id": "r", "text": "d", "status": "failed",
         "error": {"message": "no", "type": "upstream_error", "param": None, "code": "x"}},
        title="Mine",
    )  # fmt: skip
    node = loom.nodes()[1]["id"]
    loom.on(node, "/split", {"offset": 2})
    loom.on(loom.nodes()[2]["id"], "", {"text": "edited"})
    file = export(loom)
    assert set(file) == {"version", "node_order", "loom", "nodes"}
    assert file["version"] == 2
    assert file["loom"] == {"title": "Mine", "model": None, "last_generation_config": None}
    root, upper, lower, failed = file["nodes"]
    assert set(root) == {
        "id", "parent_id", "text", "status", "position", "logprobs", "generation_config"
    }  # fmt: skip
    assert set(failed) == {*root, "error"}
    assert failed["error"]["code"] == "x"
    assert (root["parent_id"], root["generation_config"], root["position"]) == (None, None, 0)
    assert upper["logprobs"] == TOKENS[:1]
    assert upper["generation_config"] == {**OPTIONS, "slice_offset": 0, "slice_end": 2}
    assert lower["generation_config"] == {
        **OPTIONS,
        "seed": None,
        "text_modified": True,
        "slice_offset": 2,
        "slice_end": 3,
    }
    assert lower["logprobs"] is None
    assert [node["position"] for node in file["nodes"]] == [0, 0, 0, 1]
    known = set()
    for node in file["nodes"]:
        assert node["parent_id"] is None or node["parent_id"] in known
        known.add(node["id"])


@pytest.mark.row("C-587")
@pytest.mark.case("L05")
def test_an_edit_above_marks_the_context_of_what_was_sampled(plant):
    loom = plant(
        {"id": "r", "text": "A"},
        {"id": "1", "parent_id": "r", "text": "b", "generation_config": OPTIONS},
        {"id": "2", "parent_id": "1", "text": "c", "generation_config": OPTIONS},
    )
    loom.on(loom.root, "", {"text": "Z"})
    marks = [node["generation_config"] for node in export(loom)["nodes"]]
    assert marks[0] is None
    assert all(mark["context_modified"] is True for mark in marks[1:])
    assert all("text_modified" not in mark for mark in marks[1:])


@pytest.mark.row("C-588", "C-602", "C-601", "C-592")
def test_an_export_comes_back_as_it_was_with_other_ids(plant, caller):
    loom = plant(
        {"id": "r", "text": "A\r\n"},
        {"id": "1", "parent_id": "r", "text": " bc", "generation_config": OPTIONS,
         "logprobs": TOKENS},
        {"id": "2", "parent_id": "1", "text": "d", "status": "cancelled"},
        {"id": "3", "parent_id": "r", "text": "e", "status": "failed",
         "error": {"message": "no", "type": "upstream_error", "param": None, "code": None}},
        {"id": "s", "text": "another root"},
        title="Mine",
    )  # fmt: skip
    loom.on(loom.nodes()[1]["id"], "/split", {"offset": 1})
    first = export(loom)
    answer = post_file(caller, first)
    assert answer.status_code == 200
    again = export(LoomApi(caller.client, answer.json()["id"]))
    assert shape_of(again) == shape_of(first)
    assert again["loom"] == first["loom"]
    assert not {node["id"] for node in first["nodes"]} & {node["id"] for node in again["nodes"]}
    assert answer.json()["nodes"][0]["text"] == "A\r\n"


@pytest.mark.row("C-584")
def test_an_export_names_the_last_branch_and_a_growing_node_is_written_as_cancelled(loom, grows):
    (node,) = loom.branch(loom.root, seed=3, n=1, temperature=0.25)
    grows.next().say(" upon")
    loom.until(node["id"], "running")
    file = export(loom)
    assert file["loom"]["model"] == "tiny"
    last = file["loom"]["last_generation_config"]
    assert (last["temperature"], last["seed"], last["n"]) == (0.25, 3, 1)
    assert file["nodes"][1]["status"] == "cancelled"
    assert post_file_ok(loom, file)


def post_file_ok(loom: LoomApi, file: dict) -> bool:
    return loom.client.post("/v1/looms/import", json=file).status_code == 200


@pytest.mark.row("C-589", "C-590", "C-591", "C-593", "C-594", "C-597", "C-598", "C-685", "C-114")
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda f: f.pop("nodes"), "nodes"),
        (lambda f: f.update(nodes=[]), "nodes"),
        (lambda f: f.update(nodes="x"), "nodes"),
        (lambda f: f.update(extra=1), "extra"),
        (lambda f: f["loom"].update(extra=1), "loom.extra"),
        (lambda f: f["loom"].update(title="a\0"), "NUL"),
        (lambda f: f["loom"].update(title=5), "loom.title"),
        (lambda f: f["nodes"][1].pop("id"), "nodes[1].id"),
        (lambda f: f["nodes"][1].update(id=""), "nodes[1].id"),
        (lambda f: f["nodes"][1].update(id="r"), "'r'"),
        (lambda f: f["nodes"][1].update(extra=1), "nodes[1].extra"),
        (lambda f: f["nodes"][1].update(text=5), "nodes[1].text"),
        (lambda f: f["nodes"][1].update(text="a\0"), "NUL"),
        (lambda f: f["nodes"][1].update(status="running"), "nodes[1].status"),
        (lambda f: f["nodes"][1].update(position=-1), "nodes[1].position"),
        (lambda f: f["nodes"][1].update(position=2**31), "nodes[1].position"),
        (lambda f: f["nodes"][1].update(seed=-1), "nodes[1].seed"),
        (lambda f: f["nodes"][1].update(generation_config=[]), "nodes[1].generation_config"),
        (lambda f: f["nodes"][1].update(generation_config={"stop": "a\0"}), "NUL"),
        (lambda f: f["nodes"][1].update(logprobs={}), "nodes[1].logprobs"),
        (lambda f: f["nodes"][1].update(logprobs=[{"token": "a"}]), "nodes[1].logprobs[0]"),
        (lambda f: f["nodes"][1].update(logprobs=[{"logprob": 1}]), "nodes[1].logprobs[0]"),
        (
            lambda f: f["nodes"][1].update(logprobs=[{"token": "a\0", "logprob": -1}]),
            "NUL",
        ),
        (
            lambda f: f["nodes"][1].update(logprobs=[{"token": "a", "logprob": -1, "x": 1}]),
            "logprobs[0].x",
        ),
        (
            lambda f: f["nodes"][1].update(
                logprobs=[{"token": "a", "logprob": 1, "top": [{"token": "a", "logprob": None}]}]
            ),
            "top[0].logprob",
        ),
        (
            lambda f: f["nodes"][1].update(
                logprobs=[{"token": "a", "logprob": 1, "top": [{"token": "a"}]}]
            ),
            "top[0].logprob",
        ),
        (
            lambda f: f["nodes"][1].update(
                logprobs=[
                    {"token": "a", "logprob": 1, "top": [{"token": "a", "logprob": 1, "r": 1}]}
                ]
            ),
            "top[0].r",
        ),
        (lambda f: f["nodes"][1].update(status="failed", error={"message": "a\0"}), "NUL"),
        (lambda f: f.update(nodes=[{"id": str(n)} for n in range(2001)]), "2000"),
    ],
)
def test_a_file_that_is_none_says_what_is_wrong_and_makes_nothing(caller, change, place):
    file = {"loom": {}, "nodes": [{"id": "r"}, {"id": "1", "parent_id": "r"}]}
    assert post_file(caller, file).status_code == 200
    bad = deepcopy(file)
    change(bad)
    answer = post_file(caller, bad)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    assert error["param"] in ("nodes", "loom", "extra")
    assert place in error["message"]
    assert len(caller.client.get("/v1/looms").json()["data"]) == 1


@pytest.mark.row("C-589", "C-590", "C-591", "C-592", "C-596", "C-593", "C-597")
def test_all_that_a_file_may_have_is_taken_and_the_rest_of_a_config_dropped(caller):
    node = {
        "id": "1",
        "parent_id": "r",
        "text": "b",
        "status": None,
        "position": None,
        "model": None,
        "seed": None,
        "generation_config": {**OPTIONS, "prompt": "no", "n": 4, "text_modified": True},
        "logprobs": [{"token": "b", "logprob": None, "top": None}],
        "error": {"message": "of no failed Node"},
        "generation_id": 5,
        "choice_index": 0,
        "created_at": "then",
        "finish_reason": "stop",
        "stop_reason": {},
        "n_tokens": 1,
        "usage_source": [],
        "api_key_id": "x",
    }
    file = {
        "version": "old",
        "node_order": [1],
        "loom": {"title": None, "model": "gpt", "last_generation_config": {"a": 1}},
        "nodes": [{"id": "r"}, node],
    }
    answer = post_file(caller, file)
    assert answer.status_code == 200
    loom = LoomApi(caller.client, answer.json()["id"])
    root, grown = loom.nodes()
    assert (root["text"], root["status"], grown["status"]) == ("", "completed", "completed")
    assert grown["request"] == OPTIONS
    assert grown["error"] is None
    assert grown["logprobs"]["token_logprobs"] == [None]
    written = export(loom)
    assert written["nodes"][1]["generation_config"] == {**OPTIONS, "text_modified": True}
    assert written["loom"] == {
        "title": "Imported loom", "model": None, "last_generation_config": None
    }  # fmt: skip


@pytest.mark.row("C-601")
@pytest.mark.parametrize(
    ("title", "kept"),
    [
        (None, "Imported loom"),
        ("   ", "Imported loom"),
        ("  Mine ", "Mine"),
        ("x" * 130, "x" * 120),
    ],
)
def test_the_title_of_an_import(plant, title, kept):
    assert plant({"id": "r"}, title=title).read()["title"] == kept


@pytest.mark.row("C-595")
def test_model_and_seed_of_a_node_count_where_its_config_does_not_say(plant):
    loom = plant(
        {"id": "r"},
        {"id": "1", "parent_id": "r", "model": "tiny", "seed": 4},
        {"id": "2", "parent_id": "r", "model": "other", "seed": 4,
         "generation_config": {"model": "tiny", "seed": 9}},
    )  # fmt: skip
    _, first, second = loom.nodes()
    assert (first["request"]["model"], first["request"]["seed"]) == ("tiny", 4)
    assert (second["request"]["model"], second["request"]["seed"]) == ("tiny", 9)


@pytest.mark.row("C-594")
def test_siblings_keep_the_order_of_their_position(plant):
    loom = plant(
        {"id": "1", "parent_id": "r", "text": "last", "position": 9},
        {"id": "r", "text": "root"},
        {"id": "2", "parent_id": "r", "text": "third"},
        {"id": "3", "parent_id": "r", "text": "first", "position": 0},
        {"id": "4", "parent_id": "r", "text": "second", "position": 1},
        {"id": "5", "parent_id": "r", "text": "fifth"},
    )
    texts = [node["text"] for node in loom.nodes()]
    assert texts == ["root", "first", "second", "third", "fifth", "last"]


@pytest.mark.row("C-599", "C-600")
@pytest.mark.case(54, 55)
def test_missing_parents_and_cycles_are_repaired(plant):
    def parents(loom: LoomApi) -> dict[str, str | None]:
        nodes = loom.nodes()
        text = {node["id"]: node["text"] for node in nodes}
        return {node["text"]: text.get(node["parent_id"]) for node in nodes}

    one_root = plant(
        {"id": "r", "text": "r"},
        {"id": "1", "parent_id": "gone", "text": "1"},
        {"id": "2", "parent_id": "1", "text": "2"},
    )
    assert parents(one_root) == {"r": None, "1": "r", "2": "1"}
    two_roots = plant(
        {"id": "r", "text": "r"},
        {"id": "s", "text": "s"},
        {"id": "1", "parent_id": "gone", "text": "1"},
    )
    assert parents(two_roots) == {"r": None, "s": None, "1": None}
    cycle = plant(
        {"id": "0", "parent_id": "2", "text": "0"},
        {"id": "1", "parent_id": "3", "text": "1"},
        {"id": "2", "parent_id": "1", "text": "2"},
        {"id": "3", "parent_id": "2", "text": "3"},
        {"id": "4", "parent_id": "4", "text": "4"},
    )
    assert parents(cycle) == {"1": None, "2": "1", "0": "2", "3": "2", "4": None}


@pytest.mark.case(55)
def test_one_file_imported_twice_gives_two_trees(plant, caller):
    file = export(plant({"id": "r", "text": "A"}, {"id": "1", "parent_id": "r", "text": "b"}))
    first, second = (post_file(caller, file).json() for _ in range(2))
    one = LoomApi(caller.client, first["id"])
    one.client.delete(f"{one.path}/nodes/{one.nodes()[1]['id']}")
    assert len(LoomApi(caller.client, second["id"]).nodes()) == 2


@pytest.mark.row("C-603", "C-037")
def test_a_file_over_8_mib_is_too_large(caller):
    file = {"nodes": [{"id": "r", "text": "x" * (8 * 2**20)}]}
    answer = post_file(caller, file)
    assert answer.status_code == 413
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.row("C-658")
def test_a_stored_error_keeps_the_code_of_its_day(plant):
    old = {"message": "m", "type": "server_error", "param": None, "code": "insufficient_quota"}
    loom = plant({"id": "r"}, {"id": "1", "parent_id": "r", "status": "failed", "error": old})
    assert loom.nodes()[1]["error"] == {**old, "type": "upstream_error"}


# Files of other tools.

SOCKETTEER = {
    "root": {
        "id": "r",
        "text": "Once",
        "mutable": False,
        "open": True,
        "children": [
            {
                "id": "a",
                "text": " upon a",
                "children": [{"id": "a", "children": [], "text": " time", "tags": ["x"]}],
                "meta": {"source": "AI", "creation_timestamp": "2022-01-01-00.00.00"},
                "generation": {"id": "g", "index": 0},
            },
            {
                "id": "b",
                "text": " edited",
                "children": [],
                "meta": {"source": "mixed", "modified": True},
                "generation": {"id": "g", "index": 1},
            },
        ],
    },
    "selected_node_id": "a",
    "chapters": {},
    "model_responses": {
        "g": {
            "id": "g",
            "model": "davinci",
            "prompt": {"text": "Once", "tokens": None},
            "completions": [
                {
                    "text": " upon a",
                    "finishReason": "length",
                    "tokens": [
                        {
                            "generatedToken": {"token": " upon", "logprob": -0.5},
                            "position": {"start": 0, "end": 5},
                            "counterfactuals": {" upon": -0.5, " the": -1.5},
                        },
                        {
                            "generatedToken": {"token": " a", "logprob": -0.25},
                            "position": {"start": 5, "end": 7},
                            "counterfactuals": None,
                        },
                    ],
                },
                {"text": " drawn", "finishReason": "stop", "tokens": []},
            ],
        }
    },
}
LOOMSIDIAN = {
    "current": "2",
    "hoisted": [],
    "searchTerm": "",
    "generating": None,
    "nodes": {
        "0": {"text": "Once", "parentId": None, "collapsed": False, "unread": False,
              "bookmarked": False, "searchResultState": None},
        "1": {"text": " upon", "parentId": "0", "collapsed": False, "unread": True,
              "bookmarked": True, "lastVisited": 1, "searchResultState": None},
        "2": {"text": " more", "parentId": "0", "collapsed": False, "unread": True,
              "bookmarked": False, "searchResultState": None},
    },
}  # fmt: skip
EXOLOOM = {
    "loomType": "Exoloom",
    "version": "1.0",
    "schemaVersion": 1,
    "tree": {
        "title": "Mine",
        "description": None,
        "createdAt": "2025-01-01T00:00:00Z",
        "rootNodeId": 1,
        "nodes": {
            "1": {"content": "Once", "authorType": "USER", "authorName": None, "parentId": None,
                  "childrenIds": [3, 2], "createdAt": None},
            "2": {"content": " b", "authorType": "LLM", "authorName": "davinci", "parentId": 1,
                  "childrenIds": [], "createdAt": None},
            "3": {"content": " a", "authorType": "LLM", "authorName": None, "parentId": 1,
                  "childrenIds": [], "createdAt": None},
        },
    },
    "lens": {"bookmarks": [], "prunedNodes": [{"nodeId": 2}]},
}  # fmt: skip


def import_any(caller, file: object):
    return caller.client.post("/v1/lab/looms/import", json=file)


@pytest.mark.case(55)
@pytest.mark.parametrize(
    ("file", "title", "texts"),
    [
        (SOCKETTEER, "Imported loom", ["Once", " upon a", " time", " edited"]),
        (SOCKETTEER["root"], "Imported loom", ["Once", " upon a", " time", " edited"]),
        (LOOMSIDIAN, "Imported loom", ["Once", " upon", " more"]),
        (
            {"settings": {}, "state": {"folder/My note.md": LOOMSIDIAN}},
            "My note",
            ["Once", " upon", " more"],
        ),
        (
            {**LOOMSIDIAN, "nodes": [{**node, "id": name} for name, node in
                                     LOOMSIDIAN["nodes"].items()]},
            "Imported loom",
            ["Once", " upon", " more"],
        ),
        (EXOLOOM, "Mine", ["Once", " a", " b"]),
        ({"nodes": [{"id": "r", "text": "A"}]}, "Imported loom", ["A"]),
    ],
)  # fmt: skip
def test_files_of_other_tools_become_looms(caller, file, title, texts):
    answer = import_any(caller, file)
    assert answer.status_code == 200, answer.text
    loom = answer.json()
    assert loom["title"] == title
    assert [node["text"] for node in loom["nodes"]] == texts
    assert all(node["request"] is None for node in loom["nodes"])
    assert all(node["status"] == "completed" for node in loom["nodes"])


def test_what_a_foreign_file_knows_of_a_sample_is_kept_where_it_is_of_the_text(caller):
    nodes = import_any(caller, SOCKETTEER).json()["nodes"]
    assert nodes[1]["logprobs"] == {
        "tokens": [" upon", " a"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{" upon": -0.5, " the": -1.5}, None],
        "text_offset": [0, 5],
    }
    assert nodes[3]["logprobs"] is None
    loom_id = caller.client.get("/v1/looms").json()["data"][0]["id"]
    origins = caller.client.get(f"/v1/lab/looms/{loom_id}/provenance").json()["data"]
    assert [origin["model"] for origin in origins] == [None, "davinci", None, "davinci"]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ({**EXOLOOM, "schemaVersion": 2}, "schema 2"),
        ({**EXOLOOM, "tree": {**EXOLOOM["tree"], "rootNodeId": 9}}, "root 9"),
        ({"loomType": "Exoloom"}, "schemaVersion"),
        ({"current": "x", "nodes": {"1": {"text": 5}}}, "$.nodes[...].text"),
        ({"current": "x", "nodes": [{"text": "a"}]}, "`id`"),
        ({"settings": {}, "state": {"a": LOOMSIDIAN, "b": LOOMSIDIAN}}, "2 notes"),
        ({"root": {"text": "a", "children": 5}}, "children"),
        ({"root": {"text": "a\0", "children": []}}, "NUL"),
        ({"current": "x", "nodes": {}}, "no Nodes"),
        ({"something": 1}, "something"),
        ([1], "JSON object"),
    ],
)
def test_a_file_of_no_tool_says_what_is_wrong(caller, file, says):
    answer = import_any(caller, file)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert caller.client.get("/v1/looms").json()["data"] == []


@pytest.mark.row("C-589")
@pytest.mark.parametrize("file", [SOCKETTEER, LOOMSIDIAN, EXOLOOM])
def test_the_contracts_import_takes_the_contracts_file_alone(caller, file):
    assert post_file(caller, file).status_code == 400


def test_a_deep_tree_of_another_tool_is_read(caller, unchecked):
    node: dict = {"text": "x", "children": []}
    for _ in range(300):
        node = {"text": "x", "children": [node]}
    answer = caller.client.post("/v1/lab/looms/import", content=json.dumps({"root": node}).encode())
    assert answer.status_code == 200
    assert len(answer.json()["nodes"]) == 301
