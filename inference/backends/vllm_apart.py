"""Reads a large answer of a vLLM server in a process of its own.

A report of a whole vocabulary is gigabytes of JSON, and reading it holds the interpreter's lock
for seconds at a time. So it is read beside the web process, whose streams go on: `read_apart`
starts this module with two files, the answer's and an empty one. Events come back on its output,
each as a length and a `Large`; their bytes are in the second file, of which the web process maps
what it needs.
"""

import asyncio
import contextlib
import mmap
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO

import msgspec

from inference.backends.vllm_failures import Broken, cut
from inference.backends.vllm_reading import Facts, Reading
from inference.engine.messages import EngineRequest, Event
from inference.large import Large, lay_down, read_event

ROOT = Path(__file__).resolve().parents[2]
LENGTH_BYTES = 4


class Job(msgspec.Struct, frozen=True):
    """What the process is told."""

    asked: EngineRequest
    facts: Facts
    seq: int
    answer: int
    """File descriptor of the answer."""
    events: int
    """File descriptor for the bytes of the events."""


class Part(msgspec.Struct, frozen=True):
    """One event: where its bytes begin in the file, and what they are."""

    offset: int
    event: Large


_PACK = msgspec.msgpack.Encoder()
_JOB = msgspec.msgpack.Decoder(Job)
_PART = msgspec.msgpack.Decoder(Part)


async def read_apart(reading: Reading, answer: BinaryIO) -> AsyncGenerator[Event, None]:
    """Yield the events of a whole answer; leaving early ends the process.

    Raises:
        Broken: when the process died.
    """
    with tempfile.TemporaryFile(prefix="basalt-read-") as file:
        descriptors = (answer.fileno(), file.fileno())
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            cwd=ROOT,
            pass_fds=descriptors,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            job = Job(reading.asked, reading.facts, reading.seq, *descriptors)
            async for event in _parts(child, _PACK.encode(job), file):
                yield event
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _parts(
    child: asyncio.subprocess.Process, job: bytes, file: BinaryIO
) -> AsyncGenerator[Event, None]:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(len(job).to_bytes(LENGTH_BYTES, "big") + job)
        await child.stdin.drain()
        ends = False
        while not ends:
            length = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
            part = _PART.decode(await child.stdout.readexactly(length))
            ends = part.event.ends
            yield await asyncio.to_thread(read_event, part.event, file, part.offset)
    except (asyncio.IncompleteReadError, OSError):
        raise cut() from None


def main() -> None:
    """Read one answer; ends early when who asked is gone."""
    os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES), "big")
    job = _JOB.decode(sys.stdin.buffer.read(length))
    threading.Thread(target=_watch, daemon=True).start()
    with open(job.events, "wb", closefd=False) as file:
        reading = Reading(job.asked, job.facts, job.seq)
        try:
            for event in reading.pieces(mmap.mmap(job.answer, 0, access=mmap.ACCESS_READ)):
                _send(event, file)
        except Broken as broken:
            _send(broken.event(job.asked.request_id, reading.next_seq()), file)


def _watch() -> None:
    """End with the web process, whose end closes the input."""
    sys.stdin.buffer.read()
    os._exit(1)


def _send(event: Event, file: BinaryIO) -> None:
    offset = file.tell()
    large, blobs = lay_down("", event)
    for blob in blobs.values():
        file.write(blob)
    file.flush()
    told = _PACK.encode(Part(offset, msgspec.structs.replace(large, blobs=())))
    sys.stdout.buffer.write(len(told).to_bytes(LENGTH_BYTES, "big") + told)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
