"""Schemathesis with the document that is served, against a web process with the scripted engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import new_caller
from tests.fuzz.answers import answer_as_asked
from tests.live import ROOT, Web, web_process
from tests.scripted import ScriptedEngine

SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
PLENTY = "100000000"


@pytest.fixture(scope="module")
def roomy(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """A web process that never tells a caller to slow down."""
    with web_process(
        logs / "fuzzed-web.log", RATE_LIMIT_PER_MINUTE=PLENTY, BAD_KEY_LIMIT_PER_MINUTE=PLENTY
    ) as running:
        yield running


@pytest.mark.row("C-643", "C-647")
@pytest.mark.timeout(SECONDS + 240)
def test_schemathesis_finds_nothing(roomy: Web, scripted: ScriptedEngine, tmp_path: Path) -> None:
    scripted.policy = answer_as_asked
    caller = new_caller(roomy, tokens=10**12)
    caller.client.close()
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"),
                *("--config-file", ROOT / "tests" / "fuzz" / "schemathesis.toml"),
                *("run", f"{roomy.address}/openapi.json", "--url", roomy.address),
                *("--header", f"Authorization: Bearer {caller.secret}"),
                *("--max-time", str(SECONDS)),
            ],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        scripted.policy = None
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4000:]
    assert caller.open_holds() == 0
