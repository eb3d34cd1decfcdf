"""Requests that no proper client would send, byte by byte."""

import http.client
from dataclasses import dataclass

from tests.live import Web


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """A header's value, which must not come twice."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


def exchange(web: Web, *parts: bytes, method: str = "GET") -> RawAnswer:
    """Send the parts one after the other and read the answer."""
    with web.raw() as socket:
        for part in parts:
            socket.sendall(part)
        answer = http.client.HTTPResponse(socket, method=method)
        answer.begin()
        return RawAnswer(answer.status, answer.getheaders(), answer.read())


def head(line: str, **headers: str | bytes) -> bytes:
    """The head of a request; names of headers have `_` for `-`."""
    lines = [line.encode("latin-1"), b"Host: test", b"Connection: close"]
    for name, value in headers.items():
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.replace("_", "-").encode() + b": " + raw)
    return b"\r\n".join(lines) + b"\r\n\r\n"
