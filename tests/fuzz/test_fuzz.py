"""Schemathesis with the document that is served, against a web process with the scripted engine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from billing.models import OwnerKind
from completions.owner import own_as
from jobs.job_kind import JobKind
from jobs.runner import RunnerThread
from looms.growth import Nodes
from tests.conftest import new_caller
from tests.fuzz.answers import answer_as_asked
from tests.live import ROOT, Web, eventually, web_process
from tests.scripted import ScriptedEngine

SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
SEED = os.environ.get("FUZZ_SEED", "20261130")
"""The suite tries the same requests each time; `script/fuzz` tries others."""
PLENTY = "100000000"
RAISED = (
    "RATE_LIMIT_PER_MINUTE",
    "BAD_KEY_LIMIT_PER_MINUTE",
    "MAX_LIVE_JOBS_PER_KEY",
    "MAX_LIVE_JOBS_PER_USER",
    "MAX_LIVE_JOBS",
    "MAX_KEPT_JOBS_PER_USER",
    "MAX_KEPT_JOBS",
    "HARVESTS_PER_MONTH",
    "MAX_SMALL_HARVESTS_PER_USER",
    "MAX_LARGE_HARVESTS_PER_USER",
    "MAX_LARGE_HARVESTS",
    "MAX_LONGPOLLS_PER_KEY",
    "MAX_LONGPOLLS",
)
MANY = 40
"""Objects of each kind that are there at the beginning."""


@pytest.fixture(scope="module")
def roomy(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """A web process that never tells a caller to slow down."""
    raised = dict.fromkeys(RAISED, PLENTY)
    with web_process(logs / "fuzzed-web.log", **raised) as running:
        yield running


@pytest.fixture
def runner(database: None, tiny_catalogue: Path) -> Iterator[RunnerThread]:
    """A runner of Jobs and Nodes in this process; harvests wait, for lack of a worker."""
    owner = own_as(OwnerKind.RUNNER)
    thread = RunnerThread((Nodes(), JobKind()))
    thread.start()
    yield thread
    thread.stop(0)
    owner.close()


def objects_of(client: httpx.Client) -> dict[str, list[dict[str, str]]]:
    """Make Looms, Jobs and harvests; returns the parameters of paths to them."""
    looms = [client.post("/v1/looms", json={"prompt": "Once upon"}).json() for _ in range(MANY)]
    job = {"model": "tiny", "prompt": [5], "max_tokens": 2}
    jobs = [client.post("/v1/completion-jobs", json=job).json()["id"] for _ in range(MANY)]
    harvest = {"model": "tiny", "prompts": ["a"], "layers": [0]}
    harvests = [client.post("/v1/harvest", json=harvest).json()["job_id"] for _ in range(MANY)]
    return {
        "/v1/looms/": [
            {"loom_id": each["id"], "node_id": each["nodes"][0]["id"]} for each in looms
        ],
        "/v1/completion-jobs/": [{"job_id": each} for each in jobs],
        "/v1/harvest/": [{"job_id": each} for each in harvests],
    }


def run_schemathesis(
    web: Web, key: str, folder: Path, objects: dict[str, list[dict[str, str]]], *words: str
) -> None:
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
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks",
            "FUZZ_OBJECTS": json.dumps(objects),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, "Schemathesis found the above"


@pytest.mark.row("C-643")
@pytest.mark.timeout(SECONDS + 240)
def test_schemathesis_finds_nothing(
    roomy: Web, scripted: ScriptedEngine, runner: RunnerThread, tmp_path: Path
) -> None:
    scripted.policy = answer_as_asked
    caller = new_caller(roomy, tokens=10**12)
    objects = objects_of(caller.client)
    caller.client.close()
    try:
        everything = ("--max-time", str(SECONDS * 2 // 3))
        run_schemathesis(roomy, caller.secret, tmp_path, objects, *everything)
        completions = ("--include-operation-id", "completions.createCompletion")
        seconds = ("--phases", "fuzzing", "--max-time", str(SECONDS // 3))
        run_schemathesis(roomy, caller.secret, tmp_path, objects, *completions, *seconds)
    finally:
        scripted.policy = None
        print(first_fault(roomy))
    eventually(lambda: caller.open_holds() == 0)
    assert first_fault(roomy) == ""


def first_fault(web: Web) -> str:
    """What a web process logged around its first traceback; empty without one."""
    before, found, after = web.log.read_text().partition("Traceback")
    return before[-1000:] + found + after[:8000] if found else ""
