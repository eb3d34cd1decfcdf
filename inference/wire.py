"""The event wire: how requests reach a worker and events come back.

Everything goes through Valkey in a form that cannot be lost unseen. A submitted request lies in
blobs that the worker takes by deleting them, so a doorbell that rings twice, or an hour late,
finds nothing. Events go to one stream for each consumer process, one entry for each step of the
engine, numbered within their request.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
import redis

from inference import valkey
from inference.engine.messages import EngineRequest, Event

BLOB_BYTES = 2**20
"""Bytes of one blob at most."""
BLOBS_AT_ONCE = 4
"""Blobs that are asked for at once, so that a large answer is in memory once besides them."""
INLINE_BYTES = 64 * 1024
"""An entry up to this size travels in the stream itself."""
LIFE_MS = 60_000
"""How long events and aborts stay for somebody who does not read them."""
CONTROL_LENGTH = 4096

StreamAnswer = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]
"""What reading streams answers: for each stream its entries, each with an id and fields."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way to a worker, with the process that waits for its events."""

    request: EngineRequest
    consumer_id: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of a stream entry are."""

    inline: bytes = b""
    blobs: tuple[str, ...] = ()


_ENTRY = msgspec.msgpack.Decoder(Entry)
_EVENTS = msgspec.msgpack.Decoder(list[Event])
_SUBMISSION = msgspec.msgpack.Decoder(Submission)
_PACK = msgspec.msgpack.Encoder()


class BlobMissing(Exception):
    """A blob ran out or was lost before it was read."""


def split(name: str, data: bytes) -> dict[str, bytes]:
    """Cut bytes into named blobs of at most `BLOB_BYTES`."""
    return {
        f"{name}:{start // BLOB_BYTES}": data[start : start + BLOB_BYTES]
        for start in range(0, max(len(data), 1), BLOB_BYTES)
    }


def put_submission(connection: redis.Redis, submission: Submission, life_s: float) -> None:
    """Lay a request down for a worker; it is gone after `life_s` seconds."""
    name = valkey.submission(submission.request.request_id)
    blobs = split(name, _PACK.encode(submission))
    with connection.pipeline(transaction=True) as pipe:
        for blob, data in blobs.items():
            pipe.set(blob, data, px=int(life_s * 1000))
        pipe.set(name, str(len(blobs)), px=int(life_s * 1000))
        pipe.execute()


def take_submission(connection: redis.Redis, request_id: str) -> Submission | None:
    """Take a request, once: None when it was taken, aborted or has run out."""
    name = valkey.submission(request_id)
    count = cast("bytes | None", connection.getdel(name))
    if count is None:
        return None
    names = [f"{name}:{i}" for i in range(int(count))]
    with connection.pipeline(transaction=True) as pipe:
        pipe.mget(names)
        pipe.delete(*names)
        parts, _ = cast("tuple[list[bytes | None], int]", tuple(pipe.execute()))
    if any(part is None for part in parts):
        return None
    return _SUBMISSION.decode(b"".join(cast("list[bytes]", parts)))


def publish(connection: redis.Redis, batches: Iterable[tuple[str, str, Sequence[Event]]]) -> None:
    """Send events, one entry for each `(consumer, entry name, events)`, in one round trip.

    The entry name is unique; blobs of a large entry are named after it.
    """
    with connection.pipeline(transaction=False) as pipe:
        for consumer_id, name, events in batches:
            data = _PACK.encode(list(events))
            entry = Entry(inline=data)
            if len(data) > INLINE_BYTES:
                blobs = split(f"{valkey.PREFIX}blob:{name}", data)
                entry = Entry(blobs=tuple(blobs))
                for blob, part in blobs.items():
                    pipe.set(blob, part, px=LIFE_MS)
            stream = valkey.events(consumer_id)
            pipe.xadd(stream, {b"e": _PACK.encode(entry)})
            pipe.pexpire(stream, LIFE_MS)
        pipe.execute()


def inline_events(raw: bytes) -> list[Event] | None:
    """Return the events of a stream entry, or None when they lie in blobs."""
    entry = _ENTRY.decode(raw)
    return None if entry.blobs else _EVENTS.decode(entry.inline)


def read_blobs(connection: redis.Redis, raw: bytes) -> list[Event]:
    """Return the events of an entry that lie in blobs; the blobs are deleted.

    Raises:
        BlobMissing: when one is not there any more.
    """
    names = list(_ENTRY.decode(raw).blobs)
    data = bytearray()
    try:
        for start in range(0, len(names), BLOBS_AT_ONCE):
            some = names[start : start + BLOBS_AT_ONCE]
            for part in cast("list[bytes | None]", connection.mget(some)):
                if part is None:
                    raise BlobMissing(names[0])
                data += part
    finally:
        connection.delete(*names)
    return _EVENTS.decode(data)


def send_abort(connection: redis.Redis, model_id: str, request_ids: Sequence[str]) -> None:
    """Abort requests: a mark for those not taken yet, and word to every worker of the model."""
    with connection.pipeline(transaction=False) as pipe:
        for request_id in request_ids:
            pipe.set(valkey.aborted(request_id), b"1", px=LIFE_MS)
            pipe.xadd(
                valkey.control(model_id),
                {b"abort": request_id.encode()},
                maxlen=CONTROL_LENGTH,
                approximate=True,
            )
        pipe.pexpire(valkey.control(model_id), LIFE_MS)
        pipe.execute()


def is_aborted(connection: redis.Redis, request_id: str) -> bool:
    """Whether a request was aborted."""
    return bool(connection.exists(valkey.aborted(request_id)))
