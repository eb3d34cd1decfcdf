"""Loom files (version 2): a tree written out, and read into a new Loom (C-584 to C-602)."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from django.conf import settings

from billing.models import MODEL_ID_LENGTH
from completions.failures import NUL_MESSAGE, SURROGATE_MESSAGE
from looms import edits
from looms.models import TITLE_LENGTH, Loom, Node
from looms.options import OPTION_NAMES, kept_options
from looms.reads import loom_of
from looms.tokens import NUL, TokenLists, read_lists, write_lists
from looms.tree import GROWING, Status

VERSION = 2
NODE_ORDER = "depth_first"
UNTITLED = "Imported loom"
IMPORTED = " (imported)"
"""What the App puts after the title of what it imports (A-366)."""

Json = dict[str, object]


class FileFault(ValueError):
    """A file that is no Loom file; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class FileNode:
    """A Node of a file, checked, before it has a place in a tree."""

    id: str
    parent_id: str | None = None
    text: str = ""
    status: Status = Status.COMPLETED
    position: int | None = None
    options: str | None = None
    logprobs: str | None = None
    error: str | None = None
    model: str = ""
    """The model that grew it, where the file says so without all of its options."""
    marks: "Marks" = field(default_factory=lambda: Marks())


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What was done to a sample after it was drawn (C-587)."""

    text_modified: bool = False
    context_modified: bool = False
    slice_offset: int | None = None
    slice_end: int | None = None

    def entries(self) -> Json:
        """Return those that are set, as a file has them."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value is not False
        }


@dataclass(frozen=True, kw_only=True)
class LoomFile:
    """A file that was read: its title and its Nodes, in the file's order."""

    title: str
    nodes: Sequence[FileNode]


def marks_of(config: Mapping[str, object]) -> Marks:
    """Return the marks in a file's `generation_config`; one that is of no use is left out."""

    def place(name: str) -> int | None:
        value = config.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and 0 <= value < 2**63 else None  # type: ignore[operator, return-value]

    return Marks(
        text_modified=config.get("text_modified") is True,
        context_modified=config.get("context_modified") is True,
        slice_offset=place("slice_offset"),
        slice_end=place("slice_end"),
    )


def options_of(config: Mapping[str, object], model: str | None, seed: int | None) -> str | None:
    """Return what is kept of a file's `generation_config` (C-595, C-596)."""
    return kept_options(config, model, seed)


# Writing.


def export_loom(*, user_id: UUID, loom_id: UUID) -> bytes:
    """Return a Loom as a file (C-584).

    Raises:
        LoomMissing.
    """
    loom = loom_of(user_id, loom_id)
    nodes = list(_written_nodes(loom))
    last = json.loads(loom.branch_options) if loom.branch_options else None
    file: Json = {
        "version": VERSION,
        "node_order": NODE_ORDER,
        "loom": {
            "title": loom.title,
            "model": None if last is None else last["model"],
            "last_generation_config": last,
        },
        "nodes": nodes,
    }
    return json.dumps(file, ensure_ascii=False, allow_nan=False).encode()


def _written_nodes(loom: Loom) -> Iterator[Json]:
    children: dict[UUID | None, list[Node]] = {}
    for node in Node.objects.alive().filter(loom=loom).defer("sample").order_by("number"):
        children.setdefault(node.parent_id, []).append(node)
    waiting = list(enumerate(children.get(None, [])))[::-1]
    while waiting:
        position, node = waiting.pop()
        yield _written_node(node, position)
        waiting.extend(reversed(list(enumerate(children.get(node.id, [])))))


def _written_node(node: Node, position: int) -> Json:
    marks = Marks(
        text_modified=node.text_modified,
        context_modified=node.context_modified,
        slice_offset=node.slice_offset,
        slice_end=node.slice_end,
    ).entries()
    options = json.loads(node.options) if node.options else {}
    file_node: Json = {
        "id": str(node.id),
        "parent_id": None if node.parent_id is None else str(node.parent_id),
        "text": node.text,
        "status": Status.CANCELLED.value if node.status in GROWING else node.status,
        "position": position,
        "logprobs": None if node.logprobs is None else _written_tokens(node.logprobs),
        "generation_config": {**options, **marks} or None,
    }
    if node.status == Status.FAILED:
        file_node["error"] = json.loads(node.error) if node.error else None
    return file_node


def _written_tokens(logprobs: str) -> list[Json]:
    """Return log probabilities as a file has them (C-586); minus infinity has no number in JSON."""
    lists = read_lists(logprobs)
    return [
        {
            "token": token,
            "logprob": None if logprob is None or math.isinf(logprob) else logprob,
            "top": None
            if top is None
            else [
                {"token": name, "logprob": value}
                for name, value in top.items()
                if not math.isinf(value)
            ],
        }
        for token, logprob, top in zip(
            lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True
        )
    ]


# Reading.


@dataclass(frozen=True)
class FileToken:
    """One token of a file's `logprobs`, with its likeliest alternatives."""

    token: str
    logprob: float | None
    top: Sequence[tuple[str, float]] | None


