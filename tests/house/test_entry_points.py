"""The house: `platform/` hides nothing, and each process imports what it needs and no more."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.live import Web, end, eventually, start_process

ROOT = Path(__file__).resolve().parents[2]
PROBE = "import platform, uuid, torch; print(platform.machine(), uuid.uuid4(), torch.ones(1))"


def test_platform_is_the_standard_librarys_in_pytest() -> None:
    import platform
    import uuid

    import torch

    assert platform.python_version() == sys.version.split()[0]
    assert "lib/python" in platform.__file__
    assert uuid.uuid4()
    assert torch.ones(1).sum() == 1


def test_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert [path.name for path in (ROOT / "platform").glob("*.py")] == []


def test_the_standard_library_is_whole_under_manage_py() -> None:
    shell = subprocess.run(
        [sys.executable, ROOT / "manage.py", "shell", "-v", "0", "-c", PROBE],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shell.returncode == 0, shell.stderr
    assert "tensor" in shell.stdout


@pytest.mark.parametrize("queue", ["engine.tiny-other", "runner"])
def test_a_worker_starts_with_the_standard_library_whole(
    queue: str, database: None, tiny_catalogue: Path, logs: Path
) -> None:
    """Celery's own start imports `platform`; the engine imports torch, which imports it too."""
    log = logs / f"{queue}.log"
    worker = start_process("worker", queue, log=log)
    try:
        eventually(lambda: "consuming" in log.read_text() or worker.poll() is not None, 60)
        assert worker.poll() is None, log.read_text()
    finally:
        end(worker)
    assert worker.returncode == 0, log.read_text()


def test_the_web_process_answers_without_torch(web: Web, caller, scripted) -> None:
    scripted.answers = ("a",)
    answer = caller.client.post(
        "/v1/completions", json={"prompt": "Hello", "max_tokens": 1, "logprobs": 1}
    )
    assert answer.status_code == 200, answer.text
    maps = {row.path for row in psutil.Process(web.process.pid).memory_maps()}
    assert not [path for path in maps if "libtorch" in path or "site-packages/torch/" in path]
    assert [path for path in maps if "tokenizers" in path]
