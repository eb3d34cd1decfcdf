"""`POST /v1/completions`: with a stream and without one."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
from django.conf import settings

from accounts.keys import KeyState
from api.authentication import Headers as ReadHeaders
from api.bodies import completion_request
from api.client import client
from api.edge import (
    BASE64,
    TRICKLES,
    Message,
    Scope,
    Send,
    answer_body,
    answer_failure,
    request_id,
)
from api.errors import late_error_body
from api.idempotency import Attempt, StoredAnswer
from api.json_body import read_json
from api.keyed import JSON_HEADERS, answer_again, checked, free_key, take_key
from api.limits import Bucket
from api.stream import StreamConsumer
from billing import spend_stop
from completions.admission import LIVE, admitted
from completions.database import is_busy
from completions.endings import note_unpaid
from completions.failures import ClientLeft, Failure, database_busy, internal
from completions.generation import Generation
from completions.payloads import DONE, KEEPALIVE, Choices, is_large, wants_texts
from completions.pieces import Body, body_of, file_pieces, in_file
from completions.request import CompletionRequest
from inference.engine.messages import Delta

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class CreateCompletion(StreamConsumer):
    """Runs one Completion."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._generation: Generation | None = None
        self._spend_stopped = False

    def enter(self, headers: ReadHeaders, address: str, bucket: Bucket) -> KeyState:
        """Check the key, and look on the way whether a spend stop is on."""
        key = super().enter(headers, address, bucket)
        self._spend_stopped = spend_stop.is_on()
        return key

    def leave(self) -> None:
        """Tell the running Completion why it will be cancelled."""
        if self._generation is not None:
            self._generation.client_left = True

    async def _refuse(self, failure: Failure) -> None:
        note_unpaid(LIVE.source, "", failure)
        await super()._refuse(failure)

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Check, admit, run, and write what comes; a repeat gets the first answer."""
        value = await checked(read_json, body, body)
        taken = await take_key(self.scope, value, key)
        if isinstance(taken, StoredAnswer):
            await answer_again(taken, self.send)
            return
        try:
            request = await checked(completion_request, value, body)
        except Failure:
            await asyncio.shield(free_key(taken))
            raise
        if taken is not None and not request.stream:
            self.run_on()
        await self._answer(request, key, taken)

    async def _answer(
        self, request: CompletionRequest, key: KeyState, attempt: Attempt | None
    ) -> None:
        kind = StreamWriter if request.stream else WholeWriter
        writer = kind(self.scope, self.send, attempt)
        async with writer.ticking():
            try:
                await self._run(request, key, writer, attempt)
            except ClientLeft:
                raise
            except Failure as failure:
                await writer.fail(failure)
            except Exception as error:
                if not is_busy(error):
                    log.exception("a Completion failed", request_id=self.request_id)
                await writer.fail(database_busy() if is_busy(error) else internal())

    async def _run(
        self,
        request: CompletionRequest,
        key: KeyState,
        writer: "Writer",
        attempt: Attempt | None,
    ) -> None:
        async with contextlib.AsyncExitStack() as written:
            try:
                async with admitted(
                    request,
                    payer=key,
                    request_id=self.request_id,
                    policy=LIVE,
                    client=client(),
                    written=written,
                    record=attempt,
                    spend_stopped=self._spend_stopped,
                ) as generation:
                    self._generation = generation
                    await writer.run(generation)
            finally:
                if self._generation is None:
                    await asyncio.shield(free_key(attempt))
            # The Hold has ended: who reads the end of the answer finds the balance settled.
            await writer.end()


class Writer(ABC):
    """Writes one answer; a clock beside it keeps a silent connection alive."""

    def __init__(self, scope: Scope, send: Send, attempt: Attempt | None) -> None:
        self.started = False
        self.over = False
        """The last byte has been given to the connection."""
        self._attempt = attempt
        self._scope = scope
        self._send = send
        self._sending = asyncio.Lock()
        self._usage: dict[str, int] = {}
        self._clamp: Headers = []

    async def run(self, generation: Generation) -> None:
        """Write, or keep, what the Completion gains, until it has ended.

        Raises:
            Failure: of Inference, or because its answer does not fit the request.
        """
        if wants_texts(generation.request):
            choices = await asyncio.to_thread(Choices, generation)
        else:
            choices = Choices(generation)
        if header := generation.output.clamp_header:
            self._clamp = [(b"x-acs-max-tokens-clamped", header.encode())]
        async with contextlib.aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, Delta):
                    await self.gain(generation, choices, event)
                else:
                    self._usage = choices.end(generation, event)
        await self.complete(choices)

    @abstractmethod
    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Take what one choice gained."""

    @abstractmethod
    async def complete(self, choices: Choices) -> None:
        """Prepare the end, while the Hold is still open: a fault of it costs nothing."""

    @abstractmethod
    async def end(self) -> None:
        """Write the end of an answer that succeeded."""

    @abstractmethod
    async def fail(self, failure: Failure) -> None:
        """Write a failure, as the answer or at its end."""

    @abstractmethod
    def ticking(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Run the clock while the context is open."""

    async def _start(self, headers: Headers) -> None:
        self.started = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*headers, *self._clamp]}
        )

    async def _write_body(self, body: Body, *, more: bool = False) -> None:
        """Write a body, whose rest is made beside the loop, piece by piece."""
        await self._write(body.start, more=more or body.rest is not None)
        if body.rest is None:
            return
        while piece := await asyncio.to_thread(next, body.rest, b""):
            await self._write(piece)
        if not more:
            await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self.over = not more
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send(message)


class StreamWriter(Writer):
    """Server-sent events (C-202 to C-215)."""

    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Send one chunk; the answer starts with the first (C-211)."""
        if is_large(delta):
            chunk = await asyncio.to_thread(body_of, choices.chunk(delta))
        else:
            chunk = Body(b"".join(choices.chunk(delta)))
        async with self._sending:
            if not self.started:
                await self._start(STREAM_HEADERS)
            await self._write_body(chunk, more=True)
        generation.sent(len(delta.token_ids))

    _last = Body(DONE)

    async def complete(self, choices: Choices) -> None:
        """Make what comes after the last token."""
        events = choices.last_events(self._usage)
        if choices.has_residuals:
            self._last = await asyncio.to_thread(body_of, events)
        else:
            self._last = Body(b"".join(events))

    async def end(self) -> None:
        """Send usage and activations where they were asked for, then the end."""
        async with self._sending:
            await self._write_body(self._last)

    async def fail(self, failure: Failure) -> None:
        """Answer with the error, or end the stream by it (C-112, C-212)."""
        if not self.started:
            await answer_failure(failure, self._scope, self._send)
            return
        error = b"data: " + late_error_body(failure, request_id(self._scope)) + b"\n\n"
        async with self._sending:
            await self._write(error + DONE, more=False)

    @contextlib.asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Send a comment every few seconds from the start of the stream (C-210)."""
        every = settings.BASALT.keepalive_seconds
        async with clock(every, every, self._keep_alive):
            yield

    async def _keep_alive(self) -> None:
        async with self._sending:
            if self.started and not self.over:
                await self._write(KEEPALIVE)


class WholeWriter(Writer):
    """One JSON body (C-216 to C-220)."""

    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Keep what came."""
        if is_large(delta):
            await asyncio.to_thread(choices.keep, delta)
        else:
            choices.keep(delta)

    _body = Body(b"")

    async def complete(self, choices: Choices) -> None:
        """Make the body, and have it kept where the request may be repeated."""
        if choices.has_residuals:
            self._scope[BASE64] = True
        self._body = await asyncio.to_thread(self._encode, choices)

    def _encode(self, choices: Choices) -> Body:
        body = body_of(choices.whole(self._usage))
        if self._attempt is None:
            return body
        kept = body.start if body.rest is None else in_file(body)
        headers = {name.decode(): value.decode() for name, value in self._clamp}
        self._attempt.prepare(StoredAnswer(200, kept, headers))
        if isinstance(kept, bytes):
            return body
        kept.seek(0)
        return Body(b"", file_pieces(kept))

    async def end(self) -> None:
        """Send the Completion."""
        async with self._sending:
            if not self.started and self._body.rest is None:
                headers = [*JSON_HEADERS, *self._clamp]
                self.over = True
                await answer_body(200, self._body.start, headers, self._send)
                return
            if not self.started:
                await self._start(JSON_HEADERS)
            await self._write_body(self._body)

    async def fail(self, failure: Failure) -> None:
        """Answer with the error, or send it as the body of a 200 that has started (C-218)."""
        async with self._sending:
            if not self.started:
                self.over = True
                await answer_failure(failure, self._scope, self._send)
            else:
                await self._write(late_error_body(failure, request_id(self._scope)), more=False)

    @contextlib.asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Begin the answer when it takes long, then send a space now and then (C-217)."""
        env = settings.BASALT
        async with clock(env.early_answer_seconds, env.keepalive_seconds, self._trickle):
            yield

    async def _trickle(self) -> None:
        async with self._sending:
            if self.over:
                return
            if not self.started:
                self._scope[TRICKLES] = True
                await self._start(JSON_HEADERS)
            await self._write(b" ")


@contextlib.asynccontextmanager
async def clock(
    first: float, every: float, tick: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Call `tick` after `first` seconds and then every `every`, while the context is open."""

    async def run() -> None:
        await asyncio.sleep(first)
        while True:
            await tick()
            await asyncio.sleep(every)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
