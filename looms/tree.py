"""The tree of a Loom: its order, its paths, and what a change of it does; pure, without a database.

A tree is its Nodes, each with its parent and a number. Numbers are given out once and never again,
so that they keep the order in which siblings were made, also when a Node leaves the tree and comes
back. Each change returns a `Step`: what every Node it touches was before and is afterwards. A step
turned around undoes the change.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from looms.options import unseeded
from looms.tokens import cut_lists, cut_sample


class Status(StrEnum):
    """How far a Node is (C-527)."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


GROWING = frozenset({Status.QUEUED, Status.RUNNING})
BRANCHES = frozenset({Status.COMPLETED, Status.CANCELLED})
"""What a Node may be to take a Branch, an edit or a split (C-548, C-564)."""


class TreeFault(Exception):
    """A change that the state of the tree does not allow (C-583); the message is for people."""


class NodeMissing(LookupError):
    """The tree has no such Node (C-520)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One Node, as far as a change of the tree looks at it."""

    id: UUID
    parent_id: UUID | None
    """None for a root."""
    number: int
    """Its place among all Nodes of the Loom in the order in which they were made."""
    status: Status = Status.COMPLETED
    saving: bool = False
    """Whether it was stopped and its last tokens are not saved yet (C-561)."""
    text: str = ""
    options: str | None = None
    """JSON of the Branch options it was sampled with; None for a text that somebody wrote."""
    logprobs: str | None = None
    """JSON of the four lists of C-224; only where it was read, see `looms.reads`."""
    sample: bytes | None = None
    """The packed `looms.tokens.Sample`; only where it was read."""
    text_modified: bool = False
    context_modified: bool = False
    slice_offset: int | None = None
    slice_end: int | None = None

    @property
    def grows(self) -> bool:
        """Whether it is queued or running."""
        return self.status in GROWING


FIELDS = (
    "parent_id",
    "text",
    "options",
    "logprobs",
    "sample",
    "text_modified",
    "context_modified",
    "slice_offset",
    "slice_end",
)
"""What a change may give another value; the rest of a Node is its own or its growth's."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a change makes of one Node; None is a Node that is not in the tree."""

    before: TreeNode | None
    after: TreeNode | None

    @property
    def node_id(self) -> UUID:
        """The Node."""
        node = self.after or self.before
        assert node is not None
        return node.id


Step = tuple[Alteration, ...]


def inverse(step: Step) -> Step:
    """Return the step that undoes another."""
    return tuple(Alteration(each.after, each.before) for each in reversed(step))


