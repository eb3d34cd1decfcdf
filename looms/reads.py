"""Reads of Looms, and the JSON that shows them (C-522 to C-531).

A tree is one query, and is written with the texts as the database keeps them: log probabilities,
options and errors are kept as the JSON that readers get.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import CharField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Cast

from jobs.states import WorkState
from looms.models import Growth, Loom, Node
from looms.options import NodeRequest, read_options
from looms.tree import Status, Tree, TreeNode

NULL = msgspec.Raw(b"null")


class LoomMissing(LookupError):
    """The User has no such Loom (C-520)."""


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """A Node as readers get it (C-523)."""

    id: str
    object: Literal["loom.node"] = "loom.node"
    parent_id: str | None
    status: str
    text: str
    logprobs: msgspec.Raw
    error: msgspec.Raw
    request: NodeRequest | None


class LoomShape(msgspec.Struct, frozen=True, kw_only=True):
    """A Loom as readers get it (C-522)."""

    id: str
    object: Literal["loom"] = "loom"
    created_at: int
    title: str
    pinned: bool
    nodes: Sequence[NodeShape]


class SummaryShape(msgspec.Struct, frozen=True, kw_only=True):
    """A Loom in the list (C-524)."""

    id: str
    object: Literal["loom"] = "loom"
    created_at: int
    updated_at: int
    title: str
    pinned: bool
    prompt: str


class ListShape(msgspec.Struct, frozen=True, kw_only=True):
    """A list of Looms or of Nodes."""

    object: Literal["list"] = "list"
    data: Sequence[SummaryShape] | Sequence[NodeShape]


class DeletedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A Loom that is gone (C-581)."""

    id: str
    object: Literal["loom"] = "loom"
    deleted: bool = True


_encoder = msgspec.json.Encoder()


def written(shape: LoomShape | ListShape | NodeShape | DeletedShape) -> bytes:
    """Return a shape as JSON."""
    return _encoder.encode(shape)


class NodeRow(NamedTuple):
    """What a reader sees of a Node; ids are texts, because that is what becomes of them."""

    id: str
    parent_id: str | None
    number: int
    status: str
    text: str
    logprobs: str | None
    error: str | None
    options: str | None
    changed: int


_COLUMNS = {"id_text": Cast("id", CharField()), "parent_text": Cast("parent_id", CharField())}
_FIELDS = (
    "id_text",
    "parent_text",
    "number",
    "status",
    "text",
    "logprobs",
    "error",
    "options",
    "changed",
)


def node_rows(loom_id: UUID, *, where: Q | None = None) -> list[NodeRow]:
    """Return the Nodes of a Loom, or some, in the order in which they were made: one query."""
    nodes = Node.objects.alive().filter(where or Q(), loom_id=loom_id)
    rows = nodes.annotate(**_COLUMNS).order_by("number").values_list(*_FIELDS)
    return [NodeRow(*row) for row in rows]


def node_shape(row: NodeRow) -> NodeShape:
    """Return one Node as readers get it (C-528, C-529, C-531)."""
    is_root = row.parent_id is None
    shows_logprobs = not is_root and row.logprobs and row.status == Status.COMPLETED
    return NodeShape(
        id=row.id,
        parent_id=row.parent_id,
        status=row.status,
        text=row.text,
        logprobs=msgspec.Raw(row.logprobs.encode()) if shows_logprobs and row.logprobs else NULL,
        error=msgspec.Raw(row.error.encode()) if row.error and not is_root else NULL,
        request=None if is_root else read_options(row.options),
    )


def in_read_order(rows: Iterable[NodeRow]) -> Iterator[NodeRow]:
    """Yield Nodes depth first (C-525); `rows` are in the order in which they were made."""
    children: dict[str | None, list[NodeRow]] = {}
    for row in rows:
        children.setdefault(row.parent_id, []).append(row)
    waiting = children.get(None, [])[::-1]
    while waiting:
        row = waiting.pop()
        yield row
        waiting.extend(reversed(children.get(row.id, ())))


