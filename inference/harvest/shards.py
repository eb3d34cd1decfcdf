"""Shards: safetensors files whose places are known before any number is.

The header of a shard follows from the token counts of its prompts alone. So its file is laid out
first, and each prompt's rows go to their place as soon as they are read, in whatever order.
"""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from inference.harvest.request import Contents

TYPES: dict[Contents, tuple[Literal["BF16", "F32"], int]] = {
    "activations": ("BF16", 2),
    "projections": ("F32", 4),
}
"""The type of the rows in safetensors' words, and its bytes (C-500)."""


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a shard."""

    name: str
    kind: Literal["BF16", "F32", "I32"]
    shape: tuple[int, ...]
    start: int
    """Bytes after the header."""
    stop: int


@dataclass(frozen=True)
class ShardLayout:
    """Where everything of a shard lies."""

    prompts: Sequence[int]
    """Indexes over the whole request (C-499, U-12)."""
    tokens: dict[int, TensorPlace]
    rows: dict[int, TensorPlace]
    header: bytes

    @classmethod
    def of(
        cls,
        prompts: Sequence[int],
        lengths: Sequence[int],
        *,
        layers: int,
        width: int,
        contents: Contents,
    ) -> "ShardLayout":
        """Lay a shard out; `lengths` has the token count of every prompt of the request.

        The ids come first, so that every tensor starts at a multiple of its type's size.
        """
        kind, size = TYPES[contents]
        places: list[TensorPlace] = []
        start = 0
        tokens: dict[int, TensorPlace] = {}
        rows: dict[int, TensorPlace] = {}
        for index in prompts:
            stop = start + 4 * lengths[index]
            tokens[index] = TensorPlace(f"tokens_{index}", "I32", (lengths[index],), start, stop)
            start = stop
        for index in prompts:
            shape = (layers, lengths[index], width)
            stop = start + size * layers * lengths[index] * width
            rows[index] = TensorPlace(f"prompt_{index}", kind, shape, start, stop)
            start = stop
        places = [*tokens.values(), *rows.values()]
        return cls(prompts, tokens, rows, _header(places))

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        places = [*self.rows.values(), *self.tokens.values()]
        return len(self.header) + max((place.stop for place in places), default=0)


class ShardFile:
    """A shard while its rows come in."""

    def __init__(self, path: Path, layout: ShardLayout, tokens: Sequence[np.ndarray]) -> None:
        """Write all but the rows; `tokens` has the ids of every prompt of the request.

        Raises OSError, also when the disk has no room for the whole file.
        """
        self.path = path
        self.layout = layout
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            if layout.size:
                os.posix_fallocate(self._file, 0, layout.size)
            self._write(memoryview(layout.header), 0)
            for index, place in layout.tokens.items():
                ids = np.ascontiguousarray(tokens[index], dtype="<i4")
                self._write(memoryview(ids.tobytes()), self._at(place))
        except OSError:
            os.close(self._file)
            raise

    def put(self, prompt: int, layer: int, rows: Tensor) -> None:
        """Write one Layer's rows of a prompt: contiguous `[tokens, width]` on the CPU.

        `layer` counts along the Layer axis.
        """
        place = self.layout.rows[prompt]
        data = memoryview(rows.view(torch.uint8).numpy().data).cast("B")
        if rows.shape != place.shape[1:] or len(data) * place.shape[0] != place.stop - place.start:
            raise ValueError(f"rows of the shape {tuple(rows.shape)} for {place}")
        self._write(data, self._at(place) + layer * len(data))

    def close(self) -> None:
        """Give the file to the system's care."""
        os.close(self._file)

    def _at(self, place: TensorPlace) -> int:
        return len(self.layout.header) + place.start

    def _write(self, data: memoryview, offset: int) -> None:
        """Write all of it, however much the system takes at once."""
        while data:
            done = os.pwrite(self._file, data, offset)
            data, offset = data[done:], offset + done


def _header(places: Sequence[TensorPlace]) -> bytes:
    """Write the header as safetensors has it: a length, and JSON filled up to a multiple of 8."""
    tensors: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for place in places:
        tensors[place.name] = {
            "dtype": place.kind,
            "shape": place.shape,
            "data_offsets": (place.start, place.stop),
        }
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
