"""The event wire: how requests reach a worker and events come back.

Everything goes through Valkey in a form that cannot be lost unseen. A submitted request lies in
blobs that the worker takes by deleting them, so a doorbell that rings twice, or an hour late,
finds nothing. Events go to one stream for each consumer process, those of one step of the engine
together, numbered within their request. A large one lies in blobs, and its entry says where.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
import redis

from inference import valkey
from inference.engine.messages import Buffer, EngineRequest, Event
from inference.large import BLOB_BYTES, Large, array_bytes, lay_down

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
    """Some events of a consumer's, or one large one."""

    events: list[Event] = []
    large: Large | None = None


_ENTRY = msgspec.msgpack.Decoder(Entry)
_SUBMISSION = msgspec.msgpack.Decoder(Submission)
_PACK = msgspec.msgpack.Encoder()


def split(name: str, data: bytes) -> dict[str, bytes]:
    """Cut bytes into named blobs of at most `BLOB_BYTES`."""
    return {
        f"{name}:{start // BLOB_BYTES}": data[start : start + BLOB_BYTES]
        for start in range(0, max(len(data), 1), BLOB_BYTES)
    }


Blobs = dict[str, bytes]
"""A submission in Valkey's form: its parts, and under its own name how many there are."""


def packed(submission: Submission) -> Blobs:
    """Return a request as it lies in Valkey.

    Raises what the encoder raises for a number that has no place on the wire.
    """
    name = valkey.submission(submission.request.request_id)
    parts = split(name, _PACK.encode(submission))
    return {**parts, name: str(len(parts)).encode()}


def put_submissions(connection: redis.Redis, submissions: Iterable[Blobs], life_s: float) -> None:
    """Lay requests down for workers; they are gone after `life_s` seconds."""
    with connection.pipeline(transaction=True) as pipe:
        for blobs in submissions:
            for name, data in blobs.items():
                pipe.set(name, data, px=int(life_s * 1000))
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
    """Send the events of each `(consumer, name, events)`, in one round trip.

    The name is unique; blobs of large events are named after it.
    """
    with connection.pipeline(transaction=False) as pipe:
        for consumer_id, name, events in batches:
            stream = valkey.events(consumer_id)
            for entry, blobs in _entries(name, events):
                for blob, part in blobs.items():
                    pipe.set(blob, cast("bytes", part), px=LIFE_MS)
                pipe.xadd(stream, {b"e": entry})
            pipe.pexpire(stream, LIFE_MS)
        pipe.execute()


def _entries(name: str, events: Sequence[Event]) -> Iterator[tuple[bytes, dict[str, Buffer]]]:
    """Yield the entries that carry these events in their order, each with its blobs."""
    small: list[msgspec.Raw] = []
    size = 0
    for event in events:
        raw = b"" if array_bytes(event) > INLINE_BYTES else _PACK.encode(event)
        is_large = not raw or len(raw) > INLINE_BYTES
        if small and (is_large or size + len(raw) > INLINE_BYTES):
            yield _PACK.encode({"events": small}), {}
            small, size = [], 0
        if is_large:
            blob = f"{valkey.PREFIX}blob:{name}:{event.request_id}:{event.seq}"
            large, blobs = lay_down(blob, event)
            yield _PACK.encode(Entry(large=large)), blobs
        else:
            small.append(msgspec.Raw(raw))
            size += len(raw)
    if small:
        yield _PACK.encode({"events": small}), {}


def arrivals(raw: bytes) -> list[Event] | list[Large]:
    """Return the events of a stream entry, or the large one that lies elsewhere."""
    entry = _ENTRY.decode(raw)
    return [entry.large] if entry.large is not None else entry.events


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
