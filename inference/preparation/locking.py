"""One preparation of the same files at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from inference.preparation.progress import Progress, Report, Step


@contextlib.contextmanager
def hold(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for whoever has it.

    The lock ends with the process that holds it, so a killed pull leaves none behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Progress(Step.WAIT))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
