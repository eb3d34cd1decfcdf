"""Inspect: `inspect eval` on the task of `tasks/capitals.py`."""

import json
from pathlib import Path

import pytest

from tests.clients.conftest import run_client
from tests.conftest import DEFAULT_MODEL, Caller
from tests.live import Web


@pytest.fixture
def evaluate(clients: Path, default_web: Web, researcher: Caller, tmp_path: Path):
    """Runs the task through one of Inspect's providers and returns its log."""

    def run(provider: str) -> dict:
        run_client(
            clients / "bin" / "inspect",
            *("eval", "tasks/capitals.py", "--model", f"{provider}/basalt/{DEFAULT_MODEL}"),
            *("--temperature", "0", "--max-tokens", "12", "--max-retries", "1"),
            *("--log-format", "json", "--log-dir", tmp_path, "--display", "none"),
            folder=tmp_path,
            BASALT_API_KEY=researcher.secret,
            BASALT_BASE_URL=f"{default_web.address}/v1",
        )
        (log,) = tmp_path.glob("*.json")
        return json.loads(log.read_text())

    return run


def test_the_completions_provider_runs_a_task(evaluate) -> None:
    log = evaluate("openai-api-completions")
    assert log["status"] == "success"
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0
    outputs = [sample["output"] for sample in log["samples"]]
    texts = [output["choices"][0]["message"]["content"] for output in outputs]
    assert [text.split(".")[0] for text in texts] == [" Paris", " Rome", " Tokyo"]
    assert [output["usage"]["output_tokens"] for output in outputs] == [12, 12, 12]


@pytest.mark.row("C-046")
def test_the_chat_provider_is_told_what_to_send_instead(evaluate) -> None:
    log = evaluate("openai-api")
    assert log["status"] == "error"
    assert "send POST /v1/completions with a prompt" in log["error"]["message"]
