"""The tree alone: whatever is done to it, paths keep their texts and siblings their order."""

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looms import tree as trees
from looms.tokens import TokenLists, cut_lists, read_lists, write_lists
from looms.tree import Alteration, NodeMissing, Status, Tree, TreeFault, TreeNode, inverse

TEXTS = st.text(alphabet="ab \n\r😀é", max_size=6)
ACTS = st.tuples(
    st.sampled_from(
        ["edit", "split", "split text", "sibling", "branch", "grow", "remove", "replant", "undo"]
    ),
    st.integers(0, 10_000),
    st.integers(0, 8),
    TEXTS,
)


def planted(text: str = "Once") -> Tree:
    tree = Tree(most=40)
    tree.apply((Alteration(None, TreeNode(id=uuid4(), parent_id=None, number=0, text=text)),))
    return tree


def some_step(tree: Tree, act: str, node: TreeNode, number: int, text: str) -> trees.Step:
    match act:
        case "edit":
            return trees.edit(tree, node.id, text)
        case "split":
            return trees.split(tree, node.id, number, uuid4())
        case "split text":
            return trees.split(tree, node.id, number, uuid4(), text)
        case "sibling":
            return trees.sibling(tree, node.id, text, uuid4())
        case "branch":
            return trees.branch(tree, node.id, [(uuid4(), '{"model": "m"}')] * 1)
        case "grow":
            if not node.grows:
                return ()
            grown = replace(node, status=Status.COMPLETED, text=text)
            return (Alteration(node, grown),)
        case "remove":
            return trees.remove(tree, node.id)
        case _:
            return trees.replant(tree, text, uuid4())


def check_order(tree: Tree) -> None:
    """Depth first, each Node once, after its parent; siblings as they were made."""
    order = list(tree.order())
    assert {node.id for node in order} == set(tree.nodes)
    assert len(order) == len(tree.nodes)
    place = {node.id: at for at, node in enumerate(order)}
    for node in order:
        if node.parent_id is not None:
            assert place[node.parent_id] < place[node.id]
        under = [each.id for each in tree.subtree(node.id)]
        assert [each.id for each in order[place[node.id] :][: len(under)]] == under
        numbers = [each.number for each in tree.children(node.id)]
        assert numbers == sorted(numbers)
    assert len({node.number for node in order}) == len(order)


def paths(tree: Tree) -> dict[object, str]:
    return {node_id: tree.path_text(node_id) for node_id in tree.nodes}


def check_texts(act: str, node: TreeNode, before: dict, tree: Tree, text: str) -> None:
    """What each act does to the texts of paths."""
    after = paths(tree)
    kept = {each: after[each] for each in before if each in after}
    if act == "split":
        assert {k: v for k, v in kept.items() if k != node.id} == {
            k: v for k, v in before.items() if k != node.id
        }
        (made,) = set(after) - set(before)
        assert after[made] == before[node.id]
        assert after[made].startswith(after[node.id])
    elif act in ("sibling", "branch"):
        assert kept == before
    elif act == "remove":
        assert kept == {each: before[each] for each in kept}
        assert node.id not in after
    elif act == "edit":
        above = before[node.id].removesuffix(node.text) if node.text else before[node.id]
        new = trees.written(text)
        assert after[node.id] == above + new
        for each, old in before.items():
            if not old.startswith(before[node.id]) or each == node.id:
                continue
            if any(one.id == node.id for one in tree.path(each)):
                assert after[each] == above + new + old[len(before[node.id]) :]


@pytest.mark.row("C-525", "C-526", "C-570", "C-577", "C-580")
@settings(max_examples=150, deadline=None)
@given(st.lists(ACTS, max_size=30))
def test_whatever_is_done_paths_keep_their_texts_and_siblings_their_order(acts):
    tree = planted()
    done: list[trees.Step] = []
    for act, pick, number, text in acts:
        before = dict(tree.nodes)
        if act == "undo":
            if done:
                tree.apply(inverse(done.pop()))
                check_order(tree)
            continue
        node = list(tree.order())[pick % len(tree.nodes)]
        texts = paths(tree)
        try:
            step = some_step(tree, act, node, number, text)
        except TreeFault:
            assert tree.nodes == before
            continue
        tree.apply(step)
        check_order(tree)
        check_texts(act, node, texts, tree, text)
        again = Tree(tree.nodes.values(), next_number=tree.next_number)
        again.apply(inverse(step))
        assert again.nodes == before
        done.append(step)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=8), st.integers(0, 30))
