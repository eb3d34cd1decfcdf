"""Large events: they travel in blobs, wait in a file, and come out with views of that file.

A whole-vocabulary report or a read of the residual stream takes more than 100 MiB. Here its
bytes are never in memory at once: blob by blob they go into a temporary file, and the event's
arrays are views of the mapped file, whose pages come in when they are read.
"""

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, cast

import msgspec
import redis

from inference.engine.messages import (
    Buffer,
    Delta,
    Event,
    Failed,
    Finished,
    PackedLogprobs,
)

BLOB_BYTES = 2**20
"""Bytes of one blob at most."""
BLOBS_AT_ONCE = 4
"""Blobs that are asked for at once."""

_PACK = msgspec.msgpack.Encoder()
_EVENT: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


class BlobMissing(Exception):
    """A blob ran out or was lost before it was read."""


class Large(msgspec.Struct, frozen=True, kw_only=True, tag="large"):
    """Where a large event stands among the events of its request, and where its bytes are."""

    request_id: str
    seq: int
    ends: bool
    """Whether it is the last event of its request."""
    head_bytes: int
    """Bytes of the event without its arrays; the arrays follow."""
    arrays: tuple[int, ...]
    """Bytes of each array."""
    blobs: tuple[str, ...]


def array_bytes(event: Event) -> int:
    """Return the bytes of an event's arrays."""
    return sum(map(len, _taken_apart(event)[1]))


def lay_down(name: str, event: Event) -> tuple[Large, dict[str, Buffer]]:
    """Return an event's place and its named blobs; their names begin with `name`."""
    bare, arrays = _taken_apart(event)
    head = _PACK.encode(bare)
    parts = [
        memoryview(part)[start : start + BLOB_BYTES]
        for part in (head, *arrays)
        for start in range(0, len(part), BLOB_BYTES)
    ]
    blobs: dict[str, Buffer] = {f"{name}:{number}": part for number, part in enumerate(parts)}
    large = Large(
        request_id=event.request_id,
        seq=event.seq,
        ends=isinstance(event, Finished | Failed),
        head_bytes=len(head),
        arrays=tuple(map(len, arrays)),
        blobs=tuple(blobs),
    )
    return large, blobs


def fetch(connection: redis.Redis, large: Large) -> BinaryIO:
    """Bring an event's bytes into a temporary file; the blobs are deleted.

    Raises:
        BlobMissing: when one is not there any more.
        OSError: when the file cannot be written.
    """
    file = cast("BinaryIO", tempfile.TemporaryFile(prefix="basalt-result-"))  # noqa: SIM115
    try:
        for start in range(0, len(large.blobs), BLOBS_AT_ONCE):
            names = list(large.blobs[start : start + BLOBS_AT_ONCE])
            for part in cast("list[bytes | None]", connection.mget(names)):
                if part is None:
                    raise BlobMissing(names[0])
                file.write(part)
        file.flush()
    except BaseException:
        file.close()
        raise
    finally:
        connection.delete(*large.blobs)
    return file


def read_event(large: Large, file: BinaryIO, offset: int = 0) -> Event:
    """Return the event whose bytes are in `file` from `offset` on; the file may be closed then."""
    whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[offset:]
    ends = [large.head_bytes]
    for size in large.arrays:
        ends.append(ends[-1] + size)
    arrays = (whole[start:end] for start, end in pairwise(ends))
    return _put_together(_EVENT.decode(whole[: large.head_bytes]), arrays)


def let_go(array: Buffer) -> None:
    """Give the memory of a view's file back, from which it is read again when it is needed."""
    if isinstance(array, memoryview) and isinstance(array.obj, mmap.mmap):
        array.obj.madvise(mmap.MADV_DONTNEED)


def _taken_apart(event: Event) -> tuple[Event, Sequence[Buffer]]:
    """Return the event without its arrays, and the arrays."""
    arrays: list[Buffer] = []
    if isinstance(event, Delta) and (event.logprobs or event.prompt_logprobs):
        bare = msgspec.structs.replace(
            event,
            logprobs=_bare(event.logprobs, arrays),
            prompt_logprobs=_bare(event.prompt_logprobs, arrays),
        )
        return bare, arrays
    if isinstance(event, Finished) and event.residuals is not None:
        arrays.append(event.residuals.data)
        residuals = msgspec.structs.replace(event.residuals, data=b"")
        return msgspec.structs.replace(event, residuals=residuals), arrays
    return event, arrays


def _bare(packed: PackedLogprobs | None, arrays: list[Buffer]) -> PackedLogprobs | None:
    if packed is None:
        return None
    arrays += [packed.ids, packed.logprobs, packed.ranks]
    return msgspec.structs.replace(packed, ids=b"", logprobs=b"", ranks=b"")


def _put_together(bare: Event, arrays: Iterator[Buffer]) -> Event:
    if isinstance(bare, Delta):
        logprobs = _filled(bare.logprobs, arrays)
        prompt_logprobs = _filled(bare.prompt_logprobs, arrays)
        return msgspec.structs.replace(bare, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    if isinstance(bare, Finished) and bare.residuals is not None:
        residuals = msgspec.structs.replace(bare.residuals, data=next(arrays))
        return msgspec.structs.replace(bare, residuals=residuals)
    return bare


def _filled(packed: PackedLogprobs | None, arrays: Iterator[Buffer]) -> PackedLogprobs | None:
    if packed is None:
        return None
    ids, logprobs, ranks = next(arrays), next(arrays), next(arrays)
    return msgspec.structs.replace(packed, ids=ids, logprobs=logprobs, ranks=ranks)
