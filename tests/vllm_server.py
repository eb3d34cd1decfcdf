"""A vLLM server as far as a client can see one: it takes Completions and answers by a script.

A real one cannot be had on a test machine: it needs a GPU or gigabytes of its own build. So what
a client must understand comes from `inference/data/vllm.json`, which holds answers of a real
vLLM 0.30.0 with vllm-lens 1.3.0, and a test adds only what the recorded requests did not ask for.
The server speaks plain sockets, because some of the faults are no HTTP.
"""

import json
import queue
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

RECORDED: dict[str, dict] = json.loads(
    (Path(__file__).parent / "inference" / "data" / "vllm.json").read_text()
)


@dataclass
class Seen:
    """A request that came in."""

    path: str
    body: dict
    headers: dict[str, str]
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once the client has closed its connection while the answer was held."""


class Hold:
    """A step of a script at which nothing is sent until the client is gone or a test goes on."""

    def __init__(self) -> None:
        self.go = threading.Event()


Script = list[bytes | Hold]


class FakeVllm(socketserver.ThreadingTCPServer):
    """Answers each request with the next script."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._tls = tls
        self.seen: queue.Queue[Seen] = queue.Queue()
        self.scripts: queue.Queue[Script] = queue.Queue()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.server_address[1]}"

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self._tls:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def will(self, *steps: bytes | Hold) -> None:
        """Answer the next request so."""
        self.scripts.put(list(steps))

    def next(self) -> Seen:
        """The next request that came in."""
        return self.seen.get(timeout=10)


class _Handler(socketserver.StreamRequestHandler):
    server: FakeVllm

    def handle(self) -> None:
        try:
            line = self.rfile.readline()
        except ssl.SSLError:
            return
        path = line.split(b" ")[1].decode()
        headers = {}
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(self.rfile.read(int(headers.get("content-length", 0))))
        seen = Seen(path, body, headers)
        self.server.seen.put(seen)
        for step in self.server.scripts.get(timeout=10):
            if isinstance(step, bytes):
                self.wfile.write(step)
                continue
            while not step.go.wait(0.02):
                ready, _, _ = select.select([self.connection], [], [], 0)
                if ready and not self.connection.recv(1):
                    seen.gone.set()
                    return


@contextmanager
def fake_vllm(tls: ssl.SSLContext | None = None) -> Iterator[FakeVllm]:
    """A running server."""
    with FakeVllm(tls) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def head(status: int = 200, kind: str = "text/event-stream", **headers: str) -> bytes:
    """The beginning of an answer that ends with its connection."""
    lines = [f"HTTP/1.1 {status} Told", f"content-type: {kind}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body: object, status: int = 200, **headers: str) -> bytes:
    """A JSON answer."""
    raw = json.dumps(body, ensure_ascii=False).encode()
    return head(status, "application/json", content_length=str(len(raw)), **headers) + raw


def error(status: int, message: str, param: str | None = None, **headers: str) -> bytes:
    """An error as vLLM writes it."""
    inner = {"message": message, "type": "InternalServerError", "param": param, "code": status}
    return whole({"error": inner}, status, **headers)


def recorded(name: str) -> bytes:
    """The recorded answer, as it was."""
    record = RECORDED[name]
    if isinstance(record["response"], list):
        return head() + b"".join(event(line) for line in record["response"])
    return whole(record["response"], record["status"])


def event(line: str) -> bytes:
    """One server-sent event."""
    return f"{line}\n\n".encode()


def chunk(*texts: str, index: int = 0, finish: str | None = None, **fields: object) -> bytes:
    """An event in which a choice gains one token for each text."""
    choice = {"index": index, "text": "".join(texts), "logprobs": None, "finish_reason": finish}
    choice |= {"stop_reason": None, "token_ids": [7] * len(texts)} | fields
    said = {"id": "cmpl-far", "created": 1_796_030_700, "choices": [choice]}
    return event("data: " + json.dumps(said, ensure_ascii=False))


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The event with the counts."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event("data: " + json.dumps({"choices": [], "usage": counts}))


DONE = event("data: [DONE]")


def stream(prompt_tokens: int, *texts: str, finish: str = "length") -> bytes:
    """A whole stream of one choice with one token for each text."""
    chunks = [chunk(text) for text in texts[:-1]] + [chunk(texts[-1], finish=finish)]
    return head() + b"".join(chunks) + usage(prompt_tokens, len(texts)) + DONE
