"""Schemathesis with the document that is served, against a web process with the scripted engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import new_caller
from tests.fuzz.answers import answer_as_asked
from tests.live import ROOT, Web, eventually, web_process
from tests.scripted import ScriptedEngine

SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
SEED = os.environ.get("FUZZ_SEED", "20261130")
"""The suite tries the same requests each time; `script/fuzz` tries others."""
PLENTY = "100000000"


@pytest.fixture(scope="module")
def roomy(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """A web process that never tells a caller to slow down."""
    with web_process(
        logs / "fuzzed-web.log", RATE_LIMIT_PER_MINUTE=PLENTY, BAD_KEY_LIMIT_PER_MINUTE=PLENTY
    ) as running:
        yield running


def run_schemathesis(web: Web, key: str, folder: Path, *words: str) -> None:
    """Run its command; what it finds is the error."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            *("--config-file", ROOT / "tests" / "fuzz" / "schemathesis.toml"),
            *("run", f"{web.address}/openapi.json", "--url", web.address),
            *("--header", f"Authorization: Bearer {key}"),
            *("--seed", SEED),
            *words,
        ],
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, "Schemathesis found the above"


@pytest.mark.row("C-643")
@pytest.mark.timeout(SECONDS + 240)
def test_schemathesis_finds_nothing(roomy: Web, scripted: ScriptedEngine, tmp_path: Path) -> None:
    scripted.policy = answer_as_asked
    caller = new_caller(roomy, tokens=10**12)
    caller.client.close()
    try:
        everything = ("--max-time", str(SECONDS // 3))
        run_schemathesis(roomy, caller.secret, tmp_path, *everything)
        completions = ("--include-operation-id", "completions.createCompletion")
        seconds = ("--phases", "fuzzing", "--max-time", str(SECONDS - SECONDS // 3))
        run_schemathesis(roomy, caller.secret, tmp_path, *completions, *seconds)
    finally:
        scripted.policy = None
    eventually(lambda: caller.open_holds() == 0)
    assert "Traceback" not in roomy.log.read_text()
