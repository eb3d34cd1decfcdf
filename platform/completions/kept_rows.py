"""The log probabilities of an unstreamed answer while it grows: packed, and few in memory."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO, cast

from completions.token_lists import Table, table_of
from inference.engine.messages import PackedLogprobs

NUMBER_BYTES = 4
REPORT_BYTES = 400
"""About what a report takes besides its arrays."""


@dataclass(frozen=True)
class _InFile:
    """Where some rows of a choice are."""

    offset: int
    rows: int
    width: int


class KeptRows:
    """The rows of each choice in their order; beyond `memory_bytes` they go to a file."""

    def __init__(self, choices: int, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._end = 0
        self._stored: list[list[_InFile | PackedLogprobs]] = [[] for _ in range(choices)]
        self._recent: list[list[PackedLogprobs]] = [[] for _ in range(choices)]

    def add(self, choice: int, packed: PackedLogprobs) -> None:
        """Add the rows of a choice's next tokens."""
        if isinstance(packed.ids, memoryview):
            # The views of a large event lie in a file already.
            self._store(choice)
            self._stored[choice].append(packed)
            return
        self._recent[choice].append(packed)
        self._bytes += REPORT_BYTES + 3 * len(packed.ids)
        if self._bytes > self._limit:
            for each in range(len(self._recent)):
                self._store(each)

    def of(self, choice: int) -> Iterator[Table]:
        """Yield the rows of a choice, a bounded part at a time."""
        for part in [*self._stored[choice], *_joined(self._recent[choice])]:
            yield table_of(self._read(part) if isinstance(part, _InFile) else part)

    def _store(self, choice: int) -> None:
        """Move the rows of a choice into the file."""
        if not self._recent[choice]:
            return
        if self._file is None:
            self._file = cast("BinaryIO", tempfile.TemporaryFile(prefix="basalt-rows-"))  # noqa: SIM115
        for packed in _joined(self._recent[choice]):
            self._stored[choice].append(_InFile(self._end, packed.rows, packed.width))
            for array in (packed.ids, packed.logprobs, packed.ranks):
                self._file.write(array)
                self._end += len(array)
        self._file.flush()
        for packed in self._recent[choice]:
            self._bytes -= REPORT_BYTES + 3 * len(packed.ids)
        self._recent[choice].clear()

    def _read(self, part: _InFile) -> PackedLogprobs:
        assert self._file is not None
        size = part.rows * part.width * NUMBER_BYTES
        data = memoryview(os.pread(self._file.fileno(), 3 * size, part.offset))
        ids, logprobs, ranks = (data[place * size :][:size] for place in range(3))
        return PackedLogprobs(
            rows=part.rows, width=part.width, ids=ids, logprobs=logprobs, ranks=ranks
        )


def _joined(reports: Sequence[PackedLogprobs]) -> Iterator[PackedLogprobs]:
    """Yield reports of one width that follow each other as one."""
    for width, group in groupby(reports, lambda report: report.width):
        some = list(group)
        yield PackedLogprobs(
            rows=sum(report.rows for report in some),
            width=width,
            ids=b"".join(report.ids for report in some),
            logprobs=b"".join(report.logprobs for report in some),
            ranks=b"".join(report.ranks for report in some),
        )