def loom_of(user_id: UUID, loom_id: UUID) -> Loom:
    """Return a User's Loom.

    Raises:
        LoomMissing.
    """
    loom = Loom.objects.of(user_id).filter(id=loom_id).first()
    if loom is None:
        raise LoomMissing(str(loom_id))
    return loom


def show(loom: Loom) -> bytes:
    """Return the JSON of a whole Loom."""
    return written(
        LoomShape(
            id=str(loom.id),
            created_at=seconds(loom.created_at),
            title=loom.title,
            pinned=loom.pinned_at is not None,
            nodes=[node_shape(row) for row in in_read_order(node_rows(loom.id))],
        )
    )


def show_nodes(loom: Loom, node_ids: Sequence[UUID]) -> bytes:
    """Return the JSON of the Nodes with these ids that are not deleted, as they are now (U-62)."""
    rows = node_rows(loom.id, where=Q(id__in=node_ids))
    return written(ListShape(data=[node_shape(row) for row in rows]))


def show_list(user_id: UUID) -> bytes:
    """Return the JSON of a User's Looms, as many as the list has (C-534)."""
    return written(ListShape(data=list(summaries(user_id))))


def summaries(user_id: UUID) -> Iterator[SummaryShape]:
    """Yield a User's Looms in the list's order; `prompt` is the text of the first root (U-30)."""
    root = Node.objects.alive().filter(loom_id=OuterRef("id"), parent=None).order_by("number")
    looms = (
        Loom.objects.of(user_id)
        .listed()
        .annotate(prompt=Subquery(root.values("text")[:1]))[: settings.BASALT.max_listed_looms]
    )
    for loom in looms:
        yield SummaryShape(
            id=str(loom.id),
            created_at=seconds(loom.created_at),
            updated_at=seconds(loom.changed_at),
            title=loom.title,
            pinned=loom.pinned_at is not None,
            prompt=loom.prompt or "",  # type: ignore[attr-defined]
        )


def show_deleted(loom_id: UUID) -> bytes:
    """Return the JSON that answers the deletion of a Loom."""
    return written(DeletedShape(id=str(loom_id)))


def read_tree(loom: Loom, *, whole: UUID | None = None) -> Tree:
    """Return a Loom's tree for a change, with what is measured of the Node `whole` alone."""
    rows = (
        Node.objects.alive()
        .filter(loom_id=loom.id)
        .values_list(
            "id",
            "parent_id",
            "number",
            "status",
            "text",
            "options",
            "text_modified",
            "context_modified",
            "slice_offset",
            "slice_end",
        )
    )
    measured = Node.objects.only("logprobs", "sample").filter(id=whole).first() if whole else None
    saving = set(_saving(loom.id).values_list("node_id", flat=True))
    nodes = []
    for node_id, parent_id, number, status, text, options, *marks in rows:
        own = measured if node_id == whole else None
        nodes.append(
            TreeNode(
                id=node_id,
                parent_id=parent_id,
                number=number,
                status=Status(status),
                saving=node_id in saving,
                text=text,
                options=options,
                logprobs=own.logprobs if own else None,
                sample=bytes(own.sample) if own and own.sample is not None else None,
                text_modified=bool(marks[0]),
                context_modified=bool(marks[1]),
                slice_offset=marks[2],
                slice_end=marks[3],
            )
        )
    return Tree(nodes, most=settings.BASALT.max_loom_nodes, next_number=loom.next_number)


def _saving(loom_id: UUID) -> QuerySet[Growth]:
    """Return the work of cancelled Nodes whose last tokens a runner still has to save (C-561)."""
    return Growth.objects.filter(
        node__loom_id=loom_id, state=WorkState.CANCELLED, owner__isnull=False
    )


def is_saving(node_id: UUID) -> bool:
    """Whether the last tokens of a cancelled Node are not saved yet (C-561)."""
    return Growth.objects.filter(
        node_id=node_id, state=WorkState.CANCELLED, owner__isnull=False
    ).exists()


def seconds(at: datetime) -> int:
    """Return a time as whole Unix seconds (C-055)."""
    return int(at.timestamp())
