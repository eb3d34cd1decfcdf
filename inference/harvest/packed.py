"""Attention over whole sequences that lie one after the other, without a cache and without padding.

Sequences of one length that lie together share one call. No mask is larger than a few rows of a
sequence, so memory grows with the length of a prompt and not with its square.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.attention import AttentionShape, mixed_values
from inference.engine.kernels import Kernels
from inference.engine.layout import BlockLayout, Span
from inference.engine.store import BlockStore, LayerShape

BLOCK_TOKENS = 64
QUERIES_AT_ONCE = 256
"""Queries that are scored together where a mask has to be written out."""


@dataclass(frozen=True)
class Run:
    """Sequences of one length, in the packed batch."""

    row: int
    """Row of the first token."""
    sequences: int
    length: int

    @property
    def stop(self) -> int:
        """Row after the last token."""
        return self.row + self.sequences * self.length


@dataclass
class WholeSequences:
    """Attention of one forward pass; see `inference.engine.attention.Layout`."""

    lengths: Sequence[int]
    """Tokens of each sequence, in the order of the batch."""
    before_layer: Callable[[], None]
    """Called at each attention layer; what it raises ends the pass."""
    kernels: Kernels | None = None
    """Where they are, the engine's own attention runs, and gives a Completion's rows to the bit."""
    unread: set[str] | None = None
    cached: None = None
    _runs: list[Run] = field(init=False)
    _masks: dict[tuple[int, int, int | None], Tensor] = field(init=False, default_factory=dict)
    _blocks: dict[LayerShape, BlockLayout] = field(init=False, default_factory=dict)
    """A cache of one layer for each shape: a layer's keys and values replace the last one's."""

    def __post_init__(self) -> None:
        """Find the runs of equal lengths."""
        self._runs = []
        row = 0
        for length in self.lengths:
            if self._runs and self._runs[-1].length == length:
                last = self._runs[-1]
                self._runs[-1] = Run(last.row, last.sequences + 1, length)
            else:
                self._runs.append(Run(row, 1, length))
            row += length

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """Return `[tokens, heads, value_dim]` for `[heads, tokens, dim]` of each."""
        self.before_layer()
        if self.kernels is not None:
            return self._layout(key, value).attend(0, query, key, value, shape)
        heads, tokens, _ = query.shape
        shared = heads // key.shape[0]
        out = query.new_empty(tokens, heads, value.shape[-1])
        if query.device.type == "cpu":
            # As in the engine, so that a harvest's rows are those of a Completion.
            query, key, value = query.float(), key.float(), value.float()
        for run in self._runs:
            part = self._attend(
                _sequences(query, run),
                _all_heads(_sequences(key, run), shared),
                _all_heads(_sequences(value, run), shared),
                shape,
            )
            out[run.row : run.stop] = part.transpose(1, 2).flatten(0, 1)
        return out

    def _layout(self, key: Tensor, value: Tensor) -> BlockLayout:
        stored = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        if stored not in self._blocks:
            counts = [-(-length // BLOCK_TOKENS) for length in self.lengths]
            store = BlockStore(
                [stored],
                blocks=sum(counts),
                block_tokens=BLOCK_TOKENS,
                dtype=key.dtype,
                device=key.device,
                kernels=self.kernels,
            )
            rows, blocks = accumulate([0, *self.lengths]), accumulate([1, *counts])
            spans = [
                Span(row, 0, length, range(first, first + count))
                for row, first, length, count in zip(
                    rows, blocks, self.lengths, counts, strict=False
                )
            ]
            self._blocks[stored] = BlockLayout(store, spans)
        return self._blocks[stored]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        """Attend within sequences, `[sequences, heads, length, dim]` each."""
        length = query.shape[2]
        window = shape.window if shape.window is not None and shape.window < length else None
        if shape.softcap is None and shape.sinks is None and window is None:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=shape.scaling
            )
        sinks = None if shape.sinks is None else shape.sinks.view(1, -1, 1, 1)
        parts = []
        for start in range(0, length, QUERIES_AT_ONCE):
            stop = min(start + QUERIES_AT_ONCE, length)
            first = 0 if window is None else max(0, start - window + 1)
            mask = self._mask(start - first, stop - first, window, query)
            parts.append(
                mixed_values(
                    query[:, :, start:stop],
                    key[:, :, first:stop],
                    value[:, :, first:stop],
                    mask,
                    shape,
                    sinks,
                )
            )
        return torch.cat(parts, dim=2)

    def _mask(self, start: int, stop: int, window: int | None, like: Tensor) -> Tensor:
        """Return what queries `start` to `stop - 1` add to the scores of keys 0 to `stop - 1`."""
        mask = self._masks.get((start, stop, window))
        if mask is None:
            rows = torch.arange(start, stop, device=like.device)[:, None]
            places = torch.arange(stop, device=like.device)
            hidden = places > rows
            if window is not None:
                hidden = hidden | (places <= rows - window)
            mask = like.new_zeros(stop - start, stop).masked_fill_(hidden, -torch.inf)
            self._masks[start, stop, window] = mask
        return mask


def _sequences(packed: Tensor, run: Run) -> Tensor:
    """Return a run's part of `[heads, tokens, dim]` as `[sequences, heads, length, dim]`."""
    heads, _, dim = packed.shape
    part = packed[:, run.row : run.stop]
    return part.reshape(heads, run.sequences, run.length, dim).transpose(0, 1)


def _all_heads(part: Tensor, shared: int) -> Tensor:
    """Repeat each head of the keys or values for the query heads that share it."""
    if shared == 1:
        return part
    return part[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2)
