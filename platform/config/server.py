"""The web server: Daphne, with bodies bounded at the source and answers that wait for readers.

Daphne reads a whole body before it calls the application, and holds whatever a slow reader has
not taken. Here a request counts its body as it comes in: past its cap the bytes are dropped and
the application is called at once, so that it can answer while the client still sends. And `send`
waits while the connection is full, up to the time after which a reader counts as gone.
"""

import asyncio
import contextlib
import io
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import structlog
from daphne import server as daphne_server
from daphne.endpoints import build_endpoint_description_strings
from daphne.http_protocol import HTTPFactory, WebRequest
from django.conf import settings
from twisted.internet import reactor
from twisted.internet.interfaces import IPushProducer
from twisted.web import http
from zope.interface import implementer

from api.client import start_client
from api.edge import TOO_LARGE
from api.routes import body_cap
from api.stream import running_on
from billing.models import OwnerKind
from completions.failures import ClientLeft
from completions.generation import late_ends
from completions.owner import own_as
from inference import catalogue
from inference.tokenizers import TokenizerMissing, counter_for

log = structlog.get_logger()

SLICE_BYTES = 64 * 1024
"""An answer is handed to the connection in slices of this size."""
LINGER_SECONDS = 30.0
"""How long a client may go on sending a refused body before the connection is closed."""
WAIT_THREADS = 32
_ABSOLUTE = re.compile(rb"(?i)https?://[^/?]*")
SWITCH_SECONDS = 0.0005
"""How long a thread that works for one request may keep the event loop of all others waiting."""


