"""Attention over a packed batch, with keys and values in blocks.

transformers calls `attend` in place of its own attention for a model that was loaded with
`IMPLEMENTATION`. The layout of the step travels as the keyword `layout` through the model's
forward, so two engines in one process never meet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from inference.engine.blocks import EMPTY_BLOCK

IMPLEMENTATION = "basalt"

_PADDING = 1.25
"""Sequences that generate share one call while padding adds at most so much to their keys."""


class Layout(Protocol):
    """What one forward pass does at each attention layer."""

    unread: set[str] | None
    """Where keywords are noted that `attend` has no use for; None notes nothing."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        shape: "AttentionShape",
    ) -> Tensor:
        """Store the new keys and values and return `[tokens, heads, value_dim]`.

        `query`, `key` and `value` are `[heads, tokens, dim]`.
        """


@dataclass(frozen=True)
class AttentionShape:
    """How one layer scores its keys."""

    scaling: float
    window: int | None
    """A token sees itself and the `window - 1` tokens before it; None sees all before it."""
    softcap: float | None
    sinks: Tensor | None
    """`[heads]`: a score that takes its share of each softmax and adds nothing."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention in transformers' interface: `[1, heads, tokens, dim]` in, `[1, tokens, ...]` out.

    `loading` looks at what `others` holds, and refuses a model that means something by it.
    """
    if layout.unread is not None:
        others["attention_mask"] = attention_mask
        layout.unread.update(name for name, value in others.items() if value is not None)
    shape = AttentionShape(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    layer: int = module.layer_idx  # type: ignore[assignment]
    return layout.attend(layer, query[0], key[0], value[0], shape)[None], None


def no_mask(*args: object, **keywords: object) -> None:
    """Let no mask be built: `attend` knows which tokens see each other."""


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers. Repeating it changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, no_mask)


@dataclass(frozen=True)
class LayerShape:
    """The keys and values that one attention layer stores for each token."""

    heads: int
    key_dim: int
    value_dim: int


