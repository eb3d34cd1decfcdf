"""The Loom routes: shapes, lists, titles, and changes of the tree."""

from uuid import uuid4

import pytest

from tests.looms.conftest import LoomApi

NODE_FIELDS = {"id", "object", "parent_id", "status", "text", "logprobs", "error", "request"}
OPTIONS = {"model": "tiny", "temperature": 0.5, "seed": 7, "logprobs": 1}


def grown(name: str, parent: str | None, text: str, **more: object) -> dict:
    """A Node of a file that a model grew."""
    return {"id": name, "parent_id": parent, "text": text, "generation_config": OPTIONS, **more}


def texts(loom: LoomApi) -> list[str]:
    return [node["text"] for node in loom.nodes()]


@pytest.mark.row("C-519", "C-522", "C-523", "C-528", "C-533")
def test_a_new_loom_has_its_root(caller):
    answer = caller.client.post("/v1/looms", json={"prompt": "Once\r\nupon"})
    assert answer.status_code == 200
    loom = answer.json()
    assert set(loom) == {"id", "object", "created_at", "title", "pinned", "nodes"}
    assert (loom["object"], loom["title"], loom["pinned"]) == ("loom", "", False)
    assert isinstance(loom["created_at"], int)
    (root,) = loom["nodes"]
    assert set(root) == NODE_FIELDS
    assert root == {
        "id": root["id"],
        "object": "loom.node",
        "parent_id": None,
        "status": "completed",
        "text": "Once\r\nupon",
        "logprobs": None,
        "error": None,
        "request": None,
    }
    assert caller.client.get(f"/v1/looms/{loom['id']}").json() == loom


@pytest.mark.row("C-533", "C-114", "C-065")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "x", "title": "y"}, "title"),
        ([], None),
    ],
)
def test_a_body_that_makes_no_loom_is_refused(caller, body, param):
    answer = caller.client.post("/v1/looms", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert caller.client.get("/v1/looms").json()["data"] == []


@pytest.mark.case(18)
def test_half_a_surrogate_pair_is_refused_and_nothing_is_saved(caller, loom):
    for path in ("/v1/looms", f"{loom.path}/nodes/{loom.root}"):
        answer = caller.client.post(path, content=b'{"prompt": "a\\ud83d", "text": "a\\ud83d"}')
        assert answer.status_code == 400
    answer = caller.client.post(f"{loom.path}/nodes/{loom.root}", content=b'{"text": "a\\ud83d b"}')
    assert answer.json()["error"]["param"] == "text"
    assert texts(loom) == ["Once"]


@pytest.mark.case(64)
def test_numbers_that_are_none_are_refused_everywhere(loom):
    for word in ("NaN", "Infinity", "1e999"):
        body = f'{{"model": "tiny", "temperature": {word}}}'.encode()
        answer = loom.client.post(f"{loom.path}/nodes/{loom.root}/branch", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "bad_json"


@pytest.mark.row("C-518", "C-043", "C-049", "C-521")
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("", {"GET", "POST"}),
        ("/import", {"POST"}),
        ("/{loom}", {"GET", "POST", "DELETE"}),
        ("/{loom}/export", {"GET"}),
        ("/{loom}/stream", {"GET"}),
        ("/{loom}/cancel", {"POST"}),
        ("/{loom}/root", {"POST"}),
        ("/{loom}/nodes/{node}", {"POST", "DELETE"}),
        ("/{loom}/nodes/{node}/split", {"POST"}),
        ("/{loom}/nodes/{node}/sibling", {"POST"}),
        ("/{loom}/nodes/{node}/branch", {"POST"}),
    ],
)
def test_each_path_has_these_methods(caller, path, allowed):
    full = "/v1/looms" + path.format(loom=uuid4(), node=uuid4())
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
        answer = caller.client.request(method, full)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed
        assert answer.json()["error"]["code"] is None
    for method in allowed:
        assert caller.client.request(method, full).status_code not in (405,)