def kept_logprobs(tokens: Iterable[FileToken]) -> str:
    """Return a file's log probabilities as they are kept; offsets start at 0 (C-681).

    Raises:
        FileFault: for a token that no stored text may hold (U-70).
    """
    lists = TokenLists(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    offset = 0
    for each in tokens:
        for text in (each.token, *(name for name, _ in each.top or ())):
            check_text(text)
        lists.tokens.append(each.token)
        lists.token_logprobs.append(each.logprob)
        lists.text_offset.append(offset)
        lists.top_logprobs.append(None if each.top is None else _likelier(each.top))
        offset += len(each.token)
    return write_lists(lists)


def _likelier(top: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return alternatives by their text; those that read alike keep the likelier's number."""
    best: dict[str, float] = {}
    for name, logprob in top:
        best[name] = max(logprob, best.get(name, logprob))
    return best


def import_loom(*, user_id: UUID, file: LoomFile, from_app: bool = False) -> Loom:
    """Make a new Loom of a file (C-589 to C-602).

    from_app: the title gets the App's suffix, and is cut so that it fits (A-366, A-368).

    Raises:
        FileFault: for too many Nodes, none, or two of one id.
    """
    title = edits.kept_title(file.title) or UNTITLED
    if from_app:
        title = edits.kept_title(title[: TITLE_LENGTH - len(IMPORTED)] + IMPORTED)
    return edits.plant(user_id=user_id, title=title, nodes=placed(file.nodes))


def check_text(text: str) -> None:
    """Refuse what no stored text may hold.

    Raises:
        FileFault.
    """
    if NUL in text:
        raise FileFault(NUL_MESSAGE)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise FileFault(SURROGATE_MESSAGE)


def check_count(count: int) -> None:
    """Refuse a file with too many Nodes or none (C-598, U-28).

    Raises:
        FileFault.
    """
    most = settings.BASALT.max_loom_nodes
    if count > most:
        raise FileFault(f"A Loom has at most {most} Nodes: this file has {count}.")
    if not count:
        raise FileFault("The file has no Nodes: `nodes` is empty.")


def placed(file_nodes: Sequence[FileNode]) -> list[Node]:
    """Return unsaved Nodes with new ids, depth first, numbered from 0 (C-594, C-602).

    Raises:
        FileFault: for too many Nodes, none, or two of one id.
    """
    check_count(len(file_nodes))
    seen: set[str] = set()
    for node in file_nodes:
        if node.id in seen:
            raise FileFault(f"Two Nodes of the file have the id {node.id[:100]!r}.")
        seen.add(node.id)
    rank = {
        node.id: (place if node.position is None else node.position, place)
        for place, node in enumerate(file_nodes)
    }
    children: dict[str | None, list[FileNode]] = {}
    for node in sorted(with_parents(file_nodes), key=lambda each: rank[each.id]):
        children.setdefault(node.parent_id, []).append(node)
    nodes: list[Node] = []
    waiting: list[tuple[FileNode, UUID | None]] = [
        (root, None) for root in reversed(children.get(None, []))
    ]
    while waiting:
        file_node, parent_id = waiting.pop()
        made = _node(file_node, parent_id, len(nodes))
        nodes.append(made)
        waiting.extend((child, made.id) for child in reversed(children.get(file_node.id, [])))
    return nodes


def with_parents(file_nodes: Sequence[FileNode]) -> list[FileNode]:
    """Return the Nodes with parents that make trees of them (C-599, C-600).

    A Node whose parent is missing goes under the one root, or becomes a root. A cycle is broken
    at the Node of it that comes first in the file, which becomes a root.
    """
    ids = {node.id for node in file_nodes}
    roots = [node.id for node in file_nodes if node.parent_id is None]
    only = roots[0] if len(roots) == 1 else None
    parents = {
        node.id: node.parent_id if node.parent_id is None or node.parent_id in ids else only
        for node in file_nodes
    }
    reaches_root: set[str] = set()
    for node in file_nodes:
        trail: list[str] = []
        on_trail: set[str] = set()
        at: str | None = node.id
        while at is not None and at not in reaches_root and at not in on_trail:
            trail.append(at)
            on_trail.add(at)
            at = parents[at]
        if at is not None and at in on_trail:
            cycle = set(trail[trail.index(at) :])
            first = next(each.id for each in file_nodes if each.id in cycle)
            parents[first] = None
        reaches_root |= on_trail
    return [replace(node, parent_id=parents[node.id]) for node in file_nodes]


def _node(file_node: FileNode, parent_id: UUID | None, number: int) -> Node:
    return Node(
        id=uuid4(),
        parent_id=parent_id,
        number=number,
        status=file_node.status,
        text=file_node.text,
        logprobs=file_node.logprobs,
        options=file_node.options,
        error=file_node.error if file_node.status is Status.FAILED else None,
        model=file_node.model[:MODEL_ID_LENGTH],
        **vars(file_node.marks),
    )


GENERATION_FIELDS = frozenset({*OPTION_NAMES, *vars(Marks())})
"""What is kept of a file's `generation_config`; the rest is dropped (C-596)."""
