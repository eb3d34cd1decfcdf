"""Branches: what they take, what they refuse, and what they make."""

from collections import Counter

import pytest

from tests.looms.conftest import LoomApi

FIELDS = {
    "model", "n", "max_tokens", "temperature", "logprobs", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop",
}  # fmt: skip


@pytest.mark.row("C-545", "C-546", "C-530", "C-313")
def test_a_branch_makes_n_queued_nodes_with_seeds_in_a_row(loom, grows):
    answer = loom.on(loom.root, "/branch", {"model": "tiny", "n": 3, "seed": 40})
    assert answer.status_code == 200
    assert set(answer.json()) == {"object", "data"}
    assert answer.json()["object"] == "list"
    nodes = answer.json()["data"]
    assert [node["request"]["seed"] for node in nodes] == [40, 41, 42]
    assert all((node["status"], node["text"]) == ("queued", "") for node in nodes)
    assert all(node["parent_id"] == loom.root for node in nodes)
    assert all(node["request"]["max_tokens"] == 16 for node in nodes)
    assert all("n" not in node["request"] for node in nodes)
    assert [node["id"] for node in loom.nodes()[1:]] == [node["id"] for node in nodes]


@pytest.mark.row("C-546")
def test_without_a_seed_one_is_drawn_for_the_branch(make_loom, grows):
    seeds = [
        [node["request"]["seed"] for node in loom.branch(loom.root, n=2)]
        for loom in (make_loom() for _ in range(3))
    ]
    assert all(second == first + 1 for first, second in seeds)
    assert all(0 <= first <= 2_147_483_647 for first, _ in seeds)
    assert len({first for first, _ in seeds}) == 3


@pytest.mark.row("C-547", "C-546")
def test_the_last_seed_of_a_branch_has_to_be_a_seed(loom, grows):
    most = 9_007_199_254_740_991
    answer = loom.on(loom.root, "/branch", {"model": "tiny", "n": 2, "seed": most})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "seed"
    assert len(loom.nodes()) == 1
    nodes = loom.branch(loom.root, n=2, seed=most - 1)
    assert [node["request"]["seed"] for node in nodes] == [most - 1, most]