def every_route(loom_id: object, node_id: object) -> list[tuple[str, str, object]]:
    at, node = f"/v1/looms/{loom_id}", f"/v1/looms/{loom_id}/nodes/{node_id}"
    return [
        ("GET", at, None),
        ("POST", at, {"title": "x"}),
        ("DELETE", at, None),
        ("GET", f"{at}/export", None),
        ("GET", f"{at}/stream", None),
        ("POST", f"{at}/cancel", None),
        ("POST", f"{at}/root", {"text": "x"}),
        ("POST", node, {"text": "x"}),
        ("DELETE", node, None),
        ("POST", f"{node}/split", {"offset": 1}),
        ("POST", f"{node}/sibling", {"text": "x"}),
        ("POST", f"{node}/branch", {"model": "tiny"}),
    ]


def check_missing(client, routes) -> None:
    for method, path, body in routes:
        answer = client.request(method, path, json=body)
        assert answer.status_code == 404, (method, path, answer.text)
        assert answer.json()["error"]["code"] is None


@pytest.mark.row("C-520", "C-015", "C-074")
def test_the_loom_of_another_user_is_missing_on_every_route(loom, make_caller):
    check_missing(make_caller().client, every_route(loom.id, loom.root))
    assert texts(loom) == ["Once"]


@pytest.mark.row("C-520", "C-582")
def test_a_node_of_another_loom_is_missing_under_this_one(make_loom):
    one, other = make_loom(), make_loom()
    root = other.root
    check_missing(one.client, every_route(one.id, root)[7:])
    check_missing(one.client, every_route(one.id, uuid4())[7:])
    assert texts(other) == ["Once"]


@pytest.mark.row("C-520", "C-581", "C-582")
def test_a_deleted_loom_is_missing_on_every_route(loom):
    root = loom.root
    answer = loom.client.delete(loom.path)
    assert answer.status_code == 200
    assert answer.json() == {"id": loom.id, "object": "loom", "deleted": True}
    check_missing(loom.client, every_route(loom.id, root))
    assert loom.client.get("/v1/looms").json()["data"] == []