@implementer(IPushProducer)
class Valve:
    """Open while the connection takes more bytes."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def pauseProducing(self) -> None:
        """Close: enough bytes wait."""
        self._open.clear()

    def resumeProducing(self) -> None:
        """Open again."""
        self._open.set()

    def stopProducing(self) -> None:
        """Open for good: the connection is gone, and nobody shall wait for it."""
        self._open.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it is open; raises `TimeoutError`."""
        if not self._open.is_set():
            async with asyncio.timeout(seconds):
                await self._open.wait()


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target, which may name scheme and host before them.

    Every server has to take that form (RFC 9112, 3.2.2); the host is that of the `Host` header.
    """
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


class BoundedRequest(WebRequest):  # type: ignore[misc]
    """A request that keeps at most its route's cap of body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.valve = Valve()
        self.too_large = 0
        """The cap that the body passed, or 0."""
        self._cap = 0
        self._received = 0
        self._called = False
        self._body_ended = False
        self._answered = False

    def gotLength(self, length: int | None) -> None:
        """Choose where the body is kept, before its first byte."""
        path = origin_form(self.channel._path).split(b"?", 1)[0].decode("latin-1")
        self._cap = body_cap(path)
        if length is not None and length > self._cap:
            self.content = io.BytesIO()
            self._refuse()
        else:
            super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a part of the body, or drop it once the body is too large."""
        self._received += len(data)
        if self.too_large:
            return
        if self._received > self._cap:
            self.content.close()
            self.content = io.BytesIO()
            self._refuse()
        else:
            super().handleContentChunk(data)

    def _refuse(self) -> None:
        """Have the application answer now; what still comes in is dropped."""
        self.too_large = self._cap
        reactor.callLater(0, self._call)
        reactor.callLater(LINGER_SECONDS, self._close)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The body has ended. Forms are not parsed: the application reads every body itself."""
        self._body_ended = True
        if self._answered:
            super().finish()
        self._call(command, path, version)

    def _call(
        self, command: bytes | None = None, path: bytes | None = None, version: bytes | None = None
    ) -> None:
        """Call the application, once."""
        if self._called or self.channel is None:
            return
        self._called = True
        self.content.seek(0, 0)
        self.args: dict[bytes, list[bytes]] = {}
        self.method = command or self.channel._command
        self.uri = origin_form(path or self.channel._path)
        self.clientproto = version or self.channel._version
        self.path = self.uri.split(b"?", 1)[0]
        self.client = self.channel.getPeer()
        self.host = self.channel.getHost()
        # No WebSocket is offered: who asks for one is answered as anybody else.
        self.requestHeaders.removeHeader(b"upgrade")
        self.registerProducer(self.valve, True)
        self.process()

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Pass a part of an answer on; that to a HEAD has no body, in however many parts."""
        if self.method == b"HEAD" and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        super().handle_reply(message)

    def finish(self) -> None:
        """End the answer; a client that still sends a refused body may first read it."""
        if self.producer is not None:
            self.unregisterProducer()
        self._answered = True
        if self.too_large and not self._body_ended:
            return
        super().finish()

    def connectionLost(self, reason: object) -> None:
        """Wake whoever waits to send."""
        self.valve.stopProducing()
        super().connectionLost(reason)

    def _close(self) -> None:
        if not self._body_ended and self.channel is not None:
            self.channel.forceAbortClient()

    def cut(self) -> None:
        """Close the connection of a client that does not read."""
        if self.channel is not None:
            self.channel.forceAbortClient()


class BoundedFactory(HTTPFactory):  # type: ignore[misc]
    """Makes protocols with our requests."""

    def buildProtocol(self, addr: object) -> http.HTTPChannel:
        """Return the protocol of a new connection."""
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = BoundedRequest
        return protocol


class Server(daphne_server.Server):  # type: ignore[misc]
    """Daphne's server with bounded requests, back pressure and a gentle stop."""

    def __init__(self, *args: Any, startup: Callable[[], Awaitable[object]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._startup = startup
        self._draining = False

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        daphne_server.HTTPFactory = BoundedFactory
        reactor.callWhenRunning(self._begin)
        super().run()

    def _begin(self) -> None:
        loop = asyncio.get_event_loop()
        sys.setswitchinterval(SWITCH_SECONDS)
        loop.set_default_executor(ThreadPoolExecutor(WAIT_THREADS, thread_name_prefix="wait"))
        self._starting = loop.create_task(self._start_up())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    async def _start_up(self) -> None:
        try:
            await self._startup()
        except Exception:
            log.exception("the server could not start")
            self.stop()

    def create_application(self, protocol: BoundedRequest, scope: dict[str, Any]) -> object:
        """Hand the request to the application with what is known of its body."""
        if getattr(protocol, "too_large", 0):
            scope[TOO_LARGE] = protocol.too_large
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: BoundedRequest, message: dict[str, Any]) -> None:
        """Pass an answer on in slices, waiting while the reader is slow."""
        if self.connections.get(protocol, {"disconnected": 0}).get("disconnected") is not None:
            raise ClientLeft("the client has left")
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or not isinstance(protocol, BoundedRequest):
            await super().handle_reply(protocol, message)
            return
        more = message.get("more_body", False)
        for start in range(0, max(len(body), 1), SLICE_BYTES):
            end = start + SLICE_BYTES
            part = {**message, "body": body[start:end], "more_body": more or end < len(body)}
            await super().handle_reply(protocol, part)
            try:
                await protocol.valve.wait(settings.BASALT.stalled_reader_seconds)
            except TimeoutError:
                log.info("a reader stalled", client=protocol.client_addr)
                protocol.cut()
                raise ClientLeft("the client does not read") from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(self._drain)

    def _drain(self) -> None:
        """Stop listening, give running answers some time, then stop; a second signal stops now."""
        if self._draining:
            self.stop()
            return
        self._draining = True
        log.info("stopping", connections=len(self.connections))
        for listener in self.listeners:
            listener.addCallback(lambda port: port.stopListening())
        reactor.callLater(settings.BASALT.drain_seconds, self.stop)
        self._stop_when_idle()

    def _stop_when_idle(self) -> None:
        connected = any("disconnected" not in details for details in self.connections.values())
        if connected or running_on() or late_ends():
            reactor.callLater(0.1, self._stop_when_idle)
        else:
            self.stop()


def load_tokenizer() -> None:
    """Load the default model's tokenizer, which would hold the first streams up later."""
    with contextlib.suppress(TokenizerMissing):
        counter_for(catalogue.current().default)


def serve(*, fd: int | None, host: str, port: int) -> None:
    """Serve the application on an inherited socket, or on `host` and `port`, until a signal."""
    from config.asgi import application

    load_tokenizer()
    ownership = own_as(OwnerKind.WEB)
    endpoints = (
        build_endpoint_description_strings(file_descriptor=fd)
        if fd is not None
        else build_endpoint_description_strings(host=host, port=port)
    )
    try:
        Server(
            application,
            endpoints=endpoints,
            signal_handlers=False,
            server_name="",
            verbosity=0,
            startup=start_client,
        ).run()
    finally:
        ownership.close()