class BlockStore:
    """Keys and values of every layer: `[blocks, heads, block_tokens, dim]`. Block 0 is zeros.

    A head's tokens lie together, so that a sequence's blocks, gathered head by head, are the
    contiguous `[heads, tokens, dim]` that attention reads fastest.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        self.dtype = dtype

        def zeros(heads: int, dim: int) -> Tensor:
            # Zeros are pages that the system has not given out yet, so an unused pool is free.
            return torch.zeros((blocks + 1, heads, block_tokens, dim), dtype=dtype, device=device)

        self.keys = [zeros(shape.heads, shape.key_dim) for shape in shapes]
        self.values = [zeros(shape.heads, shape.value_dim) for shape in shapes]

    @staticmethod
    def block_bytes(shapes: Sequence[LayerShape], block_tokens: int, dtype: torch.dtype) -> int:
        """Return what one block takes over all layers, in bytes."""
        numbers = sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in shapes)
        return numbers * block_tokens * dtype.itemsize

    def copy(self, source: int, target: int) -> None:
        """Copy a block in all layers."""
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]

    def clear(self, blocks: Sequence[int]) -> None:
        """Write zeros, so that no number of a failed sequence can reach another one."""
        for pool in (*self.keys, *self.values):
            pool[list(blocks)] = 0


@dataclass(frozen=True)
class Span:
    """The tokens of one sequence in the packed batch."""

    row: int
    start: int
    count: int
    blocks: Sequence[int]
    """All blocks of the sequence, at least those that hold position `start + count - 1`."""

    @property
    def stop(self) -> int:
        """Tokens that stand in the cache once this step has run."""
        return self.start + self.count


@dataclass(frozen=True)
class _Group:
    """Sequences that run one token each, in one attention call."""

    first: int
    last: int
    table: np.ndarray
    """int64 `[sequences, blocks]`."""
    lengths: np.ndarray
    """int64 `[sequences]`."""


@dataclass
class BlockLayout:
    """Attention of one step over the block store.

    Spans of one token come first, in order of length, so that a group of them is a slice of rows.
    """

    store: BlockStore
    spans: Sequence[Span]
    unread: set[str] | None = None
    _groups: list[_Group] = field(init=False)
    _prompts: list[tuple[Span, np.ndarray]] = field(init=False)
    _slots: np.ndarray = field(init=False)
    _indices: dict[tuple[str, int, int], Tensor] = field(init=False, default_factory=dict)
    _masks: dict[tuple[int, int | None], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Lay the spans out once for all layers."""
        size = self.store.block_tokens
        blocks: list[np.ndarray] = []
        for span in self.spans:
            blocks.append(np.asarray(span.blocks)[np.arange(span.start, span.stop) // size])
        places = [np.arange(span.start, span.stop) % size for span in self.spans]
        self._slots = np.stack([np.concatenate(blocks), np.concatenate(places)])
        single = [span for span in self.spans if span.count == 1]
        self._groups = [self._group(spans) for spans in _by_length(single)]
        self._prompts = [
            (span, np.asarray(span.blocks[: -(-span.stop // size)])[None])
            for span in self.spans
            if span.count > 1
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """See `Layout.attend`."""
        keys, values = self.store.keys[layer], self.store.values[layer]
        slots = self._index("slots", 0, keys.shape[1])
        keys.flatten(0, 2).index_copy_(0, slots, key.flatten(0, 1))
        values.flatten(0, 2).index_copy_(0, slots, value.flatten(0, 1))
        heads, tokens, _ = query.shape
        out = query.new_empty(tokens, heads, value.shape[-1])
        rows = query.transpose(0, 1)
        for number, group in enumerate(self._groups):
            part = self._attend_group(number, group, rows, keys, values, shape)
            out[group.first : group.last] = part
        for number, (span, _) in enumerate(self._prompts):
            first, last = span.row, span.row + span.count
            if span.start == 0:
                own = key[None, :, first:last], value[None, :, first:last]
            else:
                index = self._index("prompt", number, keys.shape[1])
                own = (
                    _gather(keys, index, 1)[:, :, : span.stop],
                    _gather(values, index, 1)[:, :, : span.stop],
                )
            part = self._attend_prompt(span, query[None, :, first:last], *own, shape)
            out[first:last] = part[0].transpose(0, 1)
        return out

    def _attend_group(
        self,
        number: int,
        group: _Group,
        rows: Tensor,
        keys: Tensor,
        values: Tensor,
        shape: AttentionShape,
    ) -> Tensor:
        """One query for each sequence; heads that share keys become rows of one small matrix."""
        sequences = group.last - group.first
        kv_heads = keys.shape[1]
        query = rows[group.first : group.last]
        heads, dim = query.shape[1:]
        query = query.reshape(sequences, kv_heads, heads // kv_heads, dim)
        index = self._index("group", number, kv_heads)
        key, value = _gather(keys, index, sequences), _gather(values, index, sequences)
        mask = self._mask(
            (number, shape.window), lambda: self._group_mask(group, key.shape[2], shape.window)
        )
        sinks = None if shape.sinks is None else shape.sinks.view(1, kv_heads, -1, 1)
        out = mixed_values(query, key, value, mask, shape, sinks)
        return out.reshape(sequences, heads, -1)

    def _attend_prompt(
        self, span: Span, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """Many queries of one sequence."""
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (
                part[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2)
                for part in (key, value)
            )
        simple = shape.softcap is None and shape.sinks is None
        window = shape.window if shape.window is not None and shape.window < span.stop else None
        if simple and span.start == 0 and window is None:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=shape.scaling
            )
        mask = self._mask((-1 - span.row, window), lambda: self._prompt_mask(span, window))
        sinks = None if shape.sinks is None else shape.sinks.view(1, -1, 1, 1)
        return mixed_values(query, key, value, mask, shape, sinks)

    def _group(self, spans: Sequence[Span]) -> _Group:
        width = -(-spans[-1].stop // self.store.block_tokens)
        table = np.full((len(spans), width), EMPTY_BLOCK, dtype=np.int64)
        for row, span in enumerate(spans):
            used = -(-span.stop // self.store.block_tokens)
            table[row, :used] = span.blocks[:used]
        lengths = np.array([span.stop for span in spans])
        first = spans[0].row
        return _Group(first, first + len(spans), table, lengths)

    def _group_mask(self, group: _Group, width: int, window: int | None) -> Tensor:
        places = np.arange(width)
        seen = places < group.lengths[:, None]
        if window is not None:
            seen &= places >= group.lengths[:, None] - window
        return self._additive(seen)[:, None, None, :]

    def _prompt_mask(self, span: Span, window: int | None) -> Tensor:
        places, rows = np.arange(span.stop), np.arange(span.start, span.stop)[:, None]
        seen = places <= rows
        if window is not None:
            seen &= places > rows - window
        return self._additive(seen)

    def _additive(self, seen: np.ndarray) -> Tensor:
        numbers = np.where(seen, np.float32(0), np.float32(-np.inf))
        return self._tensor(numbers).to(self.store.dtype)

    def _mask(self, key: tuple[int, int | None], make: Callable[[], Tensor]) -> Tensor:
        """Masks are the same in all layers of one window."""
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = make()
        return mask

    def _index(self, what: str, number: int, heads: int) -> Tensor:
        """Return rows of a pool: of the new tokens, or of a table's blocks head by head.

        The same in all layers with so many heads.
        """
        index = self._indices.get((what, number, heads))
        if index is None:
            if what == "slots":
                blocks, places = self._slots
                rows = (blocks * heads + np.arange(heads)[:, None]) * self.store.block_tokens
                rows = rows + places
            else:
                groups = what == "group"
                table = self._groups[number].table if groups else self._prompts[number][1]
                rows = table[:, None] * heads + np.arange(heads)[:, None]
            index = self._indices[what, number, heads] = self._tensor(rows.reshape(-1))
        return index

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.store.device)


def _by_length(spans: Sequence[Span]) -> list[list[Span]]:
    """Cut spans that come in order of length into groups with little padding."""
    groups: list[list[Span]] = []
    total = 0
    for span in spans:
        total += span.stop
        if groups and span.stop * (len(groups[-1]) + 1) <= _PADDING * total:
            groups[-1].append(span)
        else:
            groups.append([span])
            total = span.stop
    return groups


def _gather(pool: Tensor, index: Tensor, sequences: int) -> Tensor:
    """Return the blocks of sequences as `[sequences, heads, tokens, dim]`, contiguous."""
    _, heads, tokens, dim = pool.shape
    rows = pool.view(-1, tokens * dim).index_select(0, index)
    return rows.view(sequences, heads, -1, dim)


def mixed_values(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    shape: AttentionShape,
    sinks: Tensor | None,
) -> Tensor:
    """Return what each query takes of the values, `[..., heads, queries, value_dim]`.

    `mask` is added to the scores; all heads of `key` are those of `query`.
    """
    if shape.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=shape.scaling
        )
    scores = query @ key.transpose(-1, -2) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    share = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, share], -1).softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(value.dtype) @ value
