"""Nodes as they grow: in the background, each as one Completion that holds and pays."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inference.engine.messages import FailureCode, PackedLogprobs
from tests.billing.leases import lose
from tests.conftest import Caller
from tests.live import eventually
from tests.looms.conftest import LoomApi

pytestmark = pytest.mark.timeout(120)


def packed(*rows: list[tuple[int, float]]) -> PackedLogprobs:
    """Rows of log probabilities: the token, then the likeliest others."""
    width = max(len(row) for row in rows)
    filled = [row + [(-1, -np.inf)] * (width - len(row)) for row in rows]
    return PackedLogprobs(
        rows=len(rows),
        width=width,
        ids=np.array([[each[0] for each in row] for row in filled], "<i4").tobytes(),
        logprobs=np.array([[each[1] for each in row] for row in filled], "<f4").tobytes(),
        ranks=np.ones((len(rows), width), "<i4").tobytes(),
    )


def counter():
    from inference import catalogue
    from inference.tokenizers import counter_for

    return counter_for(catalogue.current().default)


def in_hand() -> bool:
    from jobs import queue
    from looms.models import Growth

    return queue.in_hand(Growth).exists()


@pytest.mark.row("C-551", "C-555", "C-527", "C-604", "C-336")
def test_a_node_grows_from_the_text_of_its_path_and_pays_what_was_used(loom, caller, grows):
    loom.on(loom.root, "/split", {"offset": 2})
    (node,) = loom.branch(loom.nodes()[1]["id"], max_tokens=4, seed=9)
    asked = grows.next()
    assert asked.request.prompts == (counter().encode_texts(["Once"])[0].ids,)
    assert asked.request.cache_scope == str(caller.user_id)
    assert loom.until(node["id"], "running")["text"] == ""
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    assert loom.node(node["id"])["status"] == "running"
    asked.say(" a", finish="length")
    asked.finish()
    done = loom.until(node["id"], "completed")
    assert (done["text"], done["logprobs"], done["error"]) == (" upon a", None, None)
    used = len(asked.request.prompts[0]) + 2
    assert caller.left() == 100_000 - used
    assert caller.open_holds() == 0


@pytest.mark.row("C-552", "C-551")
def test_sampling_a_nodes_request_again_asks_the_engine_for_the_same(loom, grows):
    grows.answers = (" x",)
    (node,) = loom.branch(loom.root, max_tokens=4, temperature=0.7, seed=12)
    first = loom.until(node["id"], "completed")
    grows.answers = None
    loom.branch(loom.root, **first["request"])
    request = grows.next().request
    loom.branch(loom.root, max_tokens=4, temperature=0.7, seed=12)
    again = grows.next().request
    assert (request.prompts, request.sampling, request.max_tokens) == (
        again.prompts,
        again.sampling,
        again.max_tokens,
    )


def test_a_top_k_of_any_size_is_kept_as_sent_and_filters_nothing(loom, grows):
    (node,) = loom.branch(loom.root, max_tokens=1, top_k=2**70)
    asked = grows.next()
    assert asked.request.sampling.top_k == 2**31 - 1
    asked.answer("x")
    assert loom.until(node["id"], "completed")["request"]["top_k"] == 2**70


@pytest.mark.case(49)
@pytest.mark.row("C-333", "C-362")
def test_each_node_of_a_branch_holds_and_pays_for_itself(loom, caller, grows):
    nodes = loom.branch(loom.root, max_tokens=10, n=5)
    asked = [grows.next() for _ in nodes]
    prompt = len(asked[0].request.prompts[0])
    assert caller.open_holds() == 5
    assert caller.left() == 100_000 - 5 * (prompt + 10)
    assert {each.request.sampling.seed for each in asked} == {
        node["request"]["seed"] for node in nodes
    }
    for each in asked:
        each.answer(" x")
    for node in nodes:
        loom.until(node["id"], "completed")
    assert caller.left() == 100_000 - 5 * (prompt + 1)


@pytest.mark.row("C-362", "C-562", "C-342")
def test_a_node_that_finds_no_tokens_fails_with_the_refusal(make_caller, make_loom, grows):
    prompt = counter().encode_texts(["Once"])[0].count
    poor = make_caller(tokens=prompt + 12)
    loom = make_loom("Once", poor.client)
    siblings = {node["id"] for node in loom.branch(loom.root, max_tokens=10, n=2)}
    asked = grows.next()
    # Both are in hand at once, and either may be the one that finds the tokens.
    failed = eventually(
        lambda: next((n for n in map(loom.node, siblings) if n["status"] == "failed"), None)
    )
    assert failed["error"]["code"] == "budget_exceeded"
    assert failed["error"]["param"] is None
    assert f"up to {prompt + 10} tokens" in failed["error"]["message"]
    asked.answer(" x")
    loom.until((siblings - {failed["id"]}).pop(), "completed")
    assert poor.left() == 12 - 1


@pytest.mark.row("C-681", "C-529", "C-224")
def test_log_probabilities_of_a_node_are_of_its_own_tokens(loom, grows):
    one, two = (counter().encode_texts([text], False)[0].ids for text in (" a", "b"))
    first, second = one[-1], two[-1]
    texts = [counter().decode_token_in_context((), each) for each in (first, second)]
    (node,) = loom.branch(loom.root, max_tokens=2, logprobs=1)
    asked = grows.next()
    rows = [[(first, -1.5)], [(second, -2.5), (first, -0.5)]]
    asked.say(texts[0], token_ids=(first,), logprobs=packed(rows[0]))
    asked.say(texts[1], token_ids=(second,), logprobs=packed(rows[1]), finish="length")
    asked.finish()
    done = loom.until(node["id"], "completed")
    assert done["logprobs"] == {
        "tokens": texts,
        "token_logprobs": [-1.5, -2.5],
        "top_logprobs": [{texts[0]: -1.5}, {texts[1]: -2.5, texts[0]: -0.5}],
        "text_offset": [0, len(texts[0])],
    }


@pytest.mark.case(19)
def test_a_nul_that_the_model_wrote_is_kept_as_a_substitute_and_its_id(loom, grows):
    from looms.models import Node
    from looms.tokens import read_sample

    (node,) = loom.branch(loom.root, max_tokens=3)
    asked = grows.next()
    asked.say(" a\0b", token_ids=(3, 190, 4), finish="length")
    asked.finish()
    done = loom.until(node["id"], "completed")
    assert done["text"] == " a\N{REPLACEMENT CHARACTER}b"
    assert read_sample(bytes(Node.objects.get(id=node["id"]).sample)).ids == [3, 190, 4]


def test_a_node_keeps_where_it_came_from(loom, grows):
    from looms.models import Node

    grows.answers = (" x",)
    first, _second = loom.branch(loom.root, n=2, seed=5)
    loom.until(first["id"], "completed")
    (child,) = loom.branch(first["id"])
    loom.until(child["id"], "completed")
    kept = Node.objects.get(id=first["id"])
    assert kept.model == "tiny"
    assert kept.identity.startswith("folder") or "sha" in kept.identity or kept.identity
    assert kept.finish_reason == "length"
    assert kept.prompt_tokens == counter().encode_texts(["Once"])[0].count
    assert kept.chosen_at is not None
    assert Node.objects.get(loom_id=loom.id, number=2).chosen_at is None


# Order and places.


@pytest.mark.row("C-554", "C-374", "A-334")
def test_eight_nodes_run_at_once_over_all_users_oldest_first(make_loom, make_caller, grows):
    looms = [make_loom("Once", make_caller().client) for _ in range(2)]
    order = [node["id"] for loom in looms for node in loom.branch(loom.root, n=6)]
    asked = [grows.next() for _ in range(8)]

    def running() -> list[str]:
        return [
            node["id"] for loom in looms for node in loom.nodes() if node["status"] == "running"
        ]

    assert eventually(lambda: sorted(running()) == sorted(order[:8]))
    asked[0].answer(" x")
    grows.next()
    assert eventually(lambda: len(running()) == 8)
    assert order[8] in running()
    assert order[9] not in running()


@pytest.mark.row("A-335", "C-532")
def test_a_waiting_node_with_a_value_outside_todays_ranges_runs_with_it(loom, grows):
    from looms.models import Node

    first = [grows.next() for _ in loom.branch(loom.root, n=8)]
    (node,) = loom.branch(loom.root)
    kept = Node.objects.get(id=node["id"])
    options = json.loads(kept.options) | {"temperature": 5}
    Node.objects.filter(id=node["id"]).update(options=json.dumps(options))
    assert loom.node(node["id"])["request"]["temperature"] == 5
    exported = loom.client.get(f"{loom.path}/export").json()["nodes"]
    assert exported[-1]["generation_config"]["temperature"] == 5
    for asked in first:
        asked.answer(" x")
    asked = grows.next()
    assert asked.request.sampling.temperature == 5
    asked.answer(" y")
    assert loom.until(node["id"], "completed", "failed")["text"] == " y"


@pytest.mark.row("C-616", "C-375", "A-580")
def test_a_node_waits_for_a_place_of_its_model(loom, grows, monkeypatch):
    from django.conf import settings

    full = settings.BASALT.model_copy(update={"max_inflight_per_model": 1})
    monkeypatch.setattr(settings, "BASALT", full)
    nodes = loom.branch(loom.root, n=2)
    asked = grows.next()
    statuses = lambda: sorted(node["status"] for node in loom.nodes()[1:])  # noqa: E731
    eventually(lambda: statuses() == ["queued", "running"])
    asked.answer(" x")
    grows.next().answer(" y")
    for node in nodes:
        loom.until(node["id"], "completed")


@pytest.mark.row("C-380", "C-376", "A-580")
def test_a_node_of_an_open_model_fails_at_once(loom, caller, grows):
    from django.conf import settings

    nodes = loom.branch(loom.root, n=settings.BASALT.breaker_failures)
    for _ in nodes:
        grows.next().fail(FailureCode.SERVER_ERROR)
    for node in nodes:
        loom.until(node["id"], "failed")
    (node,) = loom.branch(loom.root)
    failed = loom.until(node["id"], "failed")
    assert failed["error"]["code"] == "circuit_open"
    assert failed["error"]["retryable"] is True
    assert caller.left() == 100_000


# Failures.


@pytest.mark.row("C-562", "C-027", "C-097")
def test_a_path_that_is_too_long_fails_its_node(make_loom, caller, grows):
    loom = make_loom("word " * 600)
    (node,) = loom.branch(loom.root)
    failed = loom.until(node["id"], "failed")
    assert failed["error"]["code"] == "context_length_exceeded"
    assert failed["error"]["param"] is None
    assert "request_id" not in failed["error"]
    assert caller.left() == 100_000


@pytest.mark.row("C-562", "C-564", "C-337")
def test_a_failed_node_keeps_its_text_and_pays_for_it(loom, caller, grows):
    (node,) = loom.branch(loom.root, max_tokens=10)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    asked.fail(FailureCode.SERVER_ERROR, "it broke")
    failed = loom.until(node["id"], "failed")
    assert failed["text"] == " upon"
    assert failed["error"]["code"] == "upstream_server_error"
    assert failed["error"]["type"] == "upstream_error"
    assert failed["error"]["retryable"] is False
    assert "request_id" not in failed["error"]
    assert caller.left() == 100_000 - len(asked.request.prompts[0]) - 1


@pytest.mark.row("C-562")
def test_the_param_of_a_failed_node_is_a_branch_field_or_null(loom, grows):
    nodes = loom.branch(loom.root, n=2)
    grows.next().fail(FailureCode.INVALID_REQUEST, "no", param="logprobs")
    grows.next().fail(FailureCode.INVALID_REQUEST, "no", param="prompt")
    params = {loom.until(node["id"], "failed")["error"]["param"] for node in nodes}
    assert params == {"logprobs", None}


@pytest.mark.row("C-683", "C-113")
def test_a_stream_that_is_cut_fails_its_node_and_keeps_the_text(loom, grows):
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    asked.skip_event()
    asked.say(" lost")
    failed = loom.until(node["id"], "failed")
    assert failed["error"]["message"] == ("Inference ended the stream before it was complete.")
    assert failed["text"] == " upon"


@pytest.mark.row("C-563")
def test_text_and_error_survive_when_their_first_save_failed(loom, grows, monkeypatch):
    from django.db import OperationalError

    from looms.growth import NodeRecord

    real, tries = NodeRecord.columns, []

    def fail_once(self, state):
        tries.append(state)
        if len(tries) == 1:
            raise OperationalError("the database is away")
        return real(self, state)

    (node,) = loom.branch(loom.root)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    monkeypatch.setattr(NodeRecord, "columns", fail_once)
    asked.fail(FailureCode.SERVER_ERROR, "it broke")
    failed = loom.until(node["id"], "failed")
    assert (failed["text"], failed["error"]["message"]) == (" upon", "it broke")
    assert len(tries) == 2


# Stops.


@pytest.mark.row("C-560", "C-339", "C-561")
def test_a_cancel_stops_what_grows_and_pays_for_its_text(loom, caller, grows):
    nodes = loom.branch(loom.root, n=2, max_tokens=50)
    running = [grows.next(), grows.next()]
    running[0].say(" upon")
    texts = lambda: {node["text"] for node in loom.nodes()[1:]}  # noqa: E731
    eventually(lambda: " upon" in texts())
    answer = loom.post("/cancel")
    assert answer.status_code == 200
    assert [node["status"] for node in answer.json()["nodes"][1:]] == ["cancelled"] * 2
    assert all(each.aborted.wait(10) for each in running)
    eventually(lambda: not in_hand())
    prompt = len(running[0].request.prompts[0])
    # One had a token, and pays for it; the other had none.
    assert caller.left() == 100_000 - prompt - 1
    assert texts() == {" upon", ""}
    assert caller.open_holds() == 0
    unchanged = loom.read()
    assert loom.post("/cancel").json() == unchanged
    assert {node["id"] for node in nodes} == {node["id"] for node in unchanged["nodes"][1:]}


@pytest.mark.row("C-560", "C-344")
def test_a_queued_node_that_is_cancelled_never_runs(make_loom, caller, grows):
    blocker, loom = make_loom("Twice"), make_loom()
    blocker.branch(blocker.root, n=8)
    blocking = [grows.next() for _ in range(8)]
    (node,) = loom.branch(loom.root)
    assert loom.post("/cancel").json()["nodes"][1]["status"] == "cancelled"
    for each in blocking:
        each.answer(" x")
    eventually(lambda: not in_hand())
    assert grows.asked.empty()
    assert loom.node(node["id"])["status"] == "cancelled"


@pytest.mark.row("C-561")
def test_a_branch_of_a_cancelled_node_waits_until_its_last_tokens_are_saved(
    loom, grows, monkeypatch
):
    from looms import growth

    (node,) = loom.branch(loom.root, max_tokens=50)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    slow = growth._measure

    def wait(record, generation) -> None:
        import time

        time.sleep(0.6)
        slow(record, generation)

    monkeypatch.setattr(growth, "_measure", wait)
    monkeypatch.setattr(growth.NodeRecord, "save_text", lambda self: None)
    asked.say(" a time")
    loom.post("/cancel")
    (child,) = loom.branch(node["id"])
    under = grows.next()
    final = loom.node(node["id"])
    assert final["status"] == "cancelled"
    assert under.request.prompts == (counter().encode_texts(["Once" + final["text"]])[0].ids,)
    under.answer(" x")
    loom.until(child["id"], "completed")
    assert loom.node(node["id"])["text"] == final["text"]


@pytest.mark.row("C-568", "C-578", "C-579", "C-580", "C-581", "C-583")
def test_what_touches_a_growing_node_has_to_wait(loom, grows):
    loom.on(loom.root, "/split", {"offset": 2})
    under = loom.nodes()[1]["id"]
    (node,) = loom.branch(under)
    asked = grows.next()
    loom.until(node["id"], "running")
    before = loom.read()
    refused = [
        loom.on(node["id"], "", {"text": "x"}),
        loom.on(node["id"], "/split", {"offset": 0}),
        loom.on(loom.root, "", {"text": "x"}),
        loom.on(under, "/split", {"offset": 0}),
        loom.on(node["id"], "/sibling", {"text": "x"}),
        loom.on(under, "/sibling", {"text": "x"}),
        loom.post("/root", {"text": "x"}),
        loom.client.delete(f"{loom.path}/nodes/{node['id']}"),
        loom.client.delete(f"{loom.path}/nodes/{under}"),
        loom.client.delete(loom.path),
    ]
    for answer in refused:
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["code"] is None
        assert answer.headers["x-should-retry"] == "false"
    assert loom.read() == before
    asked.answer(" x")
    loom.until(node["id"], "completed")
    assert loom.on(under, "", {"text": "x"}).status_code == 200


# Keys, Users, the spend stop.


def key_of(caller: Caller):
    from accounts.models import ApiKey

    return ApiKey.objects.filter(id=caller.key_id)


def blocked(make_loom, grows) -> list:
    """Fill all places, so that what comes after waits."""
    blocker = make_loom("Twice")
    blocker.branch(blocker.root, n=8)
    return [grows.next() for _ in range(8)]


@pytest.mark.row("C-613", "C-614", "A-085", "A-164")
@pytest.mark.parametrize("what", ["revoked", "suspended"])
def test_waiting_nodes_of_a_revoked_key_or_a_suspended_user_fail_before_their_turn(
    make_loom, make_caller, grows, what
):
    from django.utils import timezone

    from accounts.models import User

    blocking = blocked(make_loom, grows)
    other = make_caller()
    loom = make_loom("Once", other.client)
    (node,) = loom.branch(loom.root)
    if what == "revoked":
        key_of(other).update(revoked_at=timezone.now())
    else:
        User.objects.filter(id=other.user_id).update(suspended_at=timezone.now())
    # All places are taken all the while.
    failed = eventually(lambda: (kept := node_row(node["id"])).status == "failed" and kept)
    User.objects.filter(id=other.user_id).update(suspended_at=None)
    error = json.loads(failed.error)
    assert error["code"] == "invalid_api_key"
    expected = "was revoked" if what == "revoked" else "suspended"
    assert expected in error["message"]
    for each in blocking:
        each.answer(" x")
    eventually(lambda: not grows.running)
    assert grows.asked.empty()
    assert node_row(node["id"]).status == "failed"
    assert other.left() == 100_000


def node_row(node_id: str):
    from looms.models import Node

    return Node.objects.get(id=node_id)


@pytest.mark.row("C-612", "C-447")
def test_nodes_of_a_paused_key_wait_and_do_not_block_others(make_loom, make_caller, grows):
    from accounts.keys import pause_key, resume_key

    blocking = blocked(make_loom, grows)
    paused, other = make_caller(), make_caller()
    waits, runs = make_loom("Once", paused.client), make_loom("Once", other.client)
    (late,) = waits.branch(waits.root)
    (early,) = runs.branch(runs.root)
    pause_key(key_id=paused.key_id)
    blocking[0].answer(" x")
    grows.next().answer(" y")
    runs.until(early["id"], "completed")
    assert node_row(late["id"]).status == "queued"
    assert paused.left() == 100_000
    resume_key(key_id=paused.key_id)
    grows.next().answer(" z")
    assert waits.until(late["id"], "completed")["text"] == " z"


@pytest.mark.row("C-612")
def test_a_running_node_of_a_paused_key_finishes(loom, caller, grows):
    from accounts.keys import pause_key

    (node,) = loom.branch(loom.root)
    asked = grows.next()
    pause_key(key_id=caller.key_id)
    asked.answer(" x")
    done = eventually(lambda: (kept := node_row(node["id"])).status == "completed" and kept)
    assert done.text == " x"


@pytest.mark.row("C-620", "C-621")
def test_queued_nodes_wait_while_the_spend_stop_is_on_and_running_ones_finish(make_loom, grows):
    from billing import spend_stop

    blocking = blocked(make_loom, grows)
    loom = make_loom()
    (node,) = loom.branch(loom.root)
    spend_stop.lock(by=None)
    try:
        for each in blocking:
            each.answer(" x")
        eventually(lambda: not in_hand())
        assert grows.asked.empty()
        assert loom.node(node["id"])["status"] == "queued"
    finally:
        spend_stop.clear(by=None)
    grows.next().answer(" y")
    loom.until(node["id"], "completed")


# Restarts and crashes.


@pytest.mark.row("C-605", "C-607", "C-346")
def test_a_planned_stop_puts_a_node_back_and_it_starts_again(loom, caller, grows, runner):
    import asyncio

    (node,) = loom.branch(loom.root)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")

    async def put_back() -> None:
        from jobs.records import Stop

        for desk in runner.runner._desks.values():
            for each in list(desk.in_hand):
                each.stop(Stop.PUT_BACK)

    asyncio.run_coroutine_threadsafe(put_back(), runner._loop).result(10)
    again = grows.next()
    assert asked.aborted.is_set()
    assert loom.until(node["id"], "running")["text"] == ""
    again.answer(" once")
    assert loom.until(node["id"], "completed")["text"] == " once"
    assert caller.left() == 100_000 - len(again.request.prompts[0]) - 1


@pytest.mark.row("C-608", "C-607", "C-611")
def test_a_node_whose_process_died_runs_again_and_the_late_one_writes_nothing(loom, caller, grows):
    from looms.models import Growth

    (node,) = loom.branch(loom.root)
    asked = grows.next()
    asked.say(" upon")
    eventually(lambda: loom.node(node["id"])["text"] == " upon")
    grows.answers = (" once",)
    lose(Growth.objects.get(node_id=node["id"]).owner)
    assert loom.until(node["id"], "completed")["text"] == " once"
    asked.answer(" late")
    eventually(lambda: caller.open_holds() == 0)
    assert loom.node(node["id"])["text"] == " once"
    assert caller.left() == 100_000 - len(asked.request.prompts[0]) - 1


@pytest.mark.row("C-550", "C-545")
def test_branches_at_once_share_what_room_there_is(plant, grows, unchecked):
    grown = [{"id": str(n), "parent_id": "r", "text": "x"} for n in range(1, 1995)]
    loom = unchecked(plant({"id": "r", "text": "A"}, *grown))
    root = loom.root

    def branch(_: int) -> int:
        return loom.on(root, "/branch", {"model": "tiny", "n": 2}).status_code

    with ThreadPoolExecutor(5) as pool:
        statuses = sorted(pool.map(branch, range(5)))
    assert statuses == [200, 200, 409, 409, 409]
    assert len(loom.nodes()) == 1999
    assert isinstance(loom, LoomApi)
