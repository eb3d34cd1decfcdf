"""Fixtures for load: a worker that ticks, web processes with raised limits, and their memory."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest

from billing.audit import Discrepancy, check_ledger
from billing.owners import reap
from tests.conftest import DEFAULT_MODEL, Caller, new_caller
from tests.live import ROOT, Web, end, process_environment, web_process

RAISED = {
    "RATE_LIMIT_PER_MINUTE": "1000000",
    # Look-ups under way count here, and all clients come from one address (C-018).
    "BAD_KEY_LIMIT_PER_MINUTE": "1000000",
    "MAX_INFLIGHT_PER_KEY": "1000",
    "MAX_INFLIGHT_PER_MODEL": "2000",
    "LOG_LEVEL": "WARNING",
}
MIB = 2**20
LOADED = "loaded-model"


@cache
def real_model() -> dict[str, str]:
    """The settings under which processes serve the default model's shape under an id of its own.

    A worker of the default model that another test started would take half of the requests.
    """
    folder = Path(tempfile.mkdtemp(prefix="basalt-load-"))
    ours = folder / "models" / LOADED
    ours.mkdir(parents=True)
    for path in (Path(os.environ["MODELS_DIR"]) / DEFAULT_MODEL).iterdir():
        (ours / path.name).symlink_to(path.resolve())
    identity = json.loads((ours / "identity.json").read_text()) | {"model": LOADED}
    (ours / "identity.json").unlink()
    (ours / "identity.json").write_text(json.dumps(identity))
    catalogue = (ROOT / "deploy" / "catalogue.toml").read_text()
    own = catalogue.replace(f'id = "{DEFAULT_MODEL}"', f'id = "{LOADED}"', 1)
    (folder / "catalogue.toml").write_text(own)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        "CATALOGUE_PATH": str(folder / "catalogue.toml"),
        "MODELS_DIR": str(folder / "models"),
    }


@contextmanager
def ticking_worker(tick_s: float, *, waits: bool = False) -> Iterator[Callable[[], None]]:
    """A worker process of the loaded model that says a token every `tick_s` seconds.

    With `waits` it says only first tokens until the function that is yielded is called.
    """
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.load.ticking", LOADED, str(tick_s)],
        cwd=ROOT,
        env=process_environment(**real_model()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None

    def go_on() -> None:
        assert worker.stdin is not None
        worker.stdin.write(b"go on\n")
        worker.stdin.flush()

    try:
        while (line := worker.stdout.readline()) != b"ready\n":
            assert line, "the worker ended"
        if not waits:
            go_on()
        yield go_on
    finally:
        end(worker)


@pytest.fixture
def load_web(database: None, logs: Path, request: pytest.FixtureRequest) -> Iterator[Web]:
    """A fresh web process of the loaded model with raised limits."""
    log = logs / f"{request.node.name.replace('/', '-')}.log"
    with web_process(log, **real_model(), **RAISED) as web:
        yield web


@pytest.fixture(scope="session")
def quiet_web(database: None, logs: Path) -> Iterator[Web]:
    """Another one with nothing to do but a stream, which tells what the machine alone holds up."""
    with web_process(logs / "quiet.log", **real_model(), **RAISED) as web:
        yield web


@pytest.fixture
def new_user() -> Iterator[Callable[..., Caller]]:
    callers: list[Caller] = []

    def make(web: Web, tokens: int = 10**9) -> Caller:
        callers.append(new_caller(web, tokens))
        return callers[-1]

    yield make
    for caller in callers:
        caller.client.close()


def discrepancies() -> list[Discrepancy]:
    """What does not add up in the ledger, besides Holds that another test's process lost."""
    reap()
    return check_ledger()


class Peak:
    """The most resident memory of a process, looked at every few milliseconds."""

    def __init__(self, web: Web) -> None:
        self.bytes = 0
        self._process = psutil.Process(web.process.pid)
        self._over = threading.Event()

    def __enter__(self) -> "Peak":
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, self._process.memory_info().rss)

    @property
    def mib(self) -> float:
        return self.bytes / MIB