def written(text: str) -> str:
    """Return a text that somebody wrote as it is stored: line ends are LF (C-567)."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Tree:
    """The Nodes of one Loom."""

    def __init__(
        self, nodes: Iterable[TreeNode] = (), *, most: int = 2000, next_number: int = 0
    ) -> None:
        """nodes: those that are not deleted; most: how many there may be (C-550).

        next_number: the number of the next Node that is made, above that of any Node there was.
        """
        self.nodes: dict[UUID, TreeNode] = {}
        self.most = most
        self.next_number = next_number
        self._children: dict[UUID | None, list[TreeNode]] | None = None
        for node in nodes:
            self._put(node)

    def apply(self, step: Step) -> None:
        """Make the change."""
        for each in step:
            if each.after is None:
                del self.nodes[each.node_id]
            else:
                self._put(each.after)
        self._children = None

    def node(self, node_id: UUID) -> TreeNode:
        """Return a Node.

        Raises:
            NodeMissing: when it is not in the tree.
        """
        try:
            return self.nodes[node_id]
        except KeyError:
            raise NodeMissing(str(node_id)) from None

    def children(self, node_id: UUID | None) -> Sequence[TreeNode]:
        """Return the Nodes under one in the order they were made; the roots for None."""
        if self._children is None:
            self._children = {}
            for node in sorted(self.nodes.values(), key=lambda each: each.number):
                self._children.setdefault(node.parent_id, []).append(node)
        return self._children.get(node_id, ())

    def order(self) -> Iterator[TreeNode]:
        """Yield every Node depth first: after its parent, before its next sibling (C-525)."""
        for root in self.children(None):
            yield from self.subtree(root.id)

    def subtree(self, node_id: UUID) -> Iterator[TreeNode]:
        """Yield a Node and all under it, depth first."""
        waiting = [self.node(node_id)]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(self.children(node.id)))

    def path(self, node_id: UUID) -> list[TreeNode]:
        """Return the Nodes from the Node's own root down to it (U-30)."""
        path = [self.node(node_id)]
        while (parent := path[-1].parent_id) is not None:
            path.append(self.node(parent))
        return path[::-1]

    def path_text(self, node_id: UUID) -> str:
        """Return the text of the path: nothing stands between its parts (C-526)."""
        return "".join(node.text for node in self.path(node_id))

    @property
    def room(self) -> int:
        """How many more Nodes fit."""
        return max(0, self.most - len(self.nodes))

    def check_room(self, nodes: int) -> None:
        """Refuse more Nodes than fit (C-550, C-684).

        Raises:
            TreeFault: says how many more fit.
        """
        if nodes > self.room:
            raise TreeFault(
                f"A Loom has at most {self.most} Nodes. This one has {len(self.nodes)}, so "
                f"{self.room} more fit, and {nodes} were to be made."
            )

    def check_branch(self, node_id: UUID) -> TreeNode:
        """Return a Node that may get a Branch (C-548).

        Raises:
            TreeFault, NodeMissing.
        """
        node = self.node(node_id)
        if node.status not in BRANCHES:
            raise TreeFault(
                f"The Node is {node.status}: a Branch grows only under a completed or cancelled "
                "Node."
            )
        return node

    def check_still(self, node_id: UUID, what: str) -> None:
        """Refuse while a Node or one under it grows (C-568, C-580)."""
        if any(node.grows for node in self.subtree(node_id)):
            raise TreeFault(
                f"A Node grows here or under it: wait until it has ended, or cancel it, before "
                f"you {what}."
            )

    def _check_editable(self, node: TreeNode, what: str) -> None:
        if node.status is Status.FAILED:
            raise TreeFault(f"The Node has failed: you cannot {what} it, but you can delete it.")
        self.check_still(node.id, f"{what} this Node")
        if node.saving:
            raise TreeFault(
                f"The last tokens of the cancelled Node are being saved: {what} it in a moment."
            )

    def _put(self, node: TreeNode) -> None:
        self.nodes[node.id] = node
        self.next_number = max(self.next_number, node.number + 1)
        self._children = None


def edit(tree: Tree, node_id: UUID, text: str) -> Step:
    """Give a Node another text (C-566 to C-568); the same text is an empty step.

    The Node loses what was measured of its text, and what was sampled under it is marked.
    """
    node, text = tree.node(node_id), written(text)
    tree._check_editable(node, "edit")
    if text == node.text:
        return ()
    return (Alteration(node, _rewritten(node, text)), *_under_changed(tree, node))


def split(tree: Tree, node_id: UUID, offset: int, new_id: UUID, text: str | None = None) -> Step:
    """Cut a Node at a code point: a new child gets what is after it (C-569, C-570).

    text: cut instead of the Node's own; neither half keeps log probabilities then (C-573).
    The Node's children move under the new child, so every path keeps its text.
    """
    node = tree.node(node_id)
    tree._check_editable(node, "split")
    tree.check_room(1)
    whole = node.text if text is None else written(text)
    changed = whole != node.text
    upper, lower = _cut(_rewritten(node, whole) if changed else node, min(offset, len(whole)))
    lower = replace(
        lower,
        id=new_id,
        parent_id=node.id,
        number=tree.next_number,
        options=None if node.options is None else unseeded(node.options),
    )
    moved = [
        Alteration(child, replace(child, parent_id=new_id)) for child in tree.children(node.id)
    ]
    if changed:
        moved = [
            Alteration(each.before, _with_context_modified(each.after)) if each.after else each
            for each in moved
        ]
        direct = {each.node_id for each in moved}
        moved += [each for each in _under_changed(tree, node) if each.node_id not in direct]
    return (Alteration(node, upper), Alteration(None, lower), *moved)


