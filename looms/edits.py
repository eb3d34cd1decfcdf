"""Changes that a person makes to a Loom: each is one transaction under the lock of the Loom's row.

Every function takes the User who calls and, for what came by the API, the key; a Loom or a Node
that is not the User's raises `LoomMissing` or `NodeMissing`, and what the state does not allow
raises `TreeFault` and changes nothing (C-583).
"""

from collections.abc import Sequence
from uuid import UUID, uuid4

from django.db import transaction
from django.utils import timezone

from looms import history, tree
from looms.models import TITLE_LENGTH, ChangeKind, Loom, Node, ViewState
from looms.notices import announce
from looms.reads import LoomMissing, read_tree
from looms.tree import NodeMissing, TreeFault, TreeNode

DRAWN_TITLE_LENGTH = 40
"""Code points of a title that a Loom gets from its root (C-537)."""


def locked(user_id: UUID, loom_id: UUID) -> Loom:
    """Return a User's Loom, locked until the transaction ends.

    Raises:
        LoomMissing.
    """
    loom = Loom.objects.of(user_id).select_for_update(no_key=True).filter(id=loom_id).first()
    if loom is None:
        raise LoomMissing(str(loom_id))
    return loom


@transaction.atomic
def create_loom(*, user_id: UUID, prompt: str) -> Loom:
    """Make a Loom with its root (C-533); the prompt is kept as it is (U-29)."""
    root = TreeNode(id=uuid4(), parent_id=None, number=0, text=prompt)
    return plant(user_id=user_id, title="", nodes=[Node(**_columns(root))])


@transaction.atomic
def plant(*, user_id: UUID, title: str, nodes: Sequence[Node]) -> Loom:
    """Make a Loom of unsaved Nodes, parents before children, numbered from 0 in read order."""
    now = timezone.now()
    loom = Loom.objects.create(
        user_id=user_id, title=title, created_at=now, changed_at=now, next_number=len(nodes)
    )
    for node in nodes:
        node.loom, node.made_at = loom, now
    Node.objects.bulk_create(nodes)
    return loom


def _columns(node: TreeNode) -> dict[str, object]:
    return {name: getattr(node, name) for name in ("id", "number", *tree.FIELDS)}


@transaction.atomic
def edit(
    *,
    user_id: UUID,
    loom_id: UUID,
    node_id: UUID,
    text: str,
    key_id: UUID | None = None,
    seen: int | None = None,
) -> Loom:
    """Give a Node another text (C-566); the same text changes nothing.

    seen: the Node's `changed` as the writer saw it; a Node that changed since is not overwritten.
    """
    loom = locked(user_id, loom_id)
    if seen is not None and Node.objects.filter(id=node_id, changed__gt=seen).exists():
        raise TreeFault("The Node was changed elsewhere since you read it: read it again first.")
    step = tree.edit(read_tree(loom, whole=node_id), node_id, text)
    if step:
        history.commit(loom, ChangeKind.EDIT, step, key_id=key_id)
    return loom


@transaction.atomic
def split(
    *,
    user_id: UUID,
    loom_id: UUID,
    node_id: UUID,
    offset: int,
    text: str | None = None,
    key_id: UUID | None = None,
) -> Loom:
    """Cut a Node in two (C-569 to C-576)."""
    loom = locked(user_id, loom_id)
    step = tree.split(read_tree(loom, whole=node_id), node_id, offset, uuid4(), text)
    history.commit(loom, ChangeKind.SPLIT, step, key_id=key_id)
    _inherit(node_id, step)
    return loom


def _inherit(node_id: UUID, step: tree.Step) -> None:
    """Give the lower half of a split the origin of the whole."""
    lower = next(each.node_id for each in step if each.before is None)
    origin = Node.objects.filter(id=node_id).values(
        "model", "identity", "finish_reason", "prompt_tokens"
    )
    Node.objects.filter(id=lower).update(**origin[0])


@transaction.atomic
def add_sibling(
    *, user_id: UUID, loom_id: UUID, node_id: UUID, text: str, key_id: UUID | None = None
) -> Loom:
    """Write a Node beside another (C-577, C-578)."""
    loom = locked(user_id, loom_id)
    step = tree.sibling(read_tree(loom), node_id, text, uuid4())
    history.commit(loom, ChangeKind.SIBLING, step, key_id=key_id)
    return loom


