"""The server itself: bodies bounded at the source, answers that wait for their reader."""

import json
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.live import InBackground, Web, eventually, web_process

MIB = 2**20


def head(web: Web, secret: str, extra: str) -> bytes:
    host = web.address.removeprefix("http://")
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {secret}\r\n{extra}\r\n\r\n"
    ).encode()


def read_answer(connection: socket.socket) -> bytes:
    """Everything that comes until the answer's body is whole."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    headers, _, body = got.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in headers.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return headers + b"\r\n\r\n" + body


def written_bytes(web: Web) -> int:
    return int(psutil.Process(web.process.pid).io_counters().write_bytes)


@pytest.mark.row("C-037", "C-083")
def test_a_body_of_100_mib_is_refused_with_memory_and_disk_flat(web: Web, caller) -> None:
    before, disk = web.memory(), written_bytes(web)
    peak = 0
    with web.raw() as connection:
        connection.sendall(head(web, caller.secret, f"Content-Length: {100 * MIB}"))
        for _ in range(100):
            connection.sendall(b" " * MIB)
            peak = max(peak, web.memory())
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:300]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"
    assert b"x-should-retry: false" in answer.lower()
    assert peak - before < 16 * MIB
    assert written_bytes(web) - disk < 16 * MIB


@pytest.mark.row("C-002")
def test_the_key_is_checked_before_the_size(web: Web) -> None:
    with web.raw() as connection:
        connection.sendall(head(web, "sk-acs-wrong", f"Content-Length: {100 * MIB}"))
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.row("C-039")
def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_cap(web: Web, caller) -> None:
    """The body never ends, and the answer comes all the same."""
    before = web.memory()
    with web.raw() as connection:
        connection.sendall(head(web, caller.secret, "Transfer-Encoding: chunked"))
        piece = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
        for _ in range(9):
            connection.sendall(piece)
        answer = read_answer(connection)
        for _ in range(20):
            connection.sendall(piece)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert web.memory() - before < 40 * MIB


@pytest.mark.row("C-039")
def test_a_chunked_body_within_the_cap_is_read(web: Web, caller, scripted) -> None:
    scripted.answers = ("a",)
    body = json.dumps({"prompt": [5], "max_tokens": 1}).encode()
    with web.raw() as connection:
        connection.sendall(head(web, caller.secret, "Transfer-Encoding: chunked"))
        for byte in (body[:10], body[10:]):
            connection.sendall(b"%x\r\n%s\r\n" % (len(byte), byte))
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.row("C-035")
@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]
)
def test_a_body_is_json_whatever_its_content_type(web: Web, caller, scripted, kind: str) -> None:
    scripted.answers = ("a",)
    body = json.dumps({"prompt": [5], "max_tokens": 1})
    answer = caller.client.post("/v1/completions", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text


def test_a_reader_that_stalls_on_50_mib_holds_no_memory_and_gets_all_of_it(
    web: Web, caller, scripted
) -> None:
    """The engine says 50 MiB while nobody reads; then the reader goes on and gets every byte."""
    word = "x" * (MIB // 2)
    body = json.dumps({"prompt": [5], "max_tokens": 100, "stream": True}).encode()
    with web.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(head(web, caller.secret, f"Content-Length: {len(body)}") + body)
        asked = scripted.next()
        asked.say("first")
        assert b"first" in connection.recv(65536)
        before, peak = web.memory(), 0
        for place in range(100):
            asked.say(word, finish="length" if place == 99 else None)
            peak = max(peak, web.memory())
        asked.finish()
        for _ in range(20):
            time.sleep(0.1)
            peak = max(peak, web.memory())
        received = 0
        tail = b""
        while not tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            part = connection.recv(MIB)
            assert part, "the connection closed early"
            received += len(part)
            tail = (tail + part)[-64:]
    assert received > 50 * MIB
    assert peak - before < 24 * MIB
    eventually(lambda: caller.open_holds() == 0)


def test_a_reader_that_stalls_too_long_is_cut_and_pays_what_was_sent(
    database: None, make_caller, scripted, logs: Path
) -> None:
    with web_process(logs / "stalled.log", STALLED_READER_SECONDS="1") as web:
        caller = make_caller(at=web)
        body = json.dumps({"prompt": [5], "max_tokens": 500, "stream": True}).encode()
        with web.raw() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.sendall(head(web, caller.secret, f"Content-Length: {len(body)}") + body)
            asked = scripted.next()
            for _ in range(450):
                asked.say("x" * (MIB // 32))
            assert asked.aborted.wait(20)
            eventually(lambda: caller.open_holds() == 0)
        assert 1 < 100_000 - caller.left() < 451


def test_a_web_process_that_is_stopped_lets_a_stream_end(
    database: None, make_caller, scripted, logs: Path
) -> None:
    with web_process(logs / "drained.log") as web:
        caller = make_caller(at=web)
        request = InBackground(caller.client, {"prompt": [5], "max_tokens": 3, "stream": True})
        asked = scripted.next()
        asked.say("a")
        assert '"a"' in request.line()
        web.process.terminate()
        time.sleep(0.5)
        asked.say("b", finish="length")
        asked.finish()
        assert request.done().text.endswith("data: [DONE]\n\n")
        assert web.process.wait(20) == 0
    assert caller.left() == 100_000 - 3


def test_a_web_process_that_is_stopped_ends_what_does_not_end(
    database: None, make_caller, scripted, logs: Path
) -> None:
    with web_process(logs / "killed.log", DRAIN_SECONDS="1") as web:
        caller = make_caller(at=web)
        request = InBackground(caller.client, {"prompt": [5], "max_tokens": 9, "stream": True})
        asked = scripted.next()
        asked.say("a")
        request.line()
        web.process.terminate()
        assert asked.aborted.wait(20)
        assert web.process.wait(20) == 0
    assert caller.open_holds() == 0
    assert caller.left() == 100_000 - 2