@pytest.mark.row("C-044")
@pytest.mark.parametrize("bad", ["x", "1234", "00000000-0000-0000-0000-00000000000g"])
def test_an_id_that_is_no_uuid_is_a_400_on_its_field(loom, bad):
    for method, path, body in every_route(bad, uuid4()):
        answer = loom.client.request(method, path, json=body)
        assert answer.status_code == 400, (method, path)
        assert answer.json()["error"]["param"] == "loom_id"
    for method, path, body in every_route(loom.id, bad)[7:]:
        answer = loom.client.request(method, path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "node_id"


@pytest.mark.row("C-045")
def test_an_id_may_be_of_any_version_and_letter_case(loom):
    for text in (
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-ffff-FFFF-ffff-FFFFFFFFFFFF",
        "AAAAAAAA-aaaa-8aaa-Baaa-aaaaaaaaaaaa",
    ):
        assert loom.client.get(f"/v1/looms/{text}").status_code == 404
    assert loom.client.get(f"/v1/looms/{loom.id.upper()}").json() == loom.read()
    assert loom.client.get("/v1/looms/aaaaaaaa-aaaa-9aaa-baaa-aaaaaaaaaaaa").status_code == 400


@pytest.mark.row("C-525", "C-526", "C-577")
def test_nodes_come_depth_first_in_the_order_in_which_siblings_were_made(plant):
    loom = plant(
        {"id": "r", "text": "A"},
        grown("1", "r", "b"),
        grown("2", "1", "c"),
        grown("3", "r", "d"),
    )
    ids = {node["text"]: node["id"] for node in loom.nodes()}
    loom.on(ids["b"], "/sibling", {"text": "e"})
    loom.on(ids["c"], "/sibling", {"text": "f"})
    assert texts(loom) == ["A", "b", "c", "f", "d", "e"]
    assert loom.path_text(ids["c"]) == "Abc"


@pytest.mark.row("C-530", "C-531", "C-529")
def test_a_grown_node_shows_its_request_with_defaults_and_without_n(plant):
    loom = plant(
        {"id": "r", "text": "A", "generation_config": OPTIONS, "logprobs": []},
        grown("1", "r", "b", generation_config={"model": "tiny", "n": 3, "seed": 5, "stop": "x"}),
        {"id": "2", "parent_id": "r", "text": "written"},
        grown("3", "r", "c", generation_config={"model": "tiny", "temperature": "hot"}),
        grown("4", "r", "d", generation_config={"temperature": 1}),
    )
    root, first, second, third, fourth = loom.nodes()
    assert (root["request"], root["logprobs"]) == (None, None)
    assert first["request"] == {
        "model": "tiny",
        "max_tokens": 16,
        "temperature": 1,
        "logprobs": None,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "seed": 5,
        "stop": "x",
    }
    assert [node["request"] for node in (second, third, fourth)] == [None] * 3


@pytest.mark.row("C-532")
def test_a_stored_option_outside_todays_range_is_shown_and_no_branch_takes_it(plant):
    loom = plant(
        {"id": "r", "text": "A"},
        grown("1", "r", "b", generation_config={"model": "tiny", "temperature": 5}),
    )
    request = loom.nodes()[1]["request"]
    assert request["temperature"] == 5
    answer = loom.on(loom.nodes()[1]["id"], "/branch", request)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"
    assert answer.json()["error"]["param"] == "temperature"


# The list, titles and pins.


def listed(caller) -> list[dict]:
    answer = caller.client.get("/v1/looms")
    assert answer.status_code == 200
    assert set(answer.json()) == {"object", "data"}
    assert answer.json()["object"] == "list"
    return answer.json()["data"]


@pytest.mark.row("C-524")
def test_the_list_has_these_fields(caller, loom):
    (item,) = listed(caller)
    assert set(item) == {"id", "object", "created_at", "updated_at", "title", "pinned", "prompt"}
    assert (item["object"], item["prompt"], item["id"]) == ("loom", "Once", loom.id)
    assert isinstance(item["updated_at"], int)


@pytest.mark.row("C-534", "C-536")
def test_pinned_looms_come_first_and_go_back_to_the_place_of_their_last_change(caller, make_loom):
    first, second, third = (make_loom(text) for text in "abc")

    def order() -> list[str]:
        return [item["prompt"] for item in listed(caller)]

    assert order() == ["c", "b", "a"]
    first.post("", {"pinned": True})
    assert order() == ["a", "c", "b"]
    second.post("", {"pinned": True})
    assert order() == ["b", "a", "c"]
    first.post("", {"pinned": True})
    assert order() == ["b", "a", "c"]
    second.post("", {"pinned": False})
    assert order() == ["a", "c", "b"]
    third.post("", {"pinned": False})
    assert order() == ["a", "c", "b"]


@pytest.mark.row("C-534")
def test_the_list_has_a_hundred_and_an_older_loom_is_read_by_its_id(caller, database):
    from looms.edits import create_loom

    oldest = create_loom(user_id=caller.user_id, prompt="oldest")
    for _ in range(100):
        create_loom(user_id=caller.user_id, prompt="x")
    assert len(listed(caller)) == 100
    assert "oldest" not in [item["prompt"] for item in listed(caller)]
    assert caller.client.get(f"/v1/looms/{oldest.id}").json()["nodes"][0]["text"] == "oldest"


def changes(loom: LoomApi) -> object:
    from looms.models import Loom

    return Loom.objects.get(id=loom.id).changed_at


@pytest.mark.row("C-535", "C-566")
def test_what_counts_as_a_change(plant):
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "bc"), grown("2", "r", "d"))
    _, first, second = (node["id"] for node in loom.nodes())
    made = changes(loom)
    quiet = [
        lambda: loom.post("", {"pinned": True}),
        lambda: loom.post("", {"pinned": False}),
        lambda: loom.post("", {"title": "Imported loom"}),
        lambda: loom.on(first, "", {"text": "bc"}),
        lambda: loom.post("/cancel"),
    ]
    for act in quiet:
        assert act().status_code == 200
        assert changes(loom) == made
    loud = [
        lambda: loom.on(first, "", {"text": "bcd"}),
        lambda: loom.on(first, "/split", {"offset": 1}),
        lambda: loom.on(first, "/sibling", {"text": "e"}),
        lambda: loom.client.delete(f"{loom.path}/nodes/{second}"),
        lambda: loom.post("", {"title": "Named"}),
        lambda: loom.post("/root", {"text": "New"}),
    ]
    for act in loud:
        assert act().status_code == 200
        assert changes(loom) > made
        made = changes(loom)


