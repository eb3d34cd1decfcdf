"""The scripts explain themselves, and say what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "script").iterdir() if path.is_file())


def run(*words: str | Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )


def test_the_promised_scripts_are_there() -> None:
    names = {path.name for path in SCRIPTS}
    assert names >= {"setup", "run", "test", "lint", "bench", "contract", "lock"}


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_script_explains_itself_and_does_nothing_more(script: Path) -> None:
    told = run(script, "--help")
    assert told.returncode == 0
    assert told.stderr == ""
    assert told.stdout.startswith(f"{script.parent.name}/{script.name}")
    assert len(told.stdout.splitlines()) >= 3


def test_an_unknown_option_of_setup_is_refused() -> None:
    refused = run(ROOT / "script" / "setup", "--bogus")
    assert refused.returncode == 2
    assert refused.stderr == "script/setup: unknown option --bogus (see --help)\n"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without .venv, and a PATH with the plainest tools and no Python."""
    (tmp_path / "script").mkdir()
    shutil.copy(ROOT / "script" / "setup", tmp_path / "script")
    for name in ("requirements.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "cat", "cut", "dirname", "env", "flock", "grep", "rm", "sed", "sha256sum"):
        found = shutil.which(tool)
        assert found
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def setup(bare: Path) -> "subprocess.CompletedProcess[str]":
    return run(bare / "script" / "setup", PATH=str(bare / "bin"), PYTHON="")


def fake_python(bare: Path, script: str) -> None:
    python = bare / "bin" / "python3"
    python.write_text(f"#!/usr/bin/env bash\n{script}\n")
    python.chmod(0o755)


def test_a_missing_python_is_named(bare: Path) -> None:
    told = setup(bare)
    assert told.returncode == 1
    assert told.stderr == (
        "script/setup: no Python 3.11 or newer found: "
        "install python3 and python3-venv, or set PYTHON\n"
    )


def test_an_old_python_is_not_taken(bare: Path) -> None:
    fake_python(bare, 'case "$2" in *version_info*) exit 1;; esac')
    assert "no Python 3.11 or newer found" in setup(bare).stderr


def test_a_missing_venv_module_is_named(bare: Path) -> None:
    fake_python(bare, 'case "$2" in *ensurepip*) exit 1;; esac')
    told = setup(bare)
    assert told.returncode == 1
    assert told.stderr == (
        "script/setup: python3 has no venv module: install the package python3-venv\n"
    )
    assert not (bare / ".venv").exists()
