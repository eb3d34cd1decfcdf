"""Sends requests to vLLM servers over HTTP and yields the same events as a worker does.

Nothing is ever sent twice (C-110). Leaving a request closes its connection, by which the server
aborts it.
"""

import asyncio
import contextlib
import math
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import BinaryIO

import httpx2
import msgspec
from django.conf import settings

from inference.backends import vllm_failures as failures
from inference.backends.vllm_answers import read_answer
from inference.backends.vllm_apart import read_apart
from inference.backends.vllm_failures import Broken, misfit
from inference.backends.vllm_reading import Facts, Reading
from inference.backends.vllm_request import (
    body_of,
    check_offered,
    is_streamed,
    probe_of,
)
from inference.catalogue import ModelEntry
from inference.client import Patience
from inference.engine.messages import Accepted, EngineRequest, Event, Failed, Finished

ERROR_BYTES = 64 * 1024
"""So much of an error's body is read."""
PIECE_BYTES = 2**20
"""Bytes of a whole answer that are put on disk at once."""
PROVEN_SECONDS = 60.0
"""So long a server that was seen to steer is trusted to do it again."""
APART_AT_ONCE = 1
"""Large answers that are read at the same time; each takes a core."""
READ_HERE_BYTES = 2**20
"""A whole answer above this size would hold the interpreter too long."""
DATA = b"data:"
DONE = b"[DONE]"


class VllmClient:
    """The HTTP client of a process; it lives in one event loop."""

    def __init__(self) -> None:
        # A connection of its own for each request: one that was kept may have been closed by
        # the server in between, and then the request would fail without a second try.
        self._http = httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx2.Timeout(None, connect=settings.BASALT.accept_seconds),
            follow_redirects=False,
            trust_env=False,
            verify=ssl.create_default_context(cafile=settings.BASALT.vllm_ca_file),
        )
        self._apart = asyncio.Semaphore(APART_AT_ONCE)
        self._steers: dict[str, float] = {}
        """When each model was last seen to apply steering vectors, by this process's clock."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @contextlib.asynccontextmanager
    async def complete(
        self, model: ModelEntry, request: EngineRequest, patience: Patience
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Run a request: the context's value iterates its events up to the terminal one.

        `Accepted` comes once the server has the request: a whole answer is long in coming.
        Leaving the context closes the connection.
        """
        async with contextlib.aclosing(self._events(model, request, patience)) as events:
            yield events

    async def _events(
        self, model: ModelEntry, request: EngineRequest, patience: Patience
    ) -> AsyncGenerator[Event, None]:
        begun = time.monotonic()
        if request.steering and begun - self._steers.get(model.id, -math.inf) > PROVEN_SECONDS:
            failed = await self._probe(model, request, patience)
            if failed is not None:
                yield failed
                return
            self._steers[model.id] = time.monotonic()
        left = replace(patience, start=patience.start - (time.monotonic() - begun))
        exchange = Exchange(self._http, self._apart, model, request, left)
        async with contextlib.aclosing(exchange.events()) as events:
            async for event in events:
                yield event

    async def _probe(
        self, model: ModelEntry, request: EngineRequest, patience: Patience
    ) -> Failed | None:
        """Have the server steer and read one token, and return why it does not, if so.

        A server without vllm-lens, and one whose model has another width, answers a steered
        request with unsteered text and no word of it; only a read tells, and no stream has one.
        """
        exchange = Exchange(self._http, self._apart, model, probe_of(request), patience)
        last: Event | None = None
        async with contextlib.aclosing(exchange.events()) as events:
            async for event in events:
                last = event
        if isinstance(last, Finished) and last.residuals is None:
            last = misfit("its server applies no steering vectors").event("", 0)
        if isinstance(last, Failed):
            return msgspec.structs.replace(last, request_id=request.request_id, seq=0)
        return None


def _credentials(model_id: str) -> dict[str, str]:
    """Return the header with the key of a model's server, where the settings have one."""
    key = settings.BASALT.vllm_keys.get(model_id)
    return {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}