@pytest.mark.row("C-539", "C-541", "C-542")
def test_a_title_is_trimmed_and_cut_at_code_points(loom):
    answer = loom.post("", {"title": "  " + "é😀" * 70 + "  "})
    assert answer.json()["title"] == ("é😀" * 60)
    assert answer.json() == loom.read()
    both = loom.post("", {"title": "x", "pinned": True}).json()
    assert (both["title"], both["pinned"]) == ("x", True)


@pytest.mark.row("C-539")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"title": None}, "title"),
        ({"pinned": None}, "pinned"),
        ({"pinned": 1}, "pinned"),
        ({"title": "a\0"}, "title"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_change_of_a_loom_takes_title_and_pinned_alone(loom, body, param):
    answer = loom.post("", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_empty_change_changes_nothing(loom):
    before = loom.read()
    answer = loom.post("", {})
    assert (answer.status_code, answer.json()) == (200, before)


# Changes of the tree.


@pytest.mark.row("C-565", "C-566")
def test_an_edit_drops_log_probabilities_and_keeps_what_is_under_it(plant):
    token = {"token": "bc", "logprob": -1.0, "top": None}
    loom = plant(
        {"id": "r", "text": "A"}, grown("1", "r", "bc", logprobs=[token]), grown("2", "1", "d")
    )
    node = loom.nodes()[1]
    assert node["logprobs"]["tokens"] == ["bc"]
    same = loom.on(node["id"], "", {"text": "bc"}).json()
    assert same == loom.read()
    assert same["nodes"][1]["logprobs"] is not None
    edited = loom.on(node["id"], "", {"text": "x\r\ny\rz"}).json()
    assert edited == loom.read()
    assert edited["nodes"][1]["text"] == "x\ny\nz"
    assert edited["nodes"][1]["logprobs"] is None
    assert edited["nodes"][1]["request"] == node["request"]
    assert edited["nodes"][2]["text"] == "d"


@pytest.mark.row("C-569", "C-567")
@pytest.mark.parametrize(
    ("what", "body", "param"),
    [
        ("", {}, "text"),
        ("", {"text": "x", "offset": 1}, "offset"),
        ("", {"text": "a\0"}, "text"),
        ("/split", {}, "offset"),
        ("/split", {"offset": -1}, "offset"),
        ("/split", {"offset": 1.5}, "offset"),
        ("/split", {"offset": "1"}, "offset"),
        ("/split", {"offset": True}, "offset"),
        ("/split", {"offset": 1, "at": 2}, "at"),
        ("/split", {"offset": 1, "text": 5}, "text"),
        ("/sibling", {"text": None}, "text"),
        ("/sibling", {"text": "x", "model": "tiny"}, "model"),
    ],
)
def test_a_change_with_a_bad_field_is_refused(loom, what, body, param):
    answer = loom.on(loom.root, what, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert texts(loom) == ["Once"]


@pytest.mark.row("C-575", "C-570", "C-571", "C-572", "C-574", "C-681", "C-565")
def test_a_split_of_the_contracts_example(plant):
    tokens = [
        {"token": " crying", "logprob": -1.5, "top": [{"token": " crying", "logprob": -1.5}]},
        {"token": ",", "logprob": -0.5, "top": None},
    ]
    loom = plant(
        {"id": "r", "text": "A"}, grown("1", "r", " crying,", logprobs=tokens), grown("2", "1", "x")
    )
    _, node, child = loom.nodes()
    answer = loom.on(node["id"], "/split", {"offset": 7})
    assert answer.status_code == 200
    assert answer.json() == loom.read()
    _, upper, lower, under = answer.json()["nodes"]
    assert (upper["id"], upper["text"], lower["text"]) == (node["id"], " crying", ",")
    assert upper["logprobs"] == {
        "tokens": [" crying"],
        "token_logprobs": [-1.5],
        "top_logprobs": [{" crying": -1.5}],
        "text_offset": [0],
    }
    assert lower["logprobs"] == {
        "tokens": [","],
        "token_logprobs": [-0.5],
        "top_logprobs": [None],
        "text_offset": [0],
    }
    assert (lower["parent_id"], under["parent_id"]) == (node["id"], lower["id"])
    assert (upper["request"]["seed"], lower["request"]["seed"]) == (7, None)
    assert lower["request"] | {"seed": 7} == upper["request"]
    assert loom.path_text(child["id"]) == "A crying,x"


@pytest.mark.row("C-571")
def test_a_token_across_the_cut_leaves_the_child_without_log_probabilities(plant):
    tokens = [{"token": "ab", "logprob": -1.0}, {"token": "cd", "logprob": -2.0}]
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "abcd", logprobs=tokens))
    loom.on(loom.nodes()[1]["id"], "/split", {"offset": 3})
    _, upper, lower = loom.nodes()
    assert (upper["text"], upper["logprobs"]["tokens"]) == ("abc", ["ab"])
    assert (lower["text"], lower["logprobs"]) == ("d", None)


@pytest.mark.row("C-573", "C-567")
def test_a_split_of_another_text_cuts_that_and_keeps_no_log_probabilities(plant):
    tokens = [{"token": "ab", "logprob": -1.0}]
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "ab", logprobs=tokens))
    loom.on(loom.nodes()[1]["id"], "/split", {"offset": 2, "text": "x\r\nyz"})
    _, upper, lower = loom.nodes()
    assert (upper["text"], lower["text"]) == ("x\n", "yz")
    assert (upper["logprobs"], lower["logprobs"]) == (None, None)


