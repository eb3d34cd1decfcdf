"""`POST /v1/completions`: with a stream and without one."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
from django.conf import settings

from accounts.keys import KeyState
from api.bodies import completion_request
from api.client import client
from api.edge import (
    TRICKLES,
    Message,
    Scope,
    Send,
    answer_failure,
    answer_json,
    request_id,
)
from api.errors import late_error_body
from api.json_body import read_json
from api.payloads import DONE, KEEPALIVE, Choices, usage_object
from api.stream import StreamConsumer
from completions.admission import LIVE, admitted
from completions.database import is_busy
from completions.failures import ClientLeft, Failure, database_busy, internal
from completions.generation import Generation
from completions.request import CompletionRequest
from inference.engine.messages import Delta, Finished

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


class CreateCompletion(StreamConsumer):
    """Runs one Completion."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._generation: Generation | None = None

    def leave(self) -> None:
        """Tell the running Completion why it will be cancelled."""
        if self._generation is not None:
            self._generation.client_left = True

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Check, admit, run, and write what comes."""
        request = completion_request(read_json(body))
        writer = (
            StreamWriter(self.scope, self.send)
            if request.stream
            else WholeWriter(self.scope, self.send)
        )
        async with writer.ticking():
            try:
                await self._run(request, key, writer)
            except ClientLeft:
                raise
            except Failure as failure:
                await writer.fail(failure)
            except Exception as error:
                if not is_busy(error):
                    log.exception("a Completion failed", request_id=self.request_id)
                await writer.fail(database_busy() if is_busy(error) else internal())

    async def _run(self, request: CompletionRequest, key: KeyState, writer: "Writer") -> None:
        async with admitted(
            request, key=key, request_id=self.request_id, policy=LIVE, client=client()
        ) as generation:
            self._generation = generation
            await writer.run(generation)
        # The Hold has ended: who reads the end of the answer finds the balance settled.
        await writer.end()


class Writer(ABC):
    """Writes one answer; a clock beside it keeps a silent connection alive."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.started = False
        self._scope = scope
        self._send = send
        self._sending = asyncio.Lock()
        self._choices: Choices | None = None
        self._usage: dict[str, int] = {}
        self._clamp: Headers = []

    async def run(self, generation: Generation) -> None:
        """Write, or keep, what the Completion gains, until it has ended.

        Raises:
            Failure: of Inference, or because its answer does not fit the request.
        """
        self._choices = choices = await asyncio.to_thread(Choices, generation)
        if header := generation.output.clamp_header:
            self._clamp = [(b"x-acs-max-tokens-clamped", header.encode())]
        async with contextlib.aclosing(generation.events()) as events:
            async for event in events:
                if isinstance(event, Delta):
                    await self.gain(generation, choices, event)
                else:
                    self._finish(generation, choices, event)

    def _finish(self, generation: Generation, choices: Choices, end: Finished) -> None:
        self._usage = usage_object(end.prompt_tokens, end.completion_tokens)
        try:
            choices.check_complete()
        except Failure:
            generation.does_not_fit()
            raise

    @abstractmethod
    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Take what one choice gained."""

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

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send(message)


class StreamWriter(Writer):
    """Server-sent events (C-202 to C-215)."""

    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Send one chunk; the answer starts with the first (C-211)."""
        chunk = choices.chunk(delta)
        async with self._sending:
            if not self.started:
                await self._start(STREAM_HEADERS)
            await self._write(chunk)
        generation.sent(len(delta.token_ids))

    async def end(self) -> None:
        """Send the usage where it was asked for, then the end."""
        assert self._choices is not None
        last = DONE
        if self._choices.request.include_usage:
            last = self._choices.usage_chunk(self._usage) + DONE
        async with self._sending:
            await self._write(last, more=False)

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
            if self.started:
                await self._write(KEEPALIVE)


class WholeWriter(Writer):
    """One JSON body (C-216 to C-220)."""

    async def gain(self, generation: Generation, choices: Choices, delta: Delta) -> None:
        """Keep what came."""
        choice, text = choices.add(delta)
        choice.texts.append(text)

    async def end(self) -> None:
        """Send the Completion."""
        assert self._choices is not None
        whole = self._choices.whole(self._usage)
        async with self._sending:
            if not self.started:
                await answer_json(whole, self._send, self._clamp)
            else:
                await self._write(json.dumps(whole, ensure_ascii=False).encode(), more=False)

    async def fail(self, failure: Failure) -> None:
        """Answer with the error, or send it as the body of a 200 that has started (C-218)."""
        async with self._sending:
            if not self.started:
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