@transaction.atomic
def set_root(*, user_id: UUID, loom_id: UUID, text: str, key_id: UUID | None = None) -> Loom:
    """Replace the whole tree by one root (C-579)."""
    loom = locked(user_id, loom_id)
    step = tree.replant(read_tree(loom), text, uuid4())
    history.commit(loom, ChangeKind.ROOT, step, key_id=key_id)
    return loom


@transaction.atomic
def delete_node(*, user_id: UUID, loom_id: UUID, node_id: UUID, key_id: UUID | None = None) -> Loom:
    """Delete a Node and all under it (C-580); they are erased later (C-639)."""
    loom = locked(user_id, loom_id)
    step = tree.remove(read_tree(loom), node_id)
    history.commit(loom, ChangeKind.DELETE, step, key_id=key_id)
    return loom


@transaction.atomic
def undo(*, user_id: UUID, loom_id: UUID, key_id: UUID | None = None) -> Loom:
    """Take the last change back; with none left, nothing happens."""
    loom = locked(user_id, loom_id)
    history.undo(loom, read_tree(loom), key_id=key_id)
    return loom


@transaction.atomic
def redo(*, user_id: UUID, loom_id: UUID, key_id: UUID | None = None) -> Loom:
    """Make the change again that was taken back last; with none, nothing happens."""
    loom = locked(user_id, loom_id)
    history.redo(loom, read_tree(loom), key_id=key_id)
    return loom


@transaction.atomic
def update_loom(
    *,
    user_id: UUID,
    loom_id: UUID,
    title: str | None = None,
    pinned: bool | None = None,
    key_id: UUID | None = None,
) -> Loom:
    """Rename, pin or unpin a Loom (C-539, C-540); None leaves it as it is (U-55, U-56)."""
    loom = locked(user_id, loom_id)
    if pinned is not None and pinned != (loom.pinned_at is not None):
        loom.pinned_at = timezone.now() if pinned else None
        loom.save(update_fields=["pinned_at"])
    new_title = loom.title if title is None else kept_title(title)
    if new_title != loom.title:
        history.commit(loom, ChangeKind.RENAME, (), key_id=key_id, title=new_title)
    return loom


@transaction.atomic
def delete_loom(*, user_id: UUID, loom_id: UUID) -> None:
    """Delete a Loom (C-581); it is erased later (C-639)."""
    loom = locked(user_id, loom_id)
    if Node.objects.growing().filter(loom=loom).exists():
        raise TreeFault(
            "A Node of this Loom grows: wait until it has ended, or cancel it, before you delete "
            "the Loom."
        )
    loom.deleted_at = timezone.now()
    loom.revision += 1
    loom.save(update_fields=["deleted_at", "revision"])
    announce([loom.id])


def kept_title(title: str) -> str:
    """Return a title as it is kept: trimmed, then cut (C-539)."""
    return title.strip()[:TITLE_LENGTH]


def drawn_title(root_text: str) -> str:
    """Return the title that a first Branch gives (C-537, U-66)."""
    return root_text.partition("\n")[0][:DRAWN_TITLE_LENGTH].strip()


@transaction.atomic
def look(*, user_id: UUID, loom_id: UUID, selected: UUID | None, folded: Sequence[UUID]) -> None:
    """Keep what a person looks at: no change of the Loom.

    Raises:
        LoomMissing, NodeMissing: for a Node that is not of this Loom.
    """
    loom = Loom.objects.of(user_id).filter(id=loom_id).first()
    if loom is None:
        raise LoomMissing(str(loom_id))
    wanted = {*folded, *([] if selected is None else [selected])}
    known = set(Node.objects.alive().filter(loom=loom, id__in=wanted).values_list("id", flat=True))
    if wanted != known:
        raise NodeMissing(", ".join(map(str, sorted(wanted - known))))
    ViewState.objects.update_or_create(
        loom=loom, defaults={"selected": selected, "folded": [str(each) for each in folded]}
    )