@pytest.mark.row("C-569")
@pytest.mark.parametrize(
    ("offset", "halves"),
    [(0, ["", "a😀b"]), (2, ["a😀", "b"]), (3, ["a😀b", ""]), (10**30, ["a😀b", ""])],
)
def test_a_split_counts_code_points_and_cuts_at_the_end_at_last(plant, offset, halves):
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "a😀b"))
    loom.on(loom.nodes()[1]["id"], "/split", {"offset": offset})
    assert texts(loom)[1:] == halves


@pytest.mark.row("C-570", "C-574")
def test_a_split_moves_the_children_in_their_order_and_a_written_node_has_no_request(loom):
    loom.on(loom.root, "/split", {"offset": 4})
    under = loom.nodes()[1]["id"]
    for text in "abc":
        loom.on(under, "/sibling", {"text": text})
    loom.client.delete(f"{loom.path}/nodes/{under}")
    assert texts(loom) == ["Once", "a", "b", "c"]
    nodes = loom.on(loom.root, "/split", {"offset": 2}).json()["nodes"]
    assert [node["text"] for node in nodes] == ["On", "ce", "a", "b", "c"]
    assert {node["parent_id"] for node in nodes[2:]} == {nodes[1]["id"]}
    assert nodes[1]["request"] is None
    assert nodes[0]["parent_id"] is None


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_both_halves_of_a_split_keep_the_status(plant, status):
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "bc", status=status))
    loom.on(loom.nodes()[1]["id"], "/split", {"offset": 1})
    assert [node["status"] for node in loom.nodes()[1:]] == [status, status]


def check_conflict(answer, loom: LoomApi, before: dict) -> str:
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]["code"] is None
    assert answer.headers["x-should-retry"] == "false"
    assert loom.read() == before
    return answer.json()["error"]["message"]


