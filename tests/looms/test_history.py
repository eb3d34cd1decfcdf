"""What was done to a Loom can be undone, survives races, and is erased when its time has come."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.loom_bodies import loom_file
from billing.grants import grant
from completions.payer import AppUser
from looms import edits, exchange, tree
from looms.branches import branch
from looms.erasure import delete_looms_of, erase_deleted
from looms.models import Change, ChangeKind, Growth, Loom, Node, ViewState
from looms.options import BranchOptions, NodeRequest
from looms.reads import LoomMissing, loom_of, read_tree, show
from looms.tree import NodeMissing, TreeFault

pytestmark = pytest.mark.timeout(180)

OPTIONS = {"model": "tiny", "seed": 3}
ACTS = st.tuples(
    st.sampled_from(
        ["edit", "split", "split text", "sibling", "delete", "root", "rename", "undo", "redo"]
    ),
    st.integers(0, 10_000),
    st.integers(0, 6),
    st.text(alphabet="ab\n😀", max_size=5),
)


@pytest.fixture
def user_id(database) -> UUID:
    from tests.accounts.factory import make_user

    return make_user().id


def planted(user_id: UUID, *nodes: dict) -> Loom:
    file = loom_file({"nodes": list(nodes)})
    return exchange.import_loom(user_id=user_id, file=file)


def some_loom(user_id: UUID) -> Loom:
    tokens = [{"token": "b", "logprob": -1.0}, {"token": "c", "logprob": -2.0}]
    return planted(
        user_id,
        {"id": "r", "text": "A"},
        {"id": "1", "parent_id": "r", "text": "bc", "generation_config": OPTIONS,
         "logprobs": tokens},
        {"id": "2", "parent_id": "1", "text": "d", "generation_config": OPTIONS},
    )  # fmt: skip


def state(loom: Loom) -> tuple:
    """All that a change can change of a Loom, as the database has it."""
    fields = ("id", "parent_id", "number", "status", *tree.FIELDS)
    rows = Node.objects.alive().filter(loom=loom).order_by("number").values_list(*fields)
    nodes = [
        tuple(bytes(each) if isinstance(each, memoryview) else each for each in row) for row in rows
    ]
    return Loom.objects.get(id=loom.id).title, nodes


def act_on(loom: Loom, act: str, pick: int, number: int, text: str) -> None:
    found = list(read_tree(loom_of(loom.user_id, loom.id)).order())
    where = {"user_id": loom.user_id, "loom_id": loom.id}
    node = {**where, "node_id": found[pick % len(found)].id}
    match act:
        case "edit":
            edits.edit(**node, text=text)
        case "split":
            edits.split(**node, offset=number)
        case "split text":
            edits.split(**node, offset=number, text=text)
        case "sibling":
            edits.add_sibling(**node, text=text)
        case "delete":
            edits.delete_node(**node)
        case "root":
            edits.set_root(**where, text=text)
        case "rename":
            edits.update_loom(**where, title=text)
        case "undo":
            edits.undo(**where)
        case "redo":
            edits.redo(**where)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=st.lists(ACTS, min_size=4, max_size=14))
@pytest.mark.row("C-525", "C-526", "C-570", "C-588")
def test_whatever_was_done_can_be_undone_and_done_again(user_id, acts):
    loom = some_loom(user_id)
    done, undone = [state(loom)], []
    for act, *rest in acts:
        try:
            act_on(loom, act, *rest)
        except TreeFault:
            assert state(loom) == done[-1]
            continue
        now = state(loom)
        if act == "undo":
            if len(done) > 1:
                undone.append(done.pop())
        elif act == "redo":
            if undone:
                done.append(undone.pop())
        elif now != done[-1]:
            done.append(now)
            undone.clear()
        assert now == done[-1]
        check_tree(loom)
    for expected in reversed(done[:-1]):
        edits.undo(user_id=user_id, loom_id=loom.id)
        assert state(loom) == expected
    edits.undo(user_id=user_id, loom_id=loom.id)
    assert state(loom) == done[0]
    for expected in done[1:]:
        edits.redo(user_id=user_id, loom_id=loom.id)
        assert state(loom) == expected
    check_round_trip(loom)


MOVES = st.tuples(
    st.sampled_from(
        ["edit", "split", "split text", "sibling", "branch", "delete", "root", "undo", "import"]
    ),
    st.integers(0, 10_000),
    st.integers(0, 6),
    st.text(alphabet="ab\n😀", max_size=5),
)


def shown_paths(loom: Loom) -> list[tuple[int, str, str]]:
    """Of each Node in read order: how deep it is, its status, and the text of its path."""
    nodes = json.loads(show(loom_of(loom.user_id, loom.id)))["nodes"]
    at: dict[str | None, tuple[int, str]] = {None: (0, "")}
    found = []
    for node in nodes:
        depth, text = at[node["parent_id"]]
        at[node["id"]] = depth + 1, text + node["text"]
        found.append((depth, node["status"], text + node["text"]))
    return found


def grow(loom: Loom, pick: int, text: str) -> None:
    """A Branch, and what a runner writes when its Nodes have grown."""
    nodes = list(read_tree(loom_of(loom.user_id, loom.id)).order())
    options = BranchOptions(request=NodeRequest(model="tiny-other"), n=2)
    _, made = branch(
        payer=AppUser(loom.user_id),
        loom_id=loom.id,
        node_id=nodes[pick % len(nodes)].id,
        options=options,
    )
    Growth.objects.filter(node_id__in=made).delete()
    Node.objects.filter(id__in=made).update(status="completed", text=text)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=st.lists(MOVES, min_size=4, max_size=12))
@pytest.mark.row("C-525", "C-526", "C-570", "C-584", "C-588", "C-594")
def test_paths_and_order_survive_files_in_the_middle_of_any_changes(user_id, tiny_catalogue, moves):
    grant(user_id=user_id, tokens=1_000_000, by=None)
    loom = some_loom(user_id)
    for act, pick, number, text in moves:
        before = shown_paths(loom)
        if act == "import":
            file = json.loads(exchange.export_loom(user_id=user_id, loom_id=loom.id))
            loom = exchange.import_loom(user_id=user_id, file=loom_file(file))
            assert shown_paths(loom) == before
        elif act == "branch":
            grow(loom, pick, text)
            assert len(shown_paths(loom)) == len(before) + 2
        else:
            try:
                act_on(loom, act, pick, number, text)
            except TreeFault:
                assert shown_paths(loom) == before
        if act == "split":
            # The lower half reads as the whole did, and so does all that is under it.
            assert {each[2] for each in before} <= {each[2] for each in shown_paths(loom)}
        check_tree(loom)
    check_round_trip(loom)


def check_tree(loom: Loom) -> None:
    """What readers get is depth first, and siblings are as they were made."""
    shown = json.loads(show(loom_of(loom.user_id, loom.id)))["nodes"]
    numbers = {
        str(each): n for each, n in Node.objects.filter(loom=loom).values_list("id", "number")
    }
    seen: dict[str | None, list[int]] = {}
    before: list[str] = []
    for node in shown:
        if node["parent_id"] is not None:
            assert node["parent_id"] in before
            last = before[-1]
            path = {last}
            parents = {each["id"]: each["parent_id"] for each in shown}
            while parents[last] is not None:
                last = parents[last]
                path.add(last)
            assert node["parent_id"] in path
        before.append(node["id"])
        seen.setdefault(node["parent_id"], []).append(numbers[node["id"]])
    assert all(each == sorted(each) for each in seen.values())


def check_round_trip(loom: Loom) -> None:
    written = json.loads(exchange.export_loom(user_id=loom.user_id, loom_id=loom.id))
    again = exchange.import_loom(user_id=loom.user_id, file=loom_file(written))
    rewritten = json.loads(exchange.export_loom(user_id=loom.user_id, loom_id=again.id))

    def bare(file: dict) -> list:
        place = {node["id"]: at for at, node in enumerate(file["nodes"])}
        return [
            {**node, "id": 0, "parent_id": place.get(node["parent_id"])} for node in file["nodes"]
        ]

    assert bare(rewritten) == bare(written)


def test_a_change_after_an_undo_leaves_nothing_to_do_again(user_id):
    loom = some_loom(user_id)
    where = {"user_id": user_id, "loom_id": loom.id}
    edits.update_loom(**where, title="one")
    edits.undo(**where)
    edits.update_loom(**where, title="two")
    edits.redo(**where)
    assert Loom.objects.get(id=loom.id).title == "two"
    kinds = list(Change.objects.filter(loom=loom).order_by("id").values_list("kind", flat=True))
    assert kinds == [ChangeKind.RENAME, ChangeKind.UNDO, ChangeKind.RENAME]


def test_an_undone_edit_has_its_log_probabilities_again(user_id):
    loom = some_loom(user_id)
    node = Node.objects.get(loom=loom, text="bc")
    edits.edit(user_id=user_id, loom_id=loom.id, node_id=node.id, text="x")
    assert Node.objects.get(id=node.id).logprobs is None
    edits.undo(user_id=user_id, loom_id=loom.id)
    again = Node.objects.get(id=node.id)
    assert (again.logprobs, again.text, again.text_modified) == (node.logprobs, "bc", False)


def test_a_branch_can_be_undone_once_it_has_ended(loom, caller, grows):
    where = {"user_id": caller.user_id, "loom_id": UUID(loom.id)}
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    with pytest.raises(TreeFault):
        edits.undo(**where)
    asked.answer(" x")
    loom.until(node["id"], "completed")
    edits.undo(**where)
    assert len(loom.nodes()) == 1
    assert loom.read()["title"] == ""
    edits.redo(**where)
    assert loom.node(node["id"])["text"] == " x"
    assert loom.read()["title"] == "Once"


@pytest.mark.case(50)
def test_deleting_a_thousand_nodes_is_one_change_with_few_queries(
    user_id, django_assert_max_num_queries
):
    chains = [
        {"id": f"{chain}-{at}", "parent_id": f"{chain}-{at - 1}" if at else "r", "text": "x"}
        for chain in range(50)
        for at in range(20)
    ]
    loom = planted(user_id, {"id": "r", "text": "A"}, {"id": "top", "parent_id": "r"}, *(
        {**each, "parent_id": "top"} if each["parent_id"] == "r" else each for each in chains
    ))  # fmt: skip
    top = Node.objects.get(loom=loom, number=1)
    before = state(loom)
    with django_assert_max_num_queries(14):
        edits.delete_node(user_id=user_id, loom_id=loom.id, node_id=top.id)
    assert Node.objects.alive().filter(loom=loom).count() == 1
    with django_assert_max_num_queries(14):
        edits.undo(user_id=user_id, loom_id=loom.id)
    assert state(loom) == before


def test_a_tree_is_read_with_two_queries_whatever_its_size(user_id, django_assert_num_queries):
    nodes = [{"id": str(n), "parent_id": "r", "text": "x"} for n in range(300)]
    loom = planted(user_id, {"id": "r"}, *nodes)
    with django_assert_num_queries(2):
        show(loom_of(user_id, loom.id))


@pytest.mark.case(51)
def test_a_save_that_is_stale_does_not_overwrite(user_id):
    loom = some_loom(user_id)
    node = Node.objects.get(loom=loom, text="d")
    at = {"user_id": user_id, "loom_id": loom.id, "node_id": node.id}
    edits.edit(**at, text="first", seen=node.changed)
    with pytest.raises(TreeFault):
        edits.edit(**at, text="second", seen=node.changed)
    assert Node.objects.get(id=node.id).text == "first"


def test_what_is_looked_at_is_kept_apart_from_the_tree(user_id):
    loom = some_loom(user_id)
    before, revision = state(loom), Loom.objects.get(id=loom.id).revision
    node = Node.objects.get(loom=loom, text="bc")
    edits.look(user_id=user_id, loom_id=loom.id, selected=node.id, folded=[node.id])
    kept = ViewState.objects.get(loom=loom)
    assert (kept.selected, kept.folded) == (node.id, [str(node.id)])
    assert (state(loom), Loom.objects.get(id=loom.id).revision) == (before, revision)
    with pytest.raises(NodeMissing):
        edits.look(user_id=user_id, loom_id=loom.id, selected=uuid4(), folded=[])
    with pytest.raises(LoomMissing):
        edits.look(user_id=uuid4(), loom_id=loom.id, selected=None, folded=[])


# Races.


def at_once(*acts) -> list[object]:
    """Run acts in threads that start together; returns what each returned or raised."""
    barrier = threading.Barrier(len(acts))

    def run(act) -> object:
        from django.db import connection

        barrier.wait()
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_edits_at_once_come_one_after_the_other(user_id):
    loom = some_loom(user_id)
    node = Node.objects.get(loom=loom, text="d")
    at = {"user_id": user_id, "loom_id": loom.id, "node_id": node.id}
    texts = [f"text {n}" for n in range(6)]
    results = at_once(*(lambda text=text: edits.edit(**at, text=text) for text in texts))
    assert not [each for each in results if isinstance(each, Exception)]
    changes = Change.objects.filter(loom=loom).order_by("id")
    altered = [json.loads(each.delta)["altered"][0] for each in changes]
    chain = [each["before"]["text"] for each in altered] + [altered[-1]["after"]["text"]]
    assert chain[0] == "d"
    assert sorted(chain[1:]) == texts
    assert chain[-1] == Node.objects.get(id=node.id).text
    assert all(one["after"]["text"] == two["before"]["text"] for one, two in pairwise(altered))


def test_splits_at_once_keep_every_path(user_id):
    loom = some_loom(user_id)
    at = {"user_id": user_id, "loom_id": loom.id}
    ids = list(Node.objects.filter(loom=loom).values_list("id", flat=True))
    at_once(*(lambda each=each: edits.split(**at, node_id=each, offset=1) for each in ids * 2))
    found = read_tree(loom_of(user_id, loom.id))
    assert "Abcd" in {found.path_text(node.id) for node in found.order()}
    assert len(found.nodes) == 9


@pytest.mark.row("C-583", "C-582")
def test_a_branch_beside_a_delete_is_whole_or_not_at_all(user_id, tiny_catalogue):
    grant(user_id=user_id, tokens=10_000, by=None)
    options = BranchOptions(request=NodeRequest(model="tiny-other"), n=4)
    for _ in range(4):
        loom = some_loom(user_id)
        node = Node.objects.get(loom=loom, text="bc")
        grew, deleted = at_once(
            lambda loom=loom, node=node: branch(
                payer=AppUser(user_id), loom_id=loom.id, node_id=node.id, options=options
            ),
            lambda loom=loom, node=node: edits.delete_node(
                user_id=user_id, loom_id=loom.id, node_id=node.id
            ),
        )
        alive = Node.objects.alive().filter(loom=loom)
        if isinstance(grew, Exception):
            assert isinstance(grew, NodeMissing)
            assert alive.count() == 1
        else:
            assert isinstance(deleted, TreeFault)
            assert alive.count() == 7
        found = read_tree(loom_of(user_id, loom.id))
        assert len(list(found.order())) == len(found.nodes)
    from jobs import queue

    queue.cancel(Growth.objects.filter(user_id=user_id))


# Erasure.


@pytest.mark.row("C-639")
def test_what_was_deleted_is_erased_fourteen_days_later(user_id):
    loom, other = some_loom(user_id), some_loom(user_id)
    node = Node.objects.get(loom=other, text="bc")
    edits.delete_node(user_id=user_id, loom_id=other.id, node_id=node.id)
    edits.look(user_id=user_id, loom_id=loom.id, selected=None, folded=[])
    edits.update_loom(user_id=user_id, loom_id=loom.id, title="x")
    edits.delete_loom(user_id=user_id, loom_id=loom.id)
    with pytest.raises(LoomMissing):
        loom_of(user_id, loom.id)
    now = timezone.now()
    erase_deleted(now + timedelta(days=13, hours=23))
    assert Loom.objects.filter(id=loom.id).exists()
    assert Node.objects.filter(id=node.id).exists()
    assert erase_deleted(now + timedelta(days=14, minutes=1)) >= 3
    assert not Loom.objects.filter(id=loom.id).exists()
    assert not Node.objects.filter(loom_id=loom.id).exists()
    assert not Node.objects.filter(id=node.id).exists()
    assert not Change.objects.filter(loom_id__in=[loom.id, other.id]).exists()
    assert Node.objects.filter(loom=other).count() == 1
    # Its change is erased, so there is nothing to undo.
    before = state(other)
    edits.undo(user_id=user_id, loom_id=other.id)
    assert state(other) == before


def test_the_looms_of_a_deleted_user_are_deleted(user_id):
    loom = some_loom(user_id)
    assert delete_looms_of(user_id) == 1
    with pytest.raises(LoomMissing):
        loom_of(user_id, loom.id)