@pytest.mark.row("C-543", "C-544", "C-313")
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": "x"}, "prompt"),
        ({"echo": True}, "echo"),
        ({"stream": True}, "stream"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"output_residual_stream": True}, "output_residual_stream"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": 1001}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"logprobs": 101}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "a\0"}, "stop"),
        ({"stop": ""}, "stop"),
    ],
)
def test_a_bad_field_of_a_branch_is_refused(loom, grows, change, param):
    answer = loom.on(loom.root, "/branch", {"model": "tiny", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"
    assert answer.json()["error"]["param"] == param
    assert len(loom.nodes()) == 1


@pytest.mark.row("C-543", "C-530")
def test_every_field_of_a_branch_is_kept_and_reaches_the_engine(loom, grows):
    options = {
        "model": "tiny",
        "max_tokens": 5,
        "temperature": 0.5,
        "logprobs": 2,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "seed": 11,
        "stop": ["x", "y"],
    }
    assert set(options) | {"n"} == FIELDS
    (node,) = loom.branch(loom.root, **options)
    assert node["request"] == options
    sent = grows.next().request
    assert (sent.max_tokens, sent.n, sent.logprobs) == (5, 1, 2)
    assert sent.stopping.texts == ("x", "y")
    sampling = {name: getattr(sent.sampling, name) for name in sent.sampling.__struct_fields__}
    assert sampling == {name: options[name] for name in sampling}


def test_a_request_of_a_node_is_a_branch_again_also_by_the_served_name(loom, grows):
    (node,) = loom.branch(loom.root, seed=3, stop="x")
    (again,) = loom.branch(loom.root, **node["request"])
    assert again["request"] == node["request"]
    (by_name,) = loom.branch(loom.root, model="basalt/tiny-llama")
    assert by_name["request"]["model"] == "tiny"


@pytest.mark.row("C-682")
def test_several_nodes_at_temperature_0_are_taken(loom, grows):
    nodes = loom.branch(loom.root, n=3, temperature=0)
    asked = [grows.next().request for _ in nodes]
    assert all(request.n == 1 and request.sampling.temperature == 0 for request in asked)


@pytest.mark.row("C-549", "C-067")
def test_an_unserved_model_makes_no_node(loom, grows):
    answer = loom.on(loom.root, "/branch", {"model": "gpt-2"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == (
        "The model `gpt-2` does not exist. The API serves tiny, tiny-other."
    )
    assert len(loom.nodes()) == 1


@pytest.mark.row("C-549", "C-361", "C-333", "C-311")
def test_too_few_tokens_for_one_node_make_no_node(make_caller, make_loom, grows):
    from inference import catalogue
    from inference.tokenizers import counter_for

    text = "Once upon a time"
    prompt = counter_for(catalogue.current().default).encode_texts([text])[0].count
    poor = make_caller(tokens=prompt + 9)
    loom = make_loom(text, poor.client)
    answer = loom.on(loom.root, "/branch", {"model": "tiny", "max_tokens": 10})
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "budget_exceeded"
    assert f"up to {prompt + 10} tokens" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert len(loom.nodes()) == 1
    assert poor.left() == prompt + 9
    # One Node fits, so a Branch of several is taken.
    assert len(loom.branch(loom.root, max_tokens=9, n=2)) == 2


@pytest.mark.row("C-549", "C-619", "A-490")
def test_the_spend_stop_makes_no_node(loom, grows):
    from billing import spend_stop

    spend_stop.lock(by=None)
    try:
        answer = loom.on(loom.root, "/branch", {"model": "tiny"})
    finally:
        spend_stop.clear(by=None)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "spend_cap"
    assert answer.headers["retry-after"] == "3600"
    assert answer.headers["x-should-retry"] == "false"
    assert len(loom.nodes()) == 1


@pytest.mark.row("C-548", "C-583")
def test_a_node_that_grows_takes_no_branch(loom, grows):
    (node,) = loom.branch(loom.root)
    grows.next()
    loom.until(node["id"], "running")
    answer = loom.on(node["id"], "/branch", {"model": "tiny"})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] is None
    assert answer.headers["x-should-retry"] == "false"
    assert len(loom.nodes()) == 2


@pytest.mark.row("C-537", "C-538", "C-540")
def test_the_first_branch_names_an_untitled_loom(make_loom, grows):
    long = "x" * 39 + "😀yz\nsecond line"
    loom = make_loom(long)
    loom.branch(loom.root)
    assert loom.read()["title"] == "x" * 39 + "😀"
    named = make_loom("Once\nupon")
    named.post("", {"title": "Mine"})
    named.branch(named.root)
    assert named.read()["title"] == "Mine"
    named.post("", {"title": "   "})
    assert named.read()["title"] == ""
    named.branch(named.root)
    assert named.read()["title"] == "Once"
    empty = make_loom("\nsecond")
    empty.branch(empty.root)
    assert empty.read()["title"] == ""


@pytest.mark.row("C-535")
def test_a_branch_is_a_change_of_its_loom(make_loom, caller, grows):
    first, second = make_loom("a"), make_loom("b")
    first.branch(first.root)
    prompts = [item["prompt"] for item in caller.client.get("/v1/looms").json()["data"]]
    assert prompts == ["a", "b"]
    assert second.nodes()[0]["text"] == "b"


@pytest.mark.row("C-553", "C-365", "C-366")
def test_branches_count_in_the_work_bucket(make_caller, make_loom, narrow, grows):
    caller = make_caller(at=narrow)
    loom = make_loom("Once", caller.client)
    root = loom.root
    statuses = Counter(loom.on(root, "/branch", {"model": "gpt-2"}).status_code for _ in range(35))
    assert statuses[429] >= 3
    assert statuses[400] >= 30
    assert loom.client.get(loom.path).status_code == 200


def test_options_of_the_last_branch_are_kept_for_the_next(loom, grows):
    from looms.models import Loom

    loom.branch(loom.root, n=3, temperature=0.5, seed=4)
    kept = Loom.objects.get(id=loom.id)
    assert kept.branch_nodes == 3
    assert '"temperature":0.5' in kept.branch_options
    assert isinstance(loom, LoomApi)
