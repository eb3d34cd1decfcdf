"""`manage.py up`, whole: from an empty folder to an answer, and to nothing left behind."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from config import environment
from operations.embedded import EmbeddedPostgres, EmbeddedValkey
from operations.management.commands import clock
from tests.operations.conftest import processes_of, wait_for

ROOT = Path(__file__).resolve().parents[2]
GIVEN = ("DATABASE_URL", "VALKEY_URL", "SECRET_KEY", "VAR_DIR", "API_URL")
START_SECONDS = 120


class Up:
    """One running `manage.py up`."""

    def __init__(self, var: Path, *options: str, **settings: str) -> None:
        self.var = var
        kept = {name: value for name, value in os.environ.items() if name not in GIVEN}
        self._output = (var.parent / f"{var.name}.out").open("w+")
        self._log = (var.parent / f"{var.name}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "manage.py", "up", "--port", "0", "--var", var, *options],
            env={**kept, "DRAIN_SECONDS": "2", **settings},
            stdout=self._output,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return Path(self._output.name).read_text()

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def address(self) -> str:
        return re.findall(r"^Ready: \S+ at (\S+)$", self.output, re.M)[0]

    def wait_until_ready(self) -> "Up":
        def ready_or_dead() -> bool:
            assert self.process.poll() is None, self.log
            return "\ncurl " in f"\n{self.output}"

        wait_for(ready_or_dead, f"ready\n{self.log}", START_SECONDS)
        return self

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def setting(self, name: str) -> str:
        """A setting that this instance wrote for commands in other shells."""
        return re.findall(rf"^{name}='(.+)'$", (self.var / "up.env").read_text(), re.M)[0]

    def servers_answer(self) -> bool:
        try:
            psycopg.connect(self.setting("DATABASE_URL")).close()
            with redis.Redis.from_url(self.setting("VALKEY_URL")) as client:
                return bool(client.ping())
        except (psycopg.Error, redis.RedisError):
            return False

    def child(self, *words: str) -> psutil.Process:
        """The living child whose command line has all of these words."""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words):
                    return process
        raise AssertionError(f"no child with {words}: {self.log}")

    def replaced(self, before: psutil.Process, *words: str) -> bool:
        try:
            return self.child(*words).pid != before.pid
        except AssertionError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._output.close()
        self._log.close()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="basalt-up-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def first(folder: Path) -> Iterator[Up]:
    """An instance that the tests of this module share."""
    up = Up(folder / "first")
    try:
        yield up.wait_until_ready()
        assert up.end() == 0
    finally:
        up.close()


def failed_start(up: Up) -> str:
    """Wait for a start to fail; returns the line that says why."""
    try:
        assert up.process.wait(START_SECONDS) == 1
        assert not processes_of(up.var)
        lines = [line for line in up.log.splitlines() if "cannot start: " in line]
        assert len(lines) == 1, up.log
        assert up.log.splitlines()[-1] == lines[0]
        assert "Traceback" not in up.log
        assert "Ready" not in up.output
        return lines[0]
    finally:
        up.close()


def test_the_printed_request_is_answered(first: Up) -> None:
    key = re.findall(r"shown only now: (sk-acs-\S+)$", first.output, re.M)
    line = next(line for line in first.output.splitlines() if line.startswith("curl "))
    assert f"Bearer {key[0]}" in line
    answer = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=120)
    completion = json.loads(answer.stdout)
    assert completion["choices"][0]["text"]
    assert completion["usage"]["completion_tokens"] == 16


def test_one_ready_line_is_printed(first: Up) -> None:
    assert first.output.count("Ready: ") == 1
    assert "smollm2-135m-instruct-q4" in first.output


def test_a_command_in_another_shell_reaches_the_instance(first: Up) -> None:
    settings = {name: value for name, value in os.environ.items() if name not in GIVEN}
    made = subprocess.run(
        [sys.executable, ROOT / "manage.py", "create_key", "other@example.org"],
        env={**settings, "VAR_DIR": str(first.var)},
        capture_output=True,
        text=True,
        check=True,
    )
    key = made.stdout.strip()
    assert re.fullmatch(r"sk-acs-\w+", key)
    asked = urllib.request.Request(
        f"{first.address}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200


def test_the_address_is_known_to_every_process(first: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VAR_DIR", str(first.var))
    assert environment.load().api_url == first.address
    assert (first.var / "up.env").stat().st_mode & 0o777 == 0o600
    assert (first.var / "secret_key").stat().st_mode & 0o777 == 0o600


def test_a_port_in_use_ends_the_start_with_one_line(first: Up, folder: Path) -> None:
    port = first.address.rpartition(":")[2]
    line = failed_start(Up(folder / "second", "--port", port))
    assert f"port {port} of 127.0.0.1 is in use: stop what uses it, or choose another" in line
    assert first.healthy()


def test_a_folder_in_use_ends_the_start_with_one_line(first: Up) -> None:
    # The log of the second start must not overwrite that of the first.
    var = first.var.parent / "link"
    var.symlink_to(first.var)
    try:
        line = failed_start_in_foreign_folder(Up(var))
        assert f"process {first.process.pid} already serves" in line
    finally:
        var.unlink()
    assert first.healthy()
    assert (first.var / "up.env").exists()


def failed_start_in_foreign_folder(up: Up) -> str:
    assert up.process.wait(START_SECONDS) == 1
    up.close()
    return up.log.splitlines()[-1]


def test_a_killed_web_process_comes_back_at_its_address(first: Up) -> None:
    web = first.child("manage.py serve")
    web.kill()
    wait_for(lambda: first.replaced(web, "manage.py serve"), "a new web process")
    wait_for(first.healthy, "the web process answers", 60)


@pytest.mark.parametrize("words", [("postgres", "-D"), ("valkey-server",)])
def test_a_killed_server_comes_back_at_its_address(first: Up, words: tuple[str, ...]) -> None:
    server = first.child(*words)
    server.kill()
    wait_for(lambda: first.replaced(server, *words), "a new server", 60)
    wait_for(first.servers_answer, "the new server answers", 60)
    wait_for(first.healthy, "the instance is healthy", 60)


@pytest.mark.parametrize("words", [("worker", "runner"), ("manage.py clock",)])
def test_a_killed_worker_comes_back(first: Up, words: tuple[str, ...]) -> None:
    worker = first.child(*words)
    worker.kill()
    wait_for(lambda: first.replaced(worker, *words), "a new worker", 60)


def test_one_clock_of_a_site_ticks(first: Up) -> None:
    settings = {name: value for name, value in os.environ.items() if name not in GIVEN}
    url, valkey_url = first.setting("DATABASE_URL"), first.setting("VALKEY_URL")

    def bells() -> int:
        with redis.Redis.from_url(valkey_url) as client:
            pushes = client.info("commandstats").get("cmdstat_lpush", {"calls": 0})
        return int(pushes["calls"])

    def clocks(granted: bool) -> int:
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
                " AND granted = %s",
                [clock.LOCK, granted],
            ).fetchone()
        assert row is not None
        return int(row[0])

    def asks() -> bool:
        with psycopg.connect(url) as connection:
            return bool(
                connection.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND query LIKE 'SELECT pg_try_advisory_lock%' AND pid NOT IN"
                    " (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
                ).fetchall()
            )

    wait_for(lambda: clocks(granted=True) == 1, "the clock has its lock")
    with subprocess.Popen(
        [sys.executable, ROOT / "manage.py", "clock"],
        env={**settings, "VAR_DIR": str(first.var)},
        cwd=first.var,
        stderr=subprocess.PIPE,
        text=True,
    ) as second:
        try:
            wait_for(asks, "the second clock asks for the lock")
            seen = bells()
            wait_for(lambda: bells() >= seen + 2, "the clock rings twice", 60)
            assert clocks(granted=True) == 1
        except BaseException:
            second.kill()
            raise
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
        assert second.stderr is not None
        assert "the clock ticks" not in second.stderr.read()
    assert not list(first.var.glob("celerybeat*"))
    assert not list(ROOT.glob("celerybeat*"))


def test_a_clock_that_lost_the_database_ticks_again(first: Up) -> None:
    """As after a restart of the server: every connection of the clock breaks at once."""
    ticks = first.log.count("the clock ticks")
    assert ticks
    with psycopg.connect(first.setting("DATABASE_URL"), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    wait_for(lambda: first.log.count("the clock ticks") > ticks, "the clock ticks again", 60)
    wait_for(first.healthy, "the instance is healthy", 60)


def test_two_instances_serve_at_once_and_neither_leaves_a_process(first: Up, folder: Path) -> None:
    up = Up(folder / "other")
    try:
        up.wait_until_ready()
        assert up.address != first.address
        assert up.healthy()
        assert first.healthy()
        # Killed without a chance to clean up, it takes every process with it.
        assert len(processes_of(up.var)) >= 5
        up.process.kill()
        up.process.wait()
        wait_for(lambda: not processes_of(up.var), "nothing is left after kill -9")
    finally:
        up.close()
    again = Up(folder / "other")
    try:
        again.wait_until_ready()
        assert "shown only now" not in again.output
        assert "Bearer $BASALT_KEY" in again.output
        assert again.end(signal.SIGTERM) == 0
        assert not processes_of(again.var)
        assert not (again.var / "up.env").exists()
        assert "killing" not in again.log
    finally:
        again.close()
    assert first.healthy()


def test_servers_that_are_given_are_used_and_none_is_started(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder / "given-servers", durable=False)
    valkey = EmbeddedValkey(folder / "given-servers")
    postgres.start()
    valkey.start()
    up = Up(folder / "given", DATABASE_URL=postgres.url, VALKEY_URL=valkey.url)
    try:
        up.wait_until_ready()
        assert up.healthy()
        assert up.setting("DATABASE_URL") == postgres.url
        assert not (up.var / "postgres").exists()
        assert not (up.var / "valkey").exists()
        assert up.end() == 0
        assert postgres.ready()
        assert valkey.ready()
    finally:
        up.close()
        valkey.stop()
        postgres.stop()


def test_ctrl_c_during_the_start_leaves_nothing(folder: Path) -> None:
    up = Up(folder / "early")
    try:
        wait_for(lambda: processes_of(up.var / "postgres"), "PostgreSQL runs", 60)
        assert up.end(signal.SIGINT) == 0
        assert not processes_of(up.var)
        assert "Ready" not in up.output
    finally:
        up.close()


def test_a_broken_catalogue_is_named(folder: Path) -> None:
    broken = folder / "broken.toml"
    broken.write_text("[[models]]\nid = 7\n")
    assert "broken.toml" in failed_start(Up(folder / "broken", CATALOGUE_PATH=str(broken)))


def test_a_model_that_cannot_be_prepared_is_named(folder: Path) -> None:
    text = (ROOT / "deploy" / "catalogue.toml").read_text()
    source = re.search(r"\[models\.source\]\n(.+\n)+", text)
    assert source
    broken = folder / "missing.toml"
    broken.write_text(
        text.replace(source[0], '[models.source]\nkind = "folder"\npath = "no-such-folder"\n', 1)
    )
    line = failed_start(
        Up(
            folder / "missing",
            CATALOGUE_PATH=str(broken),
            MODELS_DIR=str(folder / "missing-models"),
        )
    )
    assert "no-such-folder" in line


def test_servers_that_do_not_answer_are_named(folder: Path) -> None:
    line = failed_start(
        Up(folder / "no-database", DATABASE_URL="postgresql://basalt@/basalt?host=/nonexistent")
    )
    assert "the database of DATABASE_URL does not answer" in line
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    line = failed_start(Up(folder / "no-valkey", VALKEY_URL=f"redis://127.0.0.1:{port}"))
    assert "Valkey does not answer at VALKEY_URL" in line
