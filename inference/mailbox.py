"""The events of one request that wait for a slow reader: a few in memory, the rest in a file.

The event stream of a process is shared by its requests, so a reader that stalls must not hold it
up, and what the engine says meanwhile must not fill the memory.
"""

import asyncio
import tempfile
from collections import deque
from typing import BinaryIO

import msgspec

from inference.engine.messages import Delta, Event, Finished
from inference.large import Large, array_bytes

_PACK = msgspec.msgpack.Encoder()
Arrival = Event | Large
"""An event, or where a large one stands among the others."""
_ARRIVAL: msgspec.msgpack.Decoder[Arrival] = msgspec.msgpack.Decoder(Arrival)
_LENGTH_BYTES = 8


class Mailbox:
    """Events in order; at most `memory_bytes` of them, and always one, are kept in memory."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._events: deque[Arrival] = deque()
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._in_file = 0
        self._read_at = 0
        self._some = asyncio.Event()

    def put(self, event: Arrival) -> None:
        """Add an event; never waits."""
        size = size_of(event)
        if self._in_file or (self._events and self._bytes + size > self._limit):
            self._spill(event)
        else:
            self._events.append(event)
            self._bytes += size
        self._some.set()

    async def get(self) -> Arrival:
        """Take the next event, waiting for one."""
        while not self._events and not self._in_file:
            self._some.clear()
            await self._some.wait()
        if not self._events:
            return self._unspill()
        event = self._events.popleft()
        self._bytes -= size_of(event)
        return event

    def close(self) -> None:
        """Forget everything."""
        self._events.clear()
        self._in_file = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self, event: Arrival) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="basalt-events-")  # noqa: SIM115
            self._read_at = 0
        data = _PACK.encode(event)
        self._file.seek(0, 2)
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        self._in_file += 1

    def _unspill(self) -> Arrival:
        assert self._file is not None
        self._file.seek(self._read_at)
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        data = self._file.read(length)
        self._read_at += _LENGTH_BYTES + length
        self._in_file -= 1
        if not self._in_file:
            self._file.close()
            self._file = None
        return _ARRIVAL.decode(data)


def size_of(event: Arrival) -> int:
    """About how many bytes of memory an event takes; a large one lies elsewhere."""
    size = 400
    if isinstance(event, Delta):
        size += len(event.text) + 8 * len(event.token_ids) + array_bytes(event)
    elif isinstance(event, Finished):
        size += array_bytes(event)
    return size