async def _until(reached: asyncio.Event, sending: asyncio.Task[httpx2.Response]) -> None:
    """Wait until the server has the request, or it is clear that it will not."""
    waiting = asyncio.create_task(reached.wait())
    try:
        await asyncio.wait({waiting, sending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _close(sending: asyncio.Task[httpx2.Response]) -> None:
    """Close the connection, whether or not an answer has begun."""
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError, Broken):
        answer = await sending
        await answer.aclose()


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        apart: asyncio.Semaphore,
        model: ModelEntry,
        request: EngineRequest,
        patience: Patience,
    ) -> None:
        self._http = http
        self._apart = apart
        self._model = model
        self._asked = request
        self._patience = patience
        self._deadline = time.monotonic() + patience.start
        self._reading = Reading(request, Facts.of(model))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events; the last is Finished or Failed."""
        try:
            async with contextlib.aclosing(self._answer()) as answer:
                async for event in answer:
                    yield event
        except Broken as broken:
            yield broken.event(self._asked.request_id, self._reading.next_seq())

    async def _answer(self) -> AsyncGenerator[Event, None]:
        check_offered(self._asked)
        assert self._model.backend.kind == "vllm"
        address = self._model.backend.url.rstrip("/") + "/v1/completions"
        body = await asyncio.to_thread(body_of, self._model, self._asked)
        reached = asyncio.Event()
        sending = asyncio.create_task(self._send(address, body, reached))
        try:
            await _until(reached, sending)
            if reached.is_set():
                yield Accepted(
                    request_id=self._asked.request_id,
                    seq=self._reading.next_seq(),
                    worker_id=address,
                )
            answer = await sending
            await self._check_status(answer)
            gained = self._streamed(answer) if is_streamed(self._asked) else self._whole(answer)
            async with contextlib.aclosing(gained):
                async for event in gained:
                    yield event
        finally:
            await _close(sending)

    async def _send(self, address: str, body: bytes, reached: asyncio.Event) -> httpx2.Response:
        """Send the request; `reached` is set once all of it is on its way."""

        async def trace(step: str, info: object) -> None:
            if step.endswith("send_request_body.complete"):
                reached.set()

        sent = self._http.build_request(
            "POST",
            address,
            content=body,
            headers={"Content-Type": "application/json"} | _credentials(self._model.id),
            extensions={"trace": trace},
        )
        try:
            async with asyncio.timeout(self._left()):
                return await self._http.send(sent, stream=True)
        except TimeoutError:
            raise failures.too_late() from None
        except httpx2.RemoteProtocolError as wrong:
            if str(wrong).startswith("Server disconnected"):
                raise failures.unreachable() from None
            raise failures.not_http(str(wrong).rstrip(".")) from None
        except httpx2.TransportError:
            raise failures.unreachable() from None

    async def _check_status(self, answer: httpx2.Response) -> None:
        if answer.status_code == 200:
            return
        body = b""
        with contextlib.suppress(httpx2.TransportError, TimeoutError):
            async with asyncio.timeout(self._left()):
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > ERROR_BYTES:
                        break
        raise failures.of_answer(answer.status_code, body, answer.headers)

    async def _pieces(
        self, answer: httpx2.Response, size: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        pieces = answer.aiter_bytes(size)
        while True:
            try:
                async with asyncio.timeout(self._left()):
                    piece = await anext(pieces, None)
            except TimeoutError:
                raise failures.too_late() from None
            except (httpx2.TransportError, httpx2.DecodingError):
                raise failures.cut() from None
            if piece is None:
                return
            yield piece

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    async def _streamed(self, answer: httpx2.Response) -> AsyncGenerator[Event, None]:
        """Yield what the events of a stream say; it is whole with `[DONE]` only (C-213)."""
        usage = None
        async for data in self._data(answer):
            if data == DONE:
                if usage is None:
                    raise misfit("its usage is missing")
                yield self._reading.end(usage)
                return
            chunk = read_answer(data)
            if chunk.error is not None:
                raise failures.of_event(chunk.error)
            if chunk.usage is not None:
                usage = chunk
            for choice in chunk.choices:
                yield self._reading.delta(choice, chunk)
            self._deadline = time.monotonic() + self._patience.gap
        raise failures.cut()

    async def _data(self, answer: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the data of server-sent events, whose lines end with a line feed alone."""
        rest = b""
        async for piece in self._pieces(answer):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(DATA):
                    yield line.removeprefix(DATA).strip()

    async def _whole(self, answer: httpx2.Response) -> AsyncGenerator[Event, None]:
        """Yield the events of an answer in one piece, which may be larger than memory."""
        with tempfile.TemporaryFile() as file:
            size = 0
            async for piece in self._pieces(answer, PIECE_BYTES):
                size += await asyncio.to_thread(file.write, piece)
            if not size:
                raise failures.cut()
            file.flush()
            async with contextlib.aclosing(self._read(file, size)) as events:
                async for event in events:
                    yield event

    async def _read(self, file: BinaryIO, size: int) -> AsyncGenerator[Event, None]:
        """Yield the events of a whole answer; a large one is read in a process of its own."""
        if size > READ_HERE_BYTES:
            events = read_apart(self._reading, file)
            async with self._apart, contextlib.aclosing(events):
                async for event in events:
                    yield event
            return
        for event in await asyncio.to_thread(self._reading.whole, file.fileno()):
            yield event
