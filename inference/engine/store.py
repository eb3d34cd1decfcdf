"""Where the keys and values of all sequences lie."""

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels import Kernels
from inference.engine.structs import CPools

AHEAD_BYTES = 512 << 20
"""Memory that is there before blocks are used, in bytes."""
_PIECE_BYTES = 2 << 20
_PAGE_BYTES = 4096


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
        kernels: Kernels | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        self.dtype = dtype
        self.kernels = kernels

        def pool(heads: int, dim: int) -> Tensor:
            return _zeros((blocks + 1, heads, block_tokens, dim), dtype, device)

        self.keys = [pool(shape.heads, shape.key_dim) for shape in shapes]
        self.values = [pool(shape.heads, shape.value_dim) for shape in shapes]
        pairs = zip(self.keys, self.values, strict=True)
        self.pools = (CPools * len(shapes))(
            *(CPools(keys.data_ptr(), values.data_ptr()) for keys, values in pairs)
        )
        """The same, for the kernels."""
        self._given = [0] * (2 * len(shapes))
        """For each pool, the blocks whose memory is there."""

    @staticmethod
    def block_bytes(shapes: Sequence[LayerShape], block_tokens: int, dtype: torch.dtype) -> int:
        """Return what one block takes over all layers, in bytes."""
        numbers = sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in shapes)
        return numbers * block_tokens * dtype.itemsize

    def give_ahead(self, used: int) -> bool:
        """Take from the system a piece of the memory that blocks after `used` will need.

        Those were never used: their zeros are written once more. Taking memory is slow, so it is
        done while nobody waits; returns whether there is more to take.
        """
        pools = [*self.keys, *self.values]
        bytes_of_block = [math.prod(pool.shape[1:]) * pool.itemsize for pool in pools]
        wanted = min(len(pools[0]), used + 1 + AHEAD_BYTES // sum(bytes_of_block))
        place = min(range(len(pools)), key=self._given.__getitem__)
        if self.device.type != "cpu" or self._given[place] >= wanted:
            return False
        start = max(self._given[place], used + 1)
        stop = min(wanted, start + -(-_PIECE_BYTES // bytes_of_block[place]))
        pools[place][start:stop].view(-1).view(torch.uint8)[::_PAGE_BYTES] = 0
        self._given[place] = stop
        return True

    def copy(self, source: int, target: int) -> None:
        """Copy a block in all layers."""
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]

    def clear(self, blocks: Sequence[int]) -> None:
        """Write zeros, so that no number of a failed sequence can reach another one."""
        for pool in (*self.keys, *self.values):
            pool[list(blocks)] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that take memory only where they were written to, on a CPU."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages that the system gives out as they are used, and large ones where it can: a step touches
    # blocks all over the store. It has large ones for memory of one process alone.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=dtype).view(shape)
