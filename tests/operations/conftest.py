"""Folders that another user may pass through, and a look at the processes that run."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to the database's user."""
    folder = Path(tempfile.mkdtemp(prefix="basalt-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    """Wait until a condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.05)


def processes_of(folder: Path | str) -> list[list[str]]:
    """The command lines of living processes that name a folder, or have it as VAR_DIR.

    The test run's own process does not count.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            words = process.cmdline()
            setting = process.environ().get("VAR_DIR", "")
        except psutil.Error:
            continue
        if process.status() != psutil.STATUS_ZOMBIE and any(
            str(folder) in word for word in [*words, setting]
        ):
            found.append(words)
    return found