def sibling(tree: Tree, node_id: UUID, text: str, new_id: UUID) -> Step:
    """Write a Node beside another, last among its siblings (C-577, C-578)."""
    node = tree.node(node_id)
    if node.parent_id is None:
        raise TreeFault("A root has no siblings: make a new root, or write a child.")
    tree.check_still(node.parent_id, "write a sibling")
    tree.check_room(1)
    made = TreeNode(
        id=new_id, parent_id=node.parent_id, number=tree.next_number, text=written(text)
    )
    return (Alteration(None, made),)


def replant(tree: Tree, text: str, new_id: UUID) -> Step:
    """Replace the whole tree by one root (C-579, U-30)."""
    if any(node.grows for node in tree.nodes.values()):
        raise TreeFault(
            "A Node of this Loom grows: wait until it has ended, or cancel it, before you make a "
            "new root."
        )
    root = TreeNode(id=new_id, parent_id=None, number=tree.next_number, text=written(text))
    gone = [Alteration(node, None) for node in reversed(list(tree.order()))]
    return (*gone, Alteration(None, root))


def remove(tree: Tree, node_id: UUID) -> Step:
    """Take a Node and all under it out of the tree (C-580)."""
    node = tree.node(node_id)
    if node.parent_id is None:
        raise TreeFault("A root cannot be deleted: delete the Loom, or make a new root.")
    tree.check_still(node_id, "delete it")
    return tuple(Alteration(each, None) for each in reversed(list(tree.subtree(node_id))))


def branch(tree: Tree, parent_id: UUID, grown: Sequence[tuple[UUID, str]]) -> Step:
    """Put Nodes that are still to grow under one, each with its id and its options (C-545)."""
    tree.check_branch(parent_id)
    tree.check_room(len(grown))
    return tuple(
        Alteration(
            None,
            TreeNode(
                id=node_id,
                parent_id=parent_id,
                number=tree.next_number + place,
                status=Status.QUEUED,
                options=options,
            ),
        )
        for place, (node_id, options) in enumerate(grown)
    )


def check_repeat(tree: Tree, step: Step) -> None:
    """Refuse to undo or do again what touches a Node that grows, or needs more room than there is.

    Raises:
        TreeFault.
    """
    for each in step:
        if each.node_id in tree.nodes:
            tree.check_still(each.node_id, "go on")
    tree.check_room(sum((each.before is None) - (each.after is None) for each in step))


def _rewritten(node: TreeNode, text: str) -> TreeNode:
    """Return the Node with a text that was not sampled as it stands (C-566, C-587)."""
    return replace(
        node,
        text=text,
        logprobs=None,
        sample=None,
        text_modified=node.text_modified or node.options is not None,
    )


def _with_context_modified(node: TreeNode) -> TreeNode:
    return node if node.options is None else replace(node, context_modified=True)


def _under_changed(tree: Tree, node: TreeNode) -> Iterator[Alteration]:
    """Mark what was sampled under a Node whose text changes (C-587)."""
    for each in tree.subtree(node.id):
        if each.id != node.id and each.options is not None and not each.context_modified:
            yield Alteration(each, _with_context_modified(each))


def _cut(node: TreeNode, at: int) -> tuple[TreeNode, TreeNode]:
    """Return a Node's two halves (C-571, C-572, U-31); the caller places the lower one."""
    upper_lists, lower_lists = cut_lists(node.logprobs, node.text, at)
    upper_sample, lower_sample = cut_sample(node.sample, node.text, at)
    upper = replace(node, text=node.text[:at], logprobs=upper_lists, sample=upper_sample)
    lower = replace(node, text=node.text[at:], logprobs=lower_lists, sample=lower_sample)
    if node.options is not None and not node.text_modified:
        begin = node.slice_offset or 0
        upper = replace(upper, slice_offset=begin, slice_end=begin + at)
        lower = replace(lower, slice_offset=begin + at, slice_end=begin + len(node.text))
    return upper, lower
