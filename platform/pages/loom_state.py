"""What the Loom page knows of a Loom: its tree without what was measured, and one Node whole.

The tree leaves the log probabilities out, which are most of a Loom's bytes; the page asks for those
of the Node that is read.
"""

import json
from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from inference.catalogue import ModelEntry
from inference.tokenizers import TokenizerMissing, counter_for
from looms.growth import path_text
from looms.models import Loom, Node, ViewState
from looms.options import NodeRequest, read_options
from looms.reads import NodeRow, node_rows
from looms.tokens import Sample, TokenLists, read_lists
from looms.tree import GROWING, NodeMissing, Status
from pages.templatetags.models import model_name


class PageNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node as the page draws it."""

    id: str
    parent: str | None
    number: int
    status: str
    text: str
    changed: int
    mean: float | None
    """Mean log probability of its tokens; None where there are none."""
    model: str | None = None
    """The id of the model that it waits for or grows with; None for an ended one."""
    code: str | None = None
    """The error's code, for a failed one."""
    reason: str | None = None


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """A Loom as the page draws it."""

    id: str
    title: str
    pinned: bool
    revision: int
    can_undo: bool
    can_redo: bool
    last: dict[str, object] | None
    """What the last Branch asked for, with its number of Nodes as `n` (A-324)."""
    selected: str | None
    folded: Sequence[str]
    nodes: Sequence[PageNode]


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    text: str
    id: int | None
    logprob: float


class PageToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a Node; `begin` and `end` are code points of the Node's text."""

    text: str
    id: int | None
    logprob: float | None
    begin: int
    end: int
    top: Sequence[Alternative]


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one Node, and where it came from."""

    id: str
    tokens: Sequence[PageToken] | None
    origin: Sequence[str]
    """What it was grown with, part by part, in words."""
    path_tokens: int | None
    """Tokens of the text from the root down to it, for the model that runs next."""
    context: int


class _Lists(msgspec.Struct):
    """As much of kept log probabilities as a mean needs."""

    token_logprobs: list[float | None]


class _Error(msgspec.Struct):
    """As much of a kept error as a row shows."""

    message: str
    code: str | None = None


_lists = msgspec.json.Decoder(_Lists)
_errors = msgspec.json.Decoder(_Error)
LEAST = -1e300
"""Stands for minus infinity in a JSON number that a browser reads."""


def page_state(loom: Loom) -> PageState:
    """Return a Loom as it is now: three queries, whatever its size."""
    view = ViewState.objects.filter(loom=loom).first()
    last = json.loads(loom.branch_options) if loom.branch_options else None
    return PageState(
        id=str(loom.id),
        title=loom.title,
        pinned=loom.pinned_at is not None,
        revision=loom.revision,
        can_undo=loom.undo is not None,
        can_redo=loom.redo is not None,
        last=None if last is None else last | {"n": loom.branch_nodes},
        selected=str(view.selected) if view and view.selected else None,
        folded=view.folded if view else [],
        nodes=list(page_nodes(node_rows(loom.id))),
    )


def page_nodes(rows: Iterable[NodeRow]) -> Iterable[PageNode]:
    """Yield Nodes as the page draws them."""
    for row in rows:
        error = _errors.decode(row.error) if row.error else None
        yield PageNode(
            id=row.id,
            parent=row.parent_id,
            number=row.number,
            status=row.status,
            text=row.text,
            changed=row.changed,
            mean=mean_of(row.logprobs),
            model=growing_model(row),
            code=error.code if error else None,
            reason=error.message if error else None,
        )


def growing_model(row: NodeRow) -> str | None:
    """Return the model of a Node that grows."""
    request = read_options(row.options) if row.status in GROWING else None
    return request.model if request else None


def mean_of(logprobs: str | None) -> float | None:
    """Return the mean of a Node's log probabilities; None where there are none."""
    if logprobs is None:
        return None
    known = [each for each in _lists.decode(logprobs).token_logprobs if each is not None]
    return max(LEAST, sum(known) / len(known)) if known else None


def node_detail(loom: Loom, node_id: UUID, model: ModelEntry) -> NodeDetail:
    """Return what was measured of a Node, and how long its path is for a model.

    Raises:
        NodeMissing: when it is not a Node of this Loom.
    """
    node = Node.objects.alive().filter(loom=loom, id=node_id).first()
    if node is None:
        raise NodeMissing(str(node_id))
    return NodeDetail(
        id=str(node.id),
        tokens=tokens_of(node) if node.status == Status.COMPLETED else None,
        origin=origin_of(node),
        path_tokens=path_tokens(node, model),
        context=model.max_model_len,
    )


def tokens_of(node: Node) -> list[PageToken] | None:
    """Return a Node's tokens with the likeliest others at each place."""
    if node.logprobs is None:
        return None
    lists = read_lists(node.logprobs)
    sample = msgspec.msgpack.decode(node.sample, type=Sample) if node.sample else None
    ids = sample.ids if sample else []
    if len(ids) != len(lists.tokens):
        ids = []
    alternatives = sample.alternative_ids if sample and ids else []
    return [
        _token(lists, place, ids[place] if ids else None, alternatives[place : place + 1])
        for place in range(len(lists.tokens))
    ]


def _token(
    lists: TokenLists, place: int, token_id: int | None, alternatives: list[list[int]]
) -> PageToken:
    text, begin = lists.tokens[place], lists.text_offset[place]
    top = lists.top_logprobs[place] or {}
    # Two tokens of one text share a name, and then no id can be told.
    ids = list(dict.fromkeys(alternatives[0])) if alternatives else []
    known = ids if len(ids) == len(top) else [None] * len(top)
    named = zip(top.items(), known, strict=True)
    likeliest = [
        Alternative(text=name, id=each, logprob=max(LEAST, logprob))
        for (name, logprob), each in named
    ]
    logprob = lists.token_logprobs[place]
    return PageToken(
        text=text,
        id=token_id,
        logprob=None if logprob is None else max(LEAST, logprob),
        begin=begin,
        end=begin + len(text),
        top=sorted(likeliest, key=lambda each: -each.logprob),
    )


def origin_of(node: Node) -> list[str]:
    """Say what a Node was grown with, as far as it is known; nothing for a written one."""
    request = read_options(node.options)
    if request is None:
        return []
    parts = [model_name(request.model).label]
    parts += [f"{name} {value:g}" for name, value in _unusual(request)]
    if request.seed is not None:
        parts.append(f"seed {request.seed}")
    if node.finish_reason:
        parts.append({"length": "ended by length"}.get(node.finish_reason, "ended by itself"))
    if node.text_modified:
        parts.append("edited")
    if node.context_modified:
        parts.append("text above it changed since")
    return parts


def _unusual(request: NodeRequest) -> Iterable[tuple[str, float]]:
    """Yield what says how it was drawn: the temperature, and what is not the default."""
    usual = NodeRequest(model=request.model)
    yield "T", request.temperature
    for name in (
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ):
        if getattr(request, name) != getattr(usual, name):
            yield name.replace("_", " "), getattr(request, name)


def path_tokens(node: Node, model: ModelEntry) -> int | None:
    """Count the tokens of the text from the root down to a Node; None without a tokenizer."""
    try:
        counter = counter_for(model)
    except TokenizerMissing:
        return None
    return counter.encode_texts([path_text(node) + node.text])[0].count
