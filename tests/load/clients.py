"""Light clients: raw sockets in one event loop, so that a thousand of them cost little."""

import asyncio
import json
import time
from bisect import bisect
from dataclasses import dataclass, field
from itertools import pairwise

from tests.live import Web

STANDS_STILL = 50
"""Tokens that another process sends in the meantime; half a second or a second of them."""


@dataclass
class Answer:
    """What one client got."""

    status: int = 0
    lines: list[str] = field(default_factory=list)
    """Lines of events, without keepalives."""
    times: list[float] = field(default_factory=list)
    """When each line came; those that came together have the same time."""

    @property
    def text(self) -> str:
        """The text of a stream's choice 0."""
        values = [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]
        return "".join(c["text"] for value in values for c in value["choices"])

    @property
    def is_whole(self) -> bool:
        return bool(self.lines) and self.lines[-1] == "data: [DONE]"

    def largest_gap(self) -> float:
        """The most seconds between two lines."""
        return max((later - sooner for sooner, later in pairwise(self.times)), default=0.0)

    def most_missed(self, other: "Answer") -> int:
        """The most times that another stream went on while this one stood still.

        One engine gives both a token each tick, so that no clock and no slow machine matters.
        """
        others = sorted(set(other.times))
        own = [*sorted(set(self.times)), *others[-1:]]
        return max(
            bisect(others, later) - bisect(others, sooner) for sooner, later in pairwise(own)
        )


def request_bytes(web: Web, key: str, body: object, headers: str = "") -> bytes:
    """A request of HTTP/1.0, whose answer is not cut into chunks and ends with the connection."""
    content = json.dumps(body).encode()
    host = web.address.removeprefix("http://")
    return (
        f"POST /v1/completions HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"{headers}Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


async def connect(web: Web) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = web.address.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=2**24)


async def read_head(reader: asyncio.StreamReader) -> int:
    """Read the head of an answer; returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])


async def stream(
    web: Web,
    key: str,
    body: object,
    first: asyncio.Event | None = None,
    into: Answer | None = None,
) -> Answer:
    """Run a stream to its end; `first` is set by its first line."""
    reader, writer = await connect(web)
    answer = into or Answer()
    try:
        writer.write(request_bytes(web, key, body))
        answer.status = await read_head(reader)
        rest = b""
        while part := await reader.read(2**16):
            now = time.perf_counter()
            *lines, rest = (rest + part).split(b"\n")
            texts = [line.decode() for line in lines if line and not line.startswith(b":")]
            answer.lines += texts
            answer.times += [now] * len(texts)
            if texts and first is not None:
                first.set()
        return answer
    finally:
        writer.close()
        if first is not None:
            first.set()
