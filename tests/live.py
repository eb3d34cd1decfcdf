"""Web processes for tests: real ones, on sockets of their own, with the settings of a test."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from django.conf import settings
from django.db import connection

from tests.contract.wire import conform_answer

ROOT = Path(__file__).resolve().parents[1]


def process_environment(**changes: str) -> dict[str, str]:
    """The environment of a process that works on the test's database."""
    database = settings.DATABASES["default"]
    url = f"postgresql://{database['USER']}@/{connection.settings_dict['NAME']}?host={database['HOST']}"
    return {
        **os.environ,
        "DATABASE_URL": url,
        "CATALOGUE_PATH": str(settings.BASALT.catalogue_path),
        "MODELS_DIR": str(settings.BASALT.models),
        **changes,
    }


def start_process(*arguments: str, log: Path, pass_fds: tuple[int, ...] = (), **changes: str):
    """Start `manage.py` with the arguments; its log goes to a file."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=process_environment(**changes),
        pass_fds=pass_fds,
        stdout=log.open("ab"),
        stderr=subprocess.STDOUT,
    )


@dataclass
class Web:
    """One running web process."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self, key: str | None = None, **options) -> httpx.Client:
        """A client that checks each answer against the contract's schemas."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= options.pop("headers", {})
        return httpx.Client(
            base_url=self.address,
            headers=headers,
            timeout=60,
            event_hooks={"response": [conform_answer]},
            **options,
        )

    def raw(self) -> socket.socket:
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def memory(self) -> int:
        """Bytes of resident memory."""
        return psutil.Process(self.process.pid).memory_info().rss

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the web process ended:\n{self.log.read_text()}")
            try:
                if httpx.get(f"{self.address}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError(f"the web process did not start:\n{self.log.read_text()}")


@contextmanager
def web_process(log: Path, *, waits: bool = True, **changes: str) -> Iterator[Web]:
    """A web process with changed settings, as environment variables.

    Without `waits` it may not answer yet.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    process = start_process(
        "serve", "--fd", str(listener.fileno()), log=log, pass_fds=(listener.fileno(),), **changes
    )
    web = Web(f"http://127.0.0.1:{listener.getsockname()[1]}", process, log)
    listener.close()
    try:
        if waits:
            web.wait_ready()
        yield web
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process as a supervisor would."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(condition, seconds: float = 10.0, every: float = 0.05):
    """Wait until `condition()` is true and return what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            assert value, f"not within {seconds} s: {condition}"
            return value
        time.sleep(every)


def events(text: str) -> list[object]:
    """The events of a stream: JSON values, and the text `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def is_open(here: tuple[str, int], there: tuple[str, int]) -> bool:
    """Whether some process of this machine has the socket from `here` to `there`."""
    return any(
        each.status != psutil.CONN_TIME_WAIT and (each.laddr, each.raddr) == (here, there)
        for each in psutil.net_connections("tcp")
    )


class InBackground:
    """A request that runs beside the test; for a stream, its lines come in one by one."""

    def __init__(
        self, client: httpx.Client, body: object, path: str = "/v1/completions", **options
    ):
        self.lines: queue.Queue[str] = queue.Queue()
        self.headers: httpx.Headers | None = None
        self.status: int | None = None
        self.text = ""
        self.error: Exception | None = None
        self._leave = threading.Event()
        self._client = httpx.Client(
            base_url=client.base_url, headers=client.headers, timeout=60, **options
        )
        self._body, self._path = body, path
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client.stream("POST", self._path, json=self._body) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                for line in answer.iter_lines():
                    self.text += line + "\n"
                    if line:
                        self.lines.put(line)
                    if self._leave.is_set():
                        return
        except (httpx.HTTPError, OSError) as error:
            self.error = error

    def line(self, seconds: float = 10) -> str:
        """The next line that is not a keepalive."""
        while (line := self.lines.get(timeout=seconds)).startswith(":"):
            pass
        return line

    def keepalive(self, seconds: float = 10) -> str:
        """The next keepalive."""
        while not (line := self.lines.get(timeout=seconds)).startswith(":"):
            pass
        return line

    def leave(self) -> None:
        """Close the connection, as a client that goes away, and wait until the server saw it."""
        self._leave.set()
        transport = self._client._transport
        ends = []
        for connection_ in transport._pool._connections:  # type: ignore[attr-defined]
            stream = connection_._connection._network_stream.get_extra_info("socket")
            ends.append((stream.getpeername(), stream.getsockname()))
            stream.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._client.close()
        eventually(lambda: not any(is_open(*each) for each in ends))

    def done(self, seconds: float = 20) -> "InBackground":
        """Wait for the end of the answer."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "no answer yet"
        if self.error:
            raise self.error
        return self

    def json(self) -> object:
        return json.loads(self.done().text)