@pytest.mark.row("C-571", "C-572")
def test_each_half_of_a_cut_has_the_log_probabilities_of_its_whole_tokens(tokens, at):
    texts = [token for token, _ in tokens]
    offsets = [len("".join(texts[:place])) for place in range(len(texts))]
    whole = TokenLists(
        tokens=texts,
        token_logprobs=[-float(place) for place in range(len(texts))],
        top_logprobs=[{"x": -1.5} if top else None for _, top in tokens],
        text_offset=offsets,
    )
    text = "".join(texts)
    at = min(at, len(text))
    upper, lower = cut_lists(write_lists(whole), text, at)
    first = read_lists(upper)
    assert text[:at].startswith("".join(first.tokens))
    assert first.tokens == texts[: len(first.tokens)]
    if lower is None:
        crossing = len(first.tokens)
        assert offsets[crossing] < at < offsets[crossing] + len(texts[crossing])
        return
    second = read_lists(lower)
    assert first.tokens + second.tokens == texts
    assert first.token_logprobs + second.token_logprobs == whole.token_logprobs
    assert first.top_logprobs + second.top_logprobs == whole.top_logprobs
    assert "".join(second.tokens) == text[at:]
    assert second.text_offset == [offset - at for offset in offsets[len(first.tokens) :]]


def test_lists_of_another_text_are_kept_by_neither_half():
    lists = write_lists(
        TokenLists(tokens=["a"], token_logprobs=[-1], top_logprobs=[None], text_offset=[0])
    )
    assert cut_lists(lists, "b c", 1) == (None, None)


def test_minus_infinity_survives_a_cut():
    whole = TokenLists(
        tokens=["-Infinity", "b"],
        token_logprobs=[-float("inf"), -1.0],
        top_logprobs=[{"-Infinity": -float("inf"), '"q\\': -2.0}, None],
        text_offset=[0, 9],
    )
    upper, lower = cut_lists(write_lists(whole), "-Infinityb", 9)
    assert read_lists(upper).top_logprobs == whole.top_logprobs[:1]
    assert read_lists(lower).tokens == ["b"]


@pytest.mark.row("C-587")
@pytest.mark.case("L05")
def test_an_edit_marks_the_sample_and_what_was_sampled_under_it():
    tree = planted()
    (root,) = tree.order()
    step = trees.branch(tree, root.id, [(uuid4(), '{"model": "m", "seed": 1}')])
    tree.apply(step)
    grown = step[0].after
    tree.apply((Alteration(grown, replace(grown, status=Status.COMPLETED, text="x")),))
    tree.apply(trees.sibling(tree, grown.id, "written", written := uuid4()))
    tree.apply(trees.edit(tree, root.id, "Twice"))
    assert tree.node(grown.id).context_modified
    assert not tree.node(grown.id).text_modified
    assert not tree.node(written).context_modified
    assert not tree.node(root.id).text_modified
    tree.apply(trees.edit(tree, grown.id, "y"))
    assert tree.node(grown.id).text_modified


@pytest.mark.row("C-587", "C-574")
def test_parts_of_a_sample_know_their_bounds_over_repeated_splits():
    tree = planted()
    (root,) = tree.order()
    step = trees.branch(tree, root.id, [(uuid4(), '{"model": "m", "seed": 1}')])
    tree.apply(step)
    grown = step[0].after
    tree.apply((Alteration(grown, replace(grown, status=Status.COMPLETED, text="abcdef")),))
    tree.apply(trees.split(tree, grown.id, 4, second := uuid4()))
    tree.apply(trees.split(tree, second, 1, third := uuid4()))
    bounds = [
        (each.text, each.slice_offset, each.slice_end)
        for each in (tree.node(grown.id), tree.node(second), tree.node(third))
    ]
    assert bounds == [("abcd", 0, 4), ("e", 4, 5), ("f", 5, 6)]
    assert '"seed": null' in tree.node(third).options
    assert '"seed": 1' in tree.node(grown.id).options


@pytest.mark.row("C-567")
def test_line_ends_of_written_texts_are_lf():
    assert trees.written("a\r\nb\rc\n\r") == "a\nb\nc\n\n"


def test_a_node_of_another_tree_is_missing():
    tree = planted()
    with pytest.raises(NodeMissing):
        trees.edit(tree, uuid4(), "x")


def test_a_chain_of_two_thousand_nodes_is_no_recursion():
    tree = Tree()
    parent, nodes = None, []
    for number in range(2000):
        nodes.append(TreeNode(id=uuid4(), parent_id=parent, number=number, text="x"))
        parent = nodes[-1].id
    tree = Tree(nodes)
    assert [node.number for node in tree.order()] == list(range(2000))
    assert tree.path_text(parent) == "x" * 2000


@pytest.mark.parametrize(
    ("tokens", "text", "spans"),
    [
        (["a", "b"], "ab", [(0, 1), (1, 2)]),
        (["", "é"], "é", [(0, 0), (0, 1)]),
        # A character that broke off stands in the text and in no token.
        (["a", "", "b"], "a\ufffdb", [(0, 1), (1, 1), (2, 3)]),
        (["a", ""], "a\ufffd", [(0, 1), (1, 1)]),
        (["\ufffd", "b"], "\ufffdb", [(0, 1), (1, 2)]),
        # What comes after a stop text is in tokens alone.
        (["a", "b STOP", "c"], "ab", [(0, 1), (1, 7), (7, 8)]),
        (["a", "b"], "ac", None),
        (["a"], "ab", None),
        ([], "", []),
        ([], "a", None),
    ],
)
def test_where_tokens_stand_in_their_text(tokens, text, spans):
    from looms.tokens import spans_of

    assert spans_of(tokens, text) == spans
