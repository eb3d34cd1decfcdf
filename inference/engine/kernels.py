"""The compiled part of a step: what lies between its matrix products.

Without it the engine runs torch's own operations, which compute the same within float32's
rounding, more slowly. Which of the two a worker runs is settled when it loads its model.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
import torch
from torch import Tensor

from inference.engine.compiling import file_name
from inference.engine.structs import CBlock, CStep

log = structlog.get_logger(__name__)

_KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_TWISTER_BYTES = 624 * 4 + 8

_ADDRESS, _COUNT, _REAL, _THREADS = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_float,
    ctypes.c_int,
)
_SIGNATURES = {
    "rms_norm": (*[_ADDRESS] * 3, *[_COUNT] * 2, _REAL, *[_THREADS] * 2),
    "silu_mul": (*[_ADDRESS] * 2, *[_COUNT] * 2, _THREADS),
    "rotate": (*[_ADDRESS] * 3, *[_COUNT] * 4, _THREADS),
    "keep": (*[_ADDRESS] * 3, *[_COUNT] * 6, _THREADS),
    "attend": (*[_ADDRESS] * 7, *[_COUNT] * 10, *[_REAL] * 2, _THREADS),
    "linear": (*[_ADDRESS] * 4, *[_COUNT] * 3, _THREADS),
    "enter": (*[_ADDRESS] * 6, _COUNT, _THREADS),
    "leave": (*[_ADDRESS] * 5, _COUNT, _THREADS),
    "run": (*[_ADDRESS] * 7, *[_COUNT] * 3, _THREADS),
}
_PANEL = 32
"""Outputs of a linear layer that lie together, as `linear.cpp` reads them."""


def find(folder: Path) -> "Kernels | None":
    """Return what `compiling.build` left in `folder` for this machine; None without it."""
    path = folder / file_name()
    try:
        found = Kernels(path) if path.exists() else None
    except OSError as error:
        log.warning("kernels cannot be loaded", path=str(path), cause=str(error))
        return None
    if found is None:
        log.warning("no compiled kernels: this engine is slower than it could be", path=str(path))
    return found


class Kernels:
    """The compiled functions. Tensors are on the CPU; all of a call have one dtype, float32 or
    bfloat16, and are contiguous unless it says otherwise.
    """

    def __init__(self, path: Path) -> None:
        """Load a compiled file. Raises OSError when it does not fit this machine."""
        library = ctypes.CDLL(str(path))
        self._calls: dict[tuple[str, torch.dtype], Callable[..., None]] = {}
        for name, arguments in _SIGNATURES.items():
            for dtype, kind in _KINDS.items():
                # Products are there only where they are quicker than torch's.
                call = getattr(library, f"{name}_{kind}", None)
                if call is not None:
                    call.argtypes, call.restype = arguments, None
                    self._calls[name, dtype] = call
        self._seed, self._races, self._peaks = library.seed, library.races, library.peaks
        self._seed.argtypes = _ADDRESS, ctypes.c_uint64
        self._races.argtypes = *[_ADDRESS] * 3, *[_COUNT] * 2, _THREADS
        self._peaks.argtypes = *[_ADDRESS] * 2, *[_COUNT] * 2, _THREADS
        self._seed.restype = self._races.restype = self._peaks.restype = None

    def rms_norm(self, rows: Tensor, weight: Tensor, epsilon: float, *, wide: bool) -> Tensor:
        """Scale each row `[..., width]` to a mean square of 1, then by `weight` (float32).

        Unless `wide`, what was scaled is rounded to the rows' dtype before the weights.
        """
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        width = rows.shape[-1]
        self._calls["rms_norm", rows.dtype](
            out.data_ptr(),
            rows.data_ptr(),
            weight.data_ptr(),
            rows.numel() // width,
            width,
            epsilon,
            wide,
            torch.get_num_threads(),
        )
        return out

    def silu_mul(self, rows: Tensor) -> Tensor:
        """`silu(a) * b` for rows `[..., 2 * width]` that hold `a` and then `b`."""
        width = rows.shape[-1] // 2
        out = rows.new_empty((*rows.shape[:-1], width))
        self._calls["silu_mul", rows.dtype](
            out.data_ptr(), rows.data_ptr(), out.numel() // width, width, torch.get_num_threads()
        )
        return out

    def rotate(self, rows: Tensor, heads: int, cosines: Tensor, sines: Tensor) -> None:
        """Turn the first `heads` heads of each row in place by its position.

        `rows` is `[tokens, width]`, `cosines` and `sines` are `[tokens, dim]`; the second half of
        a head's numbers are the partners of the first.
        """
        tokens, dim = cosines.shape
        self._calls["rotate", rows.dtype](
            rows.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            tokens,
            heads,
            dim,
            rows.shape[1],
            torch.get_num_threads(),
        )

    def keep(self, pool: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Write `[heads, tokens, dim]` (any strides but the last) to a pool's slots.

        `pool` is `[blocks, heads, block_tokens, dim]`; slot `s` is place `s % block_tokens` of
        block `s // block_tokens`. `slots` is int64 `[tokens]`.
        """
        heads, tokens, dim = rows.shape
        head_stride, row_stride, _ = rows.stride()
        self._calls["keep", pool.dtype](
            pool.data_ptr(),
            rows.data_ptr(),
            slots.data_ptr(),
            tokens,
            heads,
            pool.shape[2],
            dim,
            row_stride,
            head_stride,
            torch.get_num_threads(),
        )

    def attend(
        self,
        out: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        spans: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> None:
        """Attention of all tokens of a step to what stands before them in their sequences' blocks.

        `query` is `[heads, tokens, dim]` (any strides but the last), `out` `[tokens, heads, dim]`,
        `keys` and `values` are pools that hold the step's own tokens, `table` is int64 `[spans,
        blocks]`, `spans` int64 `[spans, 3]`: first row, its position, and how many tokens.
        `sinks` is float32 `[heads]`. A token's numbers do not depend on the others of the step.
        """
        heads, _, key_dim = query.shape
        head_stride, row_stride, _ = query.stride()
        kv_heads, block = keys.shape[1:3]
        self._calls["attend", out.dtype](
            out.data_ptr(),
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            table.data_ptr(),
            spans.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            len(spans),
            heads,
            kv_heads,
            key_dim,
            values.shape[3],
            block,
            table.shape[1],
            row_stride,
            head_stride,
            window or 0,
            scaling,
            softcap or 0.0,
            torch.get_num_threads(),
        )

    def multiplies(self, dtype: torch.dtype) -> bool:
        """Whether `linear` is there for this dtype, on this kind of processor."""
        return ("linear", dtype) in self._calls

    def panels(self, weight: Tensor) -> Tensor:
        """Return the weight `[outputs, inputs]` of a linear layer as `linear` reads it."""
        together = 4 // weight.dtype.itemsize
        outputs, inputs = (-(-size // part) * part for size, part in
                           zip(weight.shape, (_PANEL, together), strict=True))  # fmt: skip
        whole = weight.new_zeros(outputs, inputs)
        whole[: weight.shape[0], : weight.shape[1]] = weight
        return whole.view(-1, _PANEL, inputs // together, together).transpose(1, 2).contiguous()

    def linear(self, rows: Tensor, panels: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
        """Return `[..., outputs]` for `[..., inputs]`, as a linear layer does.

        `panels` is what `panels` returned; `bias` is float32, as long as all panels together. A
        row's numbers do not depend on the rows beside it.
        """
        rows = rows.contiguous()
        out = rows.new_empty((*rows.shape[:-1], outputs))
        inputs = rows.shape[-1]
        self._calls["linear", rows.dtype](
            out.data_ptr(),
            rows.data_ptr(),
            panels.data_ptr(),
            None if bias is None else bias.data_ptr(),
            rows.numel() // inputs,
            inputs,
            outputs,
            torch.get_num_threads(),
        )
        return out

    def enter(self, block: CBlock, stream: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """What a decoder block does before its attention: norm, one product, rotation.

        `stream` is `[tokens, width]`; returns queries, keys and values side by side, a row each.
        """
        tokens = len(stream)
        rows = stream.new_empty(tokens, block.into.outputs)
        space = torch.empty_like(stream)
        self._calls["enter", stream.dtype](
            rows.data_ptr(),
            space.data_ptr(),
            stream.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            ctypes.addressof(block),
            tokens,
            torch.get_num_threads(),
        )
        return rows

    def leave(self, block: CBlock, stream: Tensor, mixed: Tensor) -> Tensor:
        """What a decoder block does with what attention gave: product, sum, norm, MLP, sum.

        `stream` is what `enter` got, `mixed` is `[tokens, heads * dim]`; returns the stream after
        the block.
        """
        tokens, width = stream.shape
        out = torch.empty_like(stream)
        space = stream.new_empty(tokens * (2 * width + block.up.outputs + block.down.inputs))
        self._calls["leave", stream.dtype](
            out.data_ptr(),
            space.data_ptr(),
            stream.data_ptr(),
            mixed.data_ptr(),
            ctypes.addressof(block),
            tokens,
            torch.get_num_threads(),
        )
        return out

    def run(
        self,
        blocks: Sequence[CBlock],
        first: int,
        step: CStep,
        stream: Tensor,
        cosines: Tensor,
        sines: Tensor,
    ) -> Tensor:
        """Run decoder blocks that follow one another, the first of them Layer `first`.

        The same as `enter`, `keep`, `attend` and `leave` for each: to the last bit. `stream` is
        `[tokens, width]`; returns the stream after the last block.
        """
        tokens, width = stream.shape
        out = torch.empty_like(stream)
        numbers = max(
            block.into.outputs + block.out.inputs + 2 * width + block.up.outputs + block.down.inputs
            for block in blocks
        )
        space = stream.new_empty(tokens * numbers)
        self._calls["run", stream.dtype](
            out.data_ptr(),
            space.data_ptr(),
            stream.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks)),
            ctypes.addressof(step),
            first,
            len(blocks),
            tokens,
            torch.get_num_threads(),
        )
        return out

    def peaks(self, scores: Tensor) -> Tensor:
        """Return `scores.argmax(-1)`, int64 `[rows]`, for float32 `[rows, vocabulary]`."""
        scores = scores.contiguous()
        places = torch.empty(len(scores), dtype=torch.int64)
        self._peaks(places.data_ptr(), scores.data_ptr(), *scores.shape, torch.get_num_threads())
        return places

    def twister(self, seed: int) -> "Twister":
        """Return a generator that draws as torch's generator for the CPU with this seed."""
        state = np.zeros(_TWISTER_BYTES, dtype=np.uint8)
        self._seed(state.ctypes.data, seed)
        return Twister(state, state.ctypes.data)

    def race(self, chances: Tensor, twisters: Sequence["Twister"]) -> Tensor:
        """Draw a token for each row of `chances`, float32 `[rows, vocabulary]`.

        The same tokens as `(chances / noise).argmax(-1)`, with noise that torch's `exponential_`
        fills row by row with each row's generator. Returns int64 `[rows]`.
        """
        chances = chances.contiguous()
        winners = torch.empty(len(chances), dtype=torch.int64)
        states = np.array([twister.address for twister in twisters], dtype=np.uintp)
        self._races(
            winners.data_ptr(),
            states.ctypes.data,
            chances.data_ptr(),
            *chances.shape,
            torch.get_num_threads(),
        )
        return winners


@dataclass(frozen=True)
class Twister:
    """The state of one generator; a draw changes it."""

    state: np.ndarray
    address: int
    """Of the state's first byte."""
