"""The layout of a step: where each token's keys and values go, and what each query sees."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.attention import AttentionShape, CachedStep, mixed_values
from inference.engine.blocks import EMPTY_BLOCK
from inference.engine.kernels import Kernels
from inference.engine.store import BlockStore
from inference.engine.structs import CStep

_PADDING = 1.25
"""Sequences that generate share one call while padding adds at most so much to their keys."""


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

    Compiled kernels go over each sequence's own blocks. Without them, spans of one token come
    first, in order of length, so that a group of them is a slice of rows.
    """

    store: BlockStore
    spans: Sequence[Span]
    unread: set[str] | None = None
    cached: CachedStep | None = field(init=False, default=None)
    _groups: list[_Group] = field(init=False)
    _prompts: list[tuple[Span, np.ndarray]] = field(init=False)
    _slots: np.ndarray = field(init=False)
    _places: Tensor = field(init=False)
    """The slots, for the kernels, as the two after it."""
    _table: Tensor = field(init=False)
    """int64 `[spans, blocks]`."""
    _marks: Tensor = field(init=False)
    """int64 `[spans, 3]`: first row, its position, tokens."""
    _indices: dict[tuple[str, int, int], Tensor] = field(init=False, default_factory=dict)
    _masks: dict[tuple[int, int | None], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Lay the spans out once for all layers."""
        size = self.store.block_tokens
        slots: list[int] = []
        for span in self.spans:
            places = range(span.start, span.stop)
            slots += [span.blocks[place // size] * size + place % size for place in places]
        self._slots = np.array(slots, dtype=np.int64)
        if self.store.kernels is not None:
            self._places = torch.from_numpy(self._slots)
            self._table = torch.from_numpy(self._blocks(self.spans))
            self._marks = torch.tensor([(span.row, span.start, span.count) for span in self.spans])
            self.cached = CachedStep(
                CStep(
                    ctypes.addressof(self.store.pools),
                    self._places.data_ptr(),
                    self._table.data_ptr(),
                    self._marks.data_ptr(),
                    *self._table.shape,
                    size,
                )
            )
            return
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
        """See `attention.Layout.attend`."""
        keys, values = self.store.keys[layer], self.store.values[layer]
        if self.store.kernels is not None:
            return self._attend_by(self.store.kernels, query, key, value, keys, values, shape)
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

    def _attend_by(
        self,
        kernels: Kernels,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        shape: AttentionShape,
    ) -> Tensor:
        """All tokens in one call."""
        kernels.keep(keys, key, self._places)
        kernels.keep(values, value, self._places)
        heads, tokens, _ = query.shape
        out = query.new_empty(tokens, heads, value.shape[-1])
        kernels.attend(
            out,
            query,
            keys,
            values,
            self._table,
            self._marks,
            scaling=shape.scaling,
            window=shape.window,
            softcap=shape.softcap,
            sinks=None if shape.sinks is None else shape.sinks.float(),
        )
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

    def _blocks(self, spans: Sequence[Span]) -> np.ndarray:
        """Return the blocks of sequences, int64 `[spans, blocks]`, filled up with the empty one."""
        used = [-(-span.stop // self.store.block_tokens) for span in spans]
        table = np.full((len(spans), max(used)), EMPTY_BLOCK, dtype=np.int64)
        for row, span, count in zip(table, spans, used, strict=True):
            row[:count] = span.blocks[:count]
        return table

    def _group(self, spans: Sequence[Span]) -> _Group:
        lengths = np.array([span.stop for span in spans])
        first = spans[0].row
        return _Group(first, first + len(spans), self._blocks(spans), lengths)

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
        """Return places of the new tokens, or rows of a pool: theirs, or of a table's blocks.

        The same in all layers with so many heads.
        """
        index = self._indices.get((what, number, heads))
        if index is None:
            if what == "slots":
                blocks, places = np.divmod(self._slots, self.store.block_tokens)
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
