"""Changes of a Loom as rows: written with each change, and read back to undo it and do it again."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec
from django.db import connection
from django.utils import timezone
from msgspec import UNSET, UnsetType

from looms.models import Change, ChangeKind, Loom, Node
from looms.notices import announce
from looms.tree import FIELDS, Step, Tree, TreeFault, TreeNode

Value = str | bool | int | UUID | bytes | None


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change gave a Node, or took from it; what is unset stayed as it was."""

    parent_id: UUID | UnsetType | None = UNSET
    text: str | UnsetType = UNSET
    options: str | UnsetType | None = UNSET
    logprobs: str | UnsetType | None = UNSET
    sample: bytes | UnsetType | None = UNSET
    text_modified: bool | UnsetType = UNSET
    context_modified: bool | UnsetType = UNSET
    slice_offset: int | UnsetType | None = UNSET
    slice_end: int | UnsetType | None = UNSET

    def values(self) -> dict[str, Value]:
        """Return what is set."""
        given = ((name, getattr(self, name)) for name in FIELDS)
        return {name: value for name, value in given if value is not UNSET}


class Altered(msgspec.Struct, frozen=True):
    """One Node that is in the tree before and after."""

    id: UUID
    before: Part
    after: Part


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change made of a Loom."""

    made: tuple[UUID, ...] = ()
    """Nodes that came into the tree."""
    gone: tuple[UUID, ...] = ()
    """Nodes that left it."""
    altered: tuple[Altered, ...] = ()
    title: tuple[str, str] | None = None
    """The title before and afterwards."""

    def inverse(self) -> "Delta":
        """Return what takes the change back."""
        return Delta(
            made=self.gone,
            gone=self.made,
            altered=tuple(Altered(each.id, each.after, each.before) for each in self.altered),
            title=None if self.title is None else (self.title[1], self.title[0]),
        )


def delta_of(step: Step, title: tuple[str, str] | None = None) -> Delta:
    """Return a step of the tree, and a change of the title, as they are kept."""
    altered = []
    for each in step:
        if each.before is None or each.after is None:
            continue
        fields = [name for name in FIELDS if _differ(each.before, each.after, name)]
        before = Part(**{name: getattr(each.before, name) for name in fields})
        after = Part(**{name: getattr(each.after, name) for name in fields})
        altered.append(Altered(each.node_id, before, after))
    return Delta(
        made=tuple(each.node_id for each in step if each.before is None),
        gone=tuple(each.node_id for each in step if each.after is None),
        altered=tuple(altered),
        title=title,
    )


def _differ(before: TreeNode, after: TreeNode, name: str) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def commit(
    loom: Loom,
    kind: ChangeKind,
    step: Step,
    *,
    key_id: UUID | None,
    title: str | None = None,
) -> None:
    """Write a change: its Nodes, its row in the history, and the Loom's own marks.

    Call it in the transaction that locked the Loom. `title` is a new title, where it changes.
    """
    now = timezone.now()
    loom.revision += 1
    _insert(loom, step, now)
    delta = delta_of(step, None if title is None else (loom.title, title))
    _write(loom, delta, now, inserted=True)
    row = Change.objects.create(
        loom=loom,
        kind=kind,
        delta=msgspec.json.encode(delta).decode(),
        below=loom.undo,
        key_id=key_id,
        made_at=now,
    )
    loom.undo, loom.redo = row.id, None
    _touch(loom, now)


def undo(loom: Loom, tree: Tree, *, key_id: UUID | None) -> bool:
    """Take the last change back that was not taken back yet; False when there is none.

    Call it in the transaction that locked the Loom.

    Raises:
        TreeFault: while a Node grows that it touches, or when its Nodes were erased.
    """
    undone = _row(loom.undo)
    if undone is None:
        return False
    delta = msgspec.json.decode(undone.delta, type=Delta)
    of = undone.of if undone.kind == ChangeKind.REDO else undone.id
    _repeat(loom, tree, delta.inverse())
    row = _append(loom, ChangeKind.UNDO, delta.inverse(), of=of, below=loom.redo, key_id=key_id)
    loom.undo, loom.redo = undone.below, row.id
    _touch(loom, row.made_at)
    return True


def redo(loom: Loom, tree: Tree, *, key_id: UUID | None) -> bool:
    """Do the change again that was undone last; False when there is none.

    Call it in the transaction that locked the Loom.

    Raises:
        TreeFault: as `undo`.
    """
    undone = _row(loom.redo)
    if undone is None:
        return False
    delta = msgspec.json.decode(undone.delta, type=Delta).inverse()
    _repeat(loom, tree, delta)
    row = _append(loom, ChangeKind.REDO, delta, of=undone.of, below=loom.undo, key_id=key_id)
    loom.undo, loom.redo = row.id, undone.below
    _touch(loom, row.made_at)
    return True


def _row(change_id: int | None) -> Change | None:
    return Change.objects.filter(id=change_id).first() if change_id is not None else None


def _append(
    loom: Loom,
    kind: ChangeKind,
    delta: Delta,
    *,
    of: int | None,
    below: int | None,
    key_id: UUID | None,
) -> Change:
    return Change.objects.create(
        loom=loom,
        kind=kind,
        delta=msgspec.json.encode(delta).decode(),
        of=of,
        below=below,
        key_id=key_id,
        made_at=timezone.now(),
    )


def _repeat(loom: Loom, tree: Tree, delta: Delta) -> None:
    """Check and write a change that was made before."""
    for node_id in (*delta.gone, *(each.id for each in delta.altered)):
        tree.check_still(node_id, "go on")
    tree.check_room(len(delta.made) - len(delta.gone))
    here = Node.objects.filter(loom=loom, id__in=delta.made).count()
    if here != len(delta.made):
        raise TreeFault("The Nodes of this change have been erased, so it cannot be undone.")
    loom.revision += 1
    _write(loom, delta, timezone.now(), inserted=False)


def _insert(loom: Loom, step: Step, now: datetime) -> None:
    """Write the rows of new Nodes."""
    made = [each.after for each in step if each.before is None and each.after is not None]
    Node.objects.bulk_create(
        Node(
            id=node.id,
            loom=loom,
            number=node.number,
            status=node.status,
            made_at=now,
            changed=loom.revision,
            **{name: getattr(node, name) for name in FIELDS},
        )
        for node in made
    )
    loom.next_number = max([loom.next_number, *(node.number + 1 for node in made)])


def _write(loom: Loom, delta: Delta, now: datetime, *, inserted: bool) -> None:
    """Write what a change made of Nodes: one statement for all that get the same values."""
    nodes = Node.objects.filter(loom=loom)
    if delta.gone:
        nodes.filter(id__in=delta.gone).update(deleted_at=now)
    if delta.made and not inserted:
        nodes.filter(id__in=delta.made).update(deleted_at=None, changed=loom.revision)
    alike: defaultdict[tuple[tuple[str, Value], ...], list[UUID]] = defaultdict(list)
    for each in delta.altered:
        alike[tuple(each.after.values().items())].append(each.id)
    for pairs, node_ids in alike.items():
        values = dict(pairs)
        if "text" in values:
            values["changed"] = loom.revision
        nodes.filter(id__in=node_ids).update(**values)
    if delta.title is not None:
        loom.title = delta.title[1]


def _touch(loom: Loom, now: datetime) -> None:
    """Write the Loom's row: it was changed (C-535)."""
    loom.changed_at = now
    loom.save()
    announce([loom.id])


def raise_revision(loom_ids: Iterable[UUID]) -> None:
    """Count what readers of these Looms can see of their Nodes, without a change of a person's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE looms_loom SET revision = revision + 1 WHERE id = ANY(%s)", [list(loom_ids)]
        )
