"""What is left when a process is killed in the middle of streams: nothing but what was sent.

One instance runs for all of these tests, whole, with its supervisor: the killed part comes back by
itself. Its model is tiny, with a long context, so that streams last.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
import redis

from tests.operations.conftest import wait_for
from tests.operations.test_up import GIVEN, ROOT, Up

CATALOGUE = """
[[models]]
id = "tiny"
served_name = "basalt/tiny-llama-long"
default = true
source = {{ kind = "folder", path = "{folder}" }}
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0
idle_seconds = 600
start_seconds = 5
max_model_len = 8192
n_layers = 4
hidden_size = 64
vocab_size = 384
"""
SECONDS = 30
"""The time in which everything that a dead process owned must be free again."""
STREAMS = 6
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def instance() -> Iterator[Up]:
    from tests.engine.tiny_models import llama_config, make_llama

    folder = Path(tempfile.mkdtemp(prefix="basalt-crash-"))
    folder.chmod(0o755)
    make_llama(
        folder / "source", config=llama_config(max_position_embeddings=8192, eos_token_id=None)
    )
    catalogue = folder / "catalogue.toml"
    catalogue.write_text(CATALOGUE.format(folder=folder / "source"))
    up = Up(
        folder / "var",
        CATALOGUE_PATH=str(catalogue),
        MODELS_DIR=str(folder / "models"),
        BREAKER_FAILURES="1000",
    )
    try:
        yield up.wait_until_ready()
    finally:
        up.end()
        up.close()
        shutil.rmtree(folder, ignore_errors=True)


def settings_of(up: Up) -> dict[str, str]:
    """The instance's addresses, as `up` wrote them."""
    lines = (up.var / "up.env").read_text().splitlines()
    return {name: value.strip("'\"") for name, _, value in (line.partition("=") for line in lines)}


