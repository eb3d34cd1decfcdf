"""The clients' own environments, and a researcher with a key of the served default model."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Caller, new_caller
from tests.live import ROOT, Web

CLIENTS = ROOT / ".venv-clients"
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
"""What a client's process takes over: nothing of Django's or of this run's."""


def run_client(*words: str | Path, folder: Path, **variables: str) -> str:
    """Run a program with `folder` as its own place to write, and return what it printed."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(
        words,
        cwd=HERE,
        env={**kept, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stderr}"
    (folder / "stderr").write_text(done.stderr)
    return done.stdout


def told(printed: str) -> dict[str, dict]:
    """What a program of `programs/` prints: its cases by name, each with a result or an error."""
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="session")
def clients() -> Path:
    """The environment that `script/setup --clients` makes."""
    assert (CLIENTS / "installed").exists(), "run script/setup --clients first"
    return CLIENTS


@pytest.fixture(scope="session")
def researcher(default_web: Web) -> Iterator[Caller]:
    """A User of the default model with a million tokens."""
    caller = new_caller(default_web, tokens=1_000_000)
    with caller.client:
        yield caller


@pytest.fixture(scope="session")
def spender(default_web: Web) -> Iterator[Caller]:
    """A User who has spent all."""
    caller = new_caller(default_web, tokens=0)
    with caller.client:
        yield caller
