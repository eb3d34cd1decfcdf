"""How far a preparation is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Step(StrEnum):
    """The parts of a preparation, in their order."""

    WAIT = "waiting for another pull of the same files"
    REPAIR = "preparing again"
    FETCH = "fetching"
    CONVERT = "converting"
    COMPILE = "compiling the engine's kernels"
    CHECK = "computing digests"


@dataclass(frozen=True)
class Progress:
    """One report: bytes while fetching, weights while converting, 0 where nothing is counted."""

    step: Step
    done: int = 0
    total: int | None = None
    note: str = ""


Report = Callable[[Progress], None]


@contextlib.contextmanager
def watching(folder: Path, report: Report, interval: float = 1.0) -> Iterator[None]:
    """Report the bytes that have arrived under `folder`, every `interval` seconds."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(interval):
            report(Progress(Step.FETCH, _bytes_under(folder)))

    thread = threading.Thread(target=watch, name="fetch-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bytes_under(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                size += path.stat().st_size
    return size
