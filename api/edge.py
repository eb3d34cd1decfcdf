"""The edge of the ASGI application: what every answer has, whoever writes it.

Django's views and the stream consumers go through the same layers: the request's id, CORS for the
API's paths, gzip, and an error object for what nothing else caught.
"""

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

import structlog
from django.conf import settings

from api.authentication import header
from api.errors import Headers, error_body, error_headers
from api.routes import is_api
from completions.failures import ClientLeft, Failure, internal

log = structlog.get_logger("api.requests")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


REQUEST_ID = "basalt.request_id"
TOO_LARGE = "basalt.too_large"
TRICKLES = "basalt.trickles"
"""Set by an answer that must go out as it is, bit by bit (U-49)."""
BASE64 = "basalt.base64"
"""Set by an answer that is base64 of random bytes almost throughout: nothing in it repeats."""

_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?")
"""The quality of an encoding that the client does not take."""
_GIVEN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
EXPOSED = (
    b"X-Request-Id, Retry-After, retry-after-ms, X-Should-Retry, X-Acs-Max-Tokens-Clamped, "
    b"X-Acs-Longpoll, Location, Allow"
)
PREFLIGHT_METHODS = b"GET, POST, DELETE"
PREFLIGHT_SECONDS = b"600"
ZIP_IN_THREAD_BYTES = 64 * 1024


def request_id(scope: Scope) -> str:
    """Return the request's id, as the header and the body of the answer have it."""
    return str(scope[REQUEST_ID])


def choose_request_id(scope: Scope) -> str:
    """Return the client's id where it has the contract's form, else a new one (C-021 to C-023)."""
    given = header(scope["headers"], b"x-request-id") or ""
    return given if _GIVEN_ID.match(given) else f"req_{uuid4().hex}"


class Edge:
    """Wraps the application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = choose_request_id(scope)
        answer = Answer(scope, send)
        began = time.perf_counter()
        try:
            if is_preflight(scope):
                await answer.preflight()
            else:
                await self._app(scope, receive, answer.send)
        except ClientLeft:
            pass
        except Exception:
            log.exception("unhandled", request_id=request_id(scope), path=scope["path"])
            await answer.fail(internal())
        finally:
            log.info(
                "answered",
                request_id=request_id(scope),
                method=scope["method"],
                path=scope["path"],
                status=answer.status,
                ms=round((time.perf_counter() - began) * 1000, 1),
            )


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what it may send (C-031)."""
    return (
        scope["method"] == "OPTIONS"
        and is_api(scope["path"])
        and header(scope["headers"], b"access-control-request-method") is not None
    )


def takes_gzip(scope: Scope) -> bool:
    """Whether the client takes gzip (C-032, C-033)."""
    accepted = header(scope["headers"], b"accept-encoding") or ""
    for part in accepted.lower().split(","):
        name, _, quality = part.strip().partition(";")
        if name.strip() == "gzip":
            return not _REFUSED.fullmatch(quality.strip())
    return False


def zipper(is_base64: bool, *, is_large: bool) -> "zlib._Compress":
    """Return a gzip compressor.

    One that looks for no repeats takes an eighth of the time. Of log probabilities, a large answer
    is half as quick at a higher level, and smaller by a tenth.
    """
    if is_base64:
        return zlib.compressobj(1, zlib.DEFLATED, 31, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)
    return zlib.compressobj(1 if is_large else 6, zlib.DEFLATED, 31)


class Answer:
    """One answer on its way out: adds the edge's headers and compresses where it may."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status: int | None = None
        self._scope = scope
        self._send = send
        self._start: Message | None = None
        self._zip: zlib._Compress | None = None
        self._ended = False

    async def send(self, message: Message) -> None:
        """Pass a message on; the start waits for the first part of the body."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            await self._send(self._started(self._start, body, more))
            self._start = None
        if self._zip is not None:
            body = await self._compressed(body, more)
        self._ended = not more
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def preflight(self) -> None:
        """Answer a browser's question with whatever headers it asked for (C-029, C-653)."""
        asked = header(self._scope["headers"], b"access-control-request-headers") or "*"
        headers = [
            (b"access-control-allow-methods", PREFLIGHT_METHODS),
            (b"access-control-allow-headers", asked.encode("latin-1")),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
            (b"vary", b"Access-Control-Request-Headers"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Failure) -> None:
        """Write an error, unless an answer has started: that one can only break off."""
        if self.status is not None and self._start is None:
            if not self._ended:
                raise ConnectionAbortedError("the answer broke off")
            return
        await answer_failure(failure, self._scope, self.send)

    def _started(self, start: Message, body: bytes, more: bool) -> Message:
        headers = [(name.lower(), value) for name, value in start.get("headers", [])]
        names = dict(headers)
        headers.append((b"x-request-id", request_id(self._scope).encode()))
        if is_api(self._scope["path"]):
            headers.append((b"access-control-allow-origin", b"*"))
            headers.append((b"access-control-expose-headers", EXPOSED))
            if self._may_zip(names, body, more):
                self._zip = zipper(self._scope.get(BASE64, False), is_large=more)
                headers = [pair for pair in headers if pair[0] != b"content-length"]
                headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
        return {**start, "headers": headers}

    def _may_zip(self, names: dict[bytes, bytes], body: bytes, more: bool) -> bool:
        """Whether this is JSON of enough bytes for a client that takes gzip (C-032 to C-034)."""
        length = int(names.get(b"content-length", len(body)))
        return (
            names.get(b"content-type", b"").startswith(b"application/json")
            and b"content-encoding" not in names
            and (length >= settings.BASALT.gzip_minimum or more)
            and takes_gzip(self._scope)
            and not self._scope.get(TRICKLES, False)
        )

    async def _compressed(self, body: bytes, more: bool) -> bytes:
        assert self._zip is not None
        if len(body) > ZIP_IN_THREAD_BYTES:
            out = await asyncio.to_thread(self._zip.compress, body)
        else:
            out = self._zip.compress(body)
        return out if more else out + self._zip.flush()


async def answer_failure(failure: Failure, scope: Scope, send: Send) -> None:
    """Write an error as the whole answer."""
    await answer_body(
        failure.status, error_body(failure, request_id(scope)), error_headers(failure), send
    )


async def answer_body(status: int, body: bytes, headers: Headers, send: Send) -> None:
    """Write these bytes as the whole answer."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