def command(up: Up, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the instance."""
    environment = {name: value for name, value in os.environ.items() if name not in GIVEN}
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *words],
        env={**environment, "VAR_DIR": str(up.var)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def ask(up: Up, query: str) -> int:
    with psycopg.connect(settings_of(up)["DATABASE_URL"]) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


@dataclass
class Sent:
    """What one stream received."""

    tokens: int = 0
    error: str | None = None
    """The code of its error event, or of its error answer."""
    broke: bool = False
    finished: bool = False


class Streams:
    """Streams that run beside a kill."""

    def __init__(self, up: Up, key: str, tokens: int = 8000) -> None:
        self.sent = [Sent() for _ in range(STREAMS)]
        self._started = threading.Semaphore(0)
        self._up, self._key, self._tokens = up, key, tokens
        self._threads = [threading.Thread(target=self._run, args=(s,)) for s in self.sent]
        for thread in self._threads:
            thread.start()

    def wait_started(self) -> None:
        for _ in self.sent:
            assert self._started.acquire(timeout=60)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a stream neither ended nor failed"

    def _run(self, sent: Sent) -> None:
        body = {"prompt": PROMPT, "max_tokens": self._tokens, "temperature": 0, "stream": True}
        try:
            with httpx.stream(
                "POST",
                f"{self._up.address}/v1/completions",
                json=body,
                headers={"Authorization": f"Bearer {self._key}"},
                timeout=60,
            ) as answer:
                if answer.status_code != 200:
                    sent.error = json.loads(answer.read())["error"]["code"]
                for line in answer.iter_lines():
                    self._line(line, sent)
        except httpx.HTTPError:
            sent.broke = True

    def _line(self, line: str, sent: Sent) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            sent.error = event["error"]["code"]
            return
        sent.tokens += 1
        sent.finished = event["choices"][0]["finish_reason"] is not None
        if sent.tokens == 3:
            self._started.release()


def key_with(up: Up, tokens: int) -> tuple[str, str]:
    """A new User's key, and the User's email."""
    email = f"u{os.urandom(6).hex()}@example.org"
    made = command(up, "create_key", email, "--tokens", str(tokens), "--allowance", "0")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip(), email


def left(up: Up, email: str) -> int:
    return ask(
        up,
        "SELECT budget_left FROM billing_account JOIN accounts_user ON accounts_user.id = user_id "
        f"WHERE email = '{email}'",
    )


def places(up: Up) -> int:
    """Places that are taken, in every set."""
    valkey = redis.Redis.from_url(settings_of(up)["VALKEY_URL"])
    seconds, micros = valkey.time()
    now = seconds * 1000 + micros // 1000
    return sum(
        valkey.zcount(name, now, "+inf")
        for pattern in ("basalt:places:running:*", "basalt:places:model:*")
        for name in valkey.scan_iter(pattern)
    )


def quiet(up: Up) -> bool:
    try:
        return ask(up, "SELECT count(*) FROM billing_hold WHERE state = 'open'") == 0 and (
            places(up) == 0
        )
    except (psycopg.OperationalError, redis.RedisError):
        return False


def kill(up: Up, *words: str) -> psutil.Process:
    process = up.child(*words)
    process.send_signal(signal.SIGKILL)
    return process


def afterwards(up: Up) -> None:
    """Nothing is held, no place is taken, the ledger adds up, and the next request is served."""
    wait_for(lambda: quiet(up), f"no open Hold and no place\n{up.log}", SECONDS)
    checked = command(up, "check_ledger")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    key, _ = key_with(up, 1000)
    answer = httpx.post(
        f"{up.address}/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 2},
        headers={"Authorization": f"Bearer {key}"},
        timeout=90,
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.row("C-103", "C-112", "C-337")
def test_a_killed_engine_fails_its_streams_and_what_they_sent_is_paid(instance: Up) -> None:
    key, email = key_with(instance, 1_000_000)
    streams = Streams(instance, key)
    streams.wait_started()
    dead = kill(instance, "worker", "engine.tiny")
    streams.join()
    assert [sent.error for sent in streams.sent] == ["vllm_engine_dead"] * STREAMS, streams.sent
    afterwards(instance)
    assert instance.replaced(dead, "worker", "engine.tiny")
    paid = sum(len(PROMPT) + sent.tokens for sent in streams.sent)
    assert left(instance, email) == 1_000_000 - paid


def test_a_killed_runner_disturbs_no_stream(instance: Up) -> None:
    key, email = key_with(instance, 1_000_000)
    streams = Streams(instance, key, tokens=600)
    streams.wait_started()
    dead = kill(instance, "worker", "runner")
    streams.join()
    assert all(sent.finished and sent.error is None for sent in streams.sent)
    afterwards(instance)
    wait_for(lambda: instance.replaced(dead, "worker", "runner"), "a new runner", SECONDS)
    paid = sum(len(PROMPT) + sent.tokens for sent in streams.sent)
    assert left(instance, email) == 1_000_000 - paid


@pytest.mark.row("C-345")
def test_a_killed_web_process_costs_its_streams_nothing(instance: Up) -> None:
    key, email = key_with(instance, 1_000_000)
    streams = Streams(instance, key)
    streams.wait_started()
    dead = kill(instance, "manage.py serve")
    streams.join()
    assert all(sent.broke for sent in streams.sent)
    afterwards(instance)
    assert instance.replaced(dead, "manage.py serve")
    assert left(instance, email) == 1_000_000


def test_a_killed_valkey_fails_its_streams_and_what_they_sent_is_paid(instance: Up) -> None:
    key, email = key_with(instance, 1_000_000)
    streams = Streams(instance, key)
    streams.wait_started()
    dead = kill(instance, "valkey-server")
    streams.join()
    assert [sent.error for sent in streams.sent] == ["upstream_unreachable"] * STREAMS, streams.sent
    afterwards(instance)
    assert instance.replaced(dead, "valkey-server")
    paid = sum(len(PROMPT) + sent.tokens for sent in streams.sent)
    assert left(instance, email) == 1_000_000 - paid


class Jobs:
    """Jobs that run beside a kill."""

    COUNT = 3
    TOKENS = 1500

    def __init__(self, up: Up, key: str) -> None:
        self._up = up
        self._client = httpx.Client(
            base_url=up.address, headers={"Authorization": f"Bearer {key}"}, timeout=60
        )
        body = {"prompt": PROMPT, "max_tokens": self.TOKENS, "temperature": 0}
        answers = [self._client.post("/v1/completion-jobs", json=body) for _ in range(self.COUNT)]
        self.ids = [answer.json()["id"] for answer in answers]

    def count(self, condition: str) -> int:
        listed = ", ".join(f"'{each}'" for each in self.ids)
        return ask(
            self._up, f"SELECT count(*) FROM jobs_job WHERE id IN ({listed}) AND {condition}"
        )

    def wait(self, condition: str, seconds: float) -> None:
        wait_for(
            lambda: self.count(condition) == self.COUNT, f"{condition}\n{self._up.log}", seconds
        )

    def check_paid_once(self, email: str) -> None:
        """Each has one whole answer, and the User paid for each of them once."""
        paid = 0
        for each in self.ids:
            answer = self._client.get(f"/v1/completion-jobs/{each}/result")
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            assert usage["completion_tokens"] == self.TOKENS
            paid += usage["total_tokens"]
        assert left(self._up, email) == 1_000_000 - paid


@pytest.mark.row("C-604", "C-606", "C-608", "C-346")
@pytest.mark.case("J02")
@pytest.mark.parametrize("words", [("worker", "runner"), ("worker", "engine.tiny")])
def test_jobs_survive_a_kill_and_are_paid_once(instance: Up, words: tuple[str, str]) -> None:
    key, email = key_with(instance, 1_000_000)
    jobs = Jobs(instance, key)
    jobs.wait("state = 'running'", 60)
    # Tokens of streams that came later show that the engine has the Jobs.
    streams = Streams(instance, key_with(instance, 1_000_000)[0], tokens=600)
    streams.wait_started()
    dead = kill(instance, *words)
    jobs.wait("losses = 1", 90)
    streams.join()
    jobs.wait("state = 'done'", 240)
    afterwards(instance)
    assert instance.replaced(dead, *words)
    jobs.check_paid_once(email)
