"""Settings are checked when a process starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from config import environment

ROOT = Path(__file__).resolve().parents[2]


def test_wrong_settings_end_a_process_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_BODY_SIZE", "eight")
    monkeypatch.setenv("LEASE_SECONDS", "-1")
    command = subprocess.run(
        [sys.executable, ROOT / "manage.py", "serve"], capture_output=True, text=True, timeout=60
    )
    assert command.returncode == 2
    lines = command.stderr.splitlines()
    assert len(lines) == 1, command.stderr
    assert "MAX_BODY_SIZE: " in lines[0]
    assert "LEASE_SECONDS: " in lines[0]


@pytest.mark.parametrize("name", ["DATABASE_URL", "VALKEY_URL", "SECRET_KEY"])
def test_a_process_without_its_servers_says_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "")
    with pytest.raises(environment.EnvironmentInvalid, match=f"{name} not set: start an instance"):
        environment.load().require_servers()


def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "short")
    with pytest.raises(environment.EnvironmentInvalid, match="shorter than 32 characters"):
        environment.load().require_servers()


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", "a.example.org,b.example.org")
    monkeypatch.setenv("TRUSTED_PROXIES", "")
    loaded = environment.load()
    assert loaded.allowed_hosts == ("a.example.org", "b.example.org")
    assert loaded.trusted_proxies == ()


@pytest.mark.parametrize(
    ("catalogue", "cause"),
    [
        ("README.md", "is not TOML"),
        ("deploy/none.toml", "none.toml"),
    ],
)
def test_a_catalogue_that_cannot_be_served_ends_the_web_process(
    catalogue: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOGUE_PATH", str(ROOT / catalogue))
    command = subprocess.run(
        [sys.executable, ROOT / "manage.py", "serve", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert command.returncode == 1
    assert cause in command.stderr
    assert len(command.stderr.splitlines()) == 1, command.stderr


@pytest.mark.parametrize("given", ["top-secret", '{"m": 7}', '["top-secret"]', '{"m": "a\\nb"}'])
def test_wrong_keys_of_servers_are_refused_without_a_word_of_them(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_KEYS", given)
    with pytest.raises(environment.EnvironmentInvalid, match=r"VLLM_KEYS: .*JSON object") as wrong:
        environment.load()
    assert "top-secret" not in str(wrong.value)


def test_keys_of_servers_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEYS", '{"far": "top-secret"}')
    loaded = environment.load()
    assert loaded.vllm_keys["far"].get_secret_value() == "top-secret"
    assert "top-secret" not in f"{loaded!r} {loaded} {loaded.model_dump_json()}"


def test_a_file_without_certificates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CA_FILE", str(ROOT / "README.md"))
    with pytest.raises(environment.EnvironmentInvalid, match=r"README.md holds no certificates"):
        environment.load()