@pytest.mark.row("C-564", "C-568", "C-583", "C-076", "C-548")
def test_a_failed_node_takes_no_branch_edit_or_split_and_can_be_deleted(plant):
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "b", status="failed"))
    before, failed = loom.read(), loom.nodes()[1]["id"]
    check_conflict(loom.on(failed, "/branch", {"model": "tiny"}), loom, before)
    check_conflict(loom.on(failed, "", {"text": "x"}), loom, before)
    check_conflict(loom.on(failed, "/split", {"offset": 0}), loom, before)
    assert loom.on(failed, "/sibling", {"text": "x"}).status_code == 200
    assert loom.client.delete(f"{loom.path}/nodes/{failed}").status_code == 200
    assert texts(loom) == ["A", "x"]


@pytest.mark.row("C-578", "C-580", "C-583")
def test_a_root_has_no_sibling_and_is_not_deleted(loom):
    before = loom.read()
    check_conflict(loom.on(loom.root, "/sibling", {"text": "x"}), loom, before)
    check_conflict(loom.client.delete(f"{loom.path}/nodes/{loom.root}"), loom, before)


@pytest.mark.row("C-579", "C-531", "C-565")
def test_a_new_root_replaces_all_roots(plant):
    loom = plant({"id": "r", "text": "A"}, grown("1", "r", "b"), {"id": "s", "text": "C"})
    old = {node["id"] for node in loom.nodes()}
    answer = loom.post("/root", {"text": "New\r\n"})
    assert answer.status_code == 200
    (root,) = answer.json()["nodes"]
    assert (root["text"], root["parent_id"], root["request"]) == ("New\n", None, None)
    assert root["id"] not in old
    assert answer.json() == loom.read()


@pytest.mark.row("C-580", "C-582", "C-565")
def test_a_deleted_node_goes_with_all_under_it(plant):
    loom = plant(
        {"id": "r", "text": "A"}, grown("1", "r", "b"), grown("2", "1", "c"), grown("3", "r", "d")
    )
    node, under = (loom.nodes()[place]["id"] for place in (1, 2))
    answer = loom.client.delete(f"{loom.path}/nodes/{node}")
    assert answer.status_code == 200
    assert [each["text"] for each in answer.json()["nodes"]] == ["A", "d"]
    for gone in (node, under):
        check_missing(loom.client, every_route(loom.id, gone)[7:])


@pytest.mark.row("C-576", "C-550", "C-578", "C-684")
def test_a_full_loom_takes_no_more_nodes_and_says_how_many_fit(plant, unchecked):
    chain = [grown(str(n), "r", "x") for n in range(1, 1997)]
    loom = unchecked(plant({"id": "r", "text": "A"}, *chain))
    node = loom.nodes()[1]["id"]
    answer = loom.on(node, "/branch", {"model": "tiny", "n": 4})
    assert answer.status_code == 409
    assert "2000" in answer.json()["error"]["message"]
    assert " 3 more fit" in answer.json()["error"]["message"]
    for _ in range(3):
        assert loom.on(node, "/sibling", {"text": "y"}).status_code == 200
    for what, body in (("/split", {"offset": 0}), ("/sibling", {"text": "y"})):
        answer = loom.on(node, what, body)
        assert answer.status_code == 409
        assert " 0 more fit" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
    assert len(loom.nodes()) == 2000


@pytest.mark.row("C-622")
def test_reads_and_changes_work_while_the_spend_stop_is_on(loom, caller, database):
    from billing import spend_stop

    spend_stop.lock(by=None)
    try:
        assert loom.on(loom.root, "/branch", {"model": "tiny"}).status_code == 429
        loom.on(loom.root, "/split", {"offset": 2})
        loom.on(loom.nodes()[1]["id"], "", {"text": "x"})
        assert loom.post("/cancel").status_code == 200
        assert loom.client.get(f"{loom.path}/export").status_code == 200
        assert texts(loom) == ["On", "x"]
    finally:
        spend_stop.clear(by=None)
