"""Answers that are made while they are written: the first part, and an iterator of the rest."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

PIECE_BYTES = 2**18
"""About the bytes of a piece: enough that a visit to a thread is worth it."""
AT_ONCE_BYTES = 2**20
"""An answer up to this size is one part."""


@dataclass(frozen=True)
class Body:
    """An answer; `rest` is for a thread, not for the loop."""

    start: bytes
    rest: Iterator[bytes] | None = None
    """None when `start` is all of it."""


def body_of(pieces: Iterator[bytes], at_once: int = AT_ONCE_BYTES) -> Body:
    """Make the first part of a body, which is the whole of a small one; for a thread."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > at_once:
            return Body(b"".join(parts), gathered(pieces))
    return Body(b"".join(parts))


def gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are not small."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
    if parts:
        yield b"".join(parts)


def in_file(body: Body) -> IO[bytes]:
    """Write all of a body into a temporary file."""
    file = cast("IO[bytes]", tempfile.TemporaryFile(prefix="basalt-answer-"))  # noqa: SIM115
    file.write(body.start)
    for piece in body.rest or ():
        file.write(piece)
    file.flush()
    return file


def file_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield what a file has from here on, and close it."""
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece
