"""Reads kept Activations back, a few rows at a time: a capture may be 128 MiB.

The file is what `completions.activations` wrote: `{"residual_stream": {"data": "...", ...}}`,
`data` being base64 of one zstd frame.
"""

import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import IO

import numpy as np
import zstandard
from numpy.typing import NDArray

START = b'{"residual_stream": {"data": "'
TAIL_BYTES = 1024
"""More than stands after `data`."""
READ_BYTES = 2**20
ITEM = {"float32": 4, "bfloat16": 2}


class ActivationsUnreadable(Exception):
    """The file is not what was kept."""


@dataclass(frozen=True)
class KeptActivations:
    """`[layers, tokens, hidden]` numbers in an open file."""

    file: IO[bytes]
    shape: tuple[int, int, int]
    dtype: str
    """`float32` or `bfloat16`."""
    end: int
    """Where the base64 text ends."""

    @classmethod
    def open(cls, file: IO[bytes]) -> "KeptActivations":
        """Read what stands around the numbers; raises `ActivationsUnreadable`."""
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        text, _, rest = file.read().rpartition(b'", "dtype": ')
        try:
            about = json.loads(b'{"dtype": ' + rest.removesuffix(b"}"))
            layers, tokens, hidden = about["shape"]
            dtype = str(about["original_dtype"]).removeprefix("torch.")
            item = ITEM[dtype]
        except (ValueError, KeyError, TypeError) as fault:
            raise ActivationsUnreadable("the kept activations cannot be read") from fault
        assert item
        end = max(0, size - TAIL_BYTES) + len(text)
        return cls(file, (layers, tokens, hidden), dtype, end)

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """Yield all rows in order as `[some, hidden]` float32; bfloat16 widens exactly.

        Raises:
            ActivationsUnreadable: when there are fewer or more numbers than the shape says.
        """
        width = self.shape[2] * ITEM[self.dtype]
        left, waiting = prod(self.shape[:2]), b""
        for data in self._bytes():
            waiting += data
            whole = len(waiting) // width * width
            if not whole:
                continue
            yield self._numbers(waiting[:whole])
            left -= whole // width
            waiting = waiting[whole:]
        if left or waiting:
            raise ActivationsUnreadable("the kept activations end too early")

    def norms(self) -> NDArray[np.float64]:
        """Return the Euclidean norm of each row, `[layers, tokens]`."""
        found = [np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1)) for rows in self.rows()]
        return np.concatenate(found).reshape(self.shape[:2])

    def npy_pieces(self) -> Iterator[bytes]:
        """Yield a NumPy file of the numbers as float32, `[layers, tokens, hidden]`."""
        head = BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(head, about)
        yield head.getvalue()
        for rows in self.rows():
            yield rows.astype("<f4", copy=False).tobytes()

    def _numbers(self, data: bytes) -> NDArray[np.float32]:
        if self.dtype == "float32":
            return np.frombuffer(data, "<f4").reshape(-1, self.shape[2])
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(-1, self.shape[2])

    def _bytes(self) -> Iterator[bytes]:
        """Yield what the base64 text and the frame in it hold."""
        self.file.seek(0)
        if self.file.read(len(START)) != START:
            raise ActivationsUnreadable("the kept activations cannot be read")
        frame = zstandard.ZstdDecompressor().decompressobj()
        at = len(START)
        while at < self.end:
            text = self.file.read(min(READ_BYTES, self.end - at))
            if not text:
                raise ActivationsUnreadable("the kept activations end too early")
            at += len(text)
            yield frame.decompress(binascii.a2b_base64(text))
