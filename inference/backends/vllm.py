"""Sends requests to vLLM servers over HTTP and yields the same events as a worker does.

Nothing is ever sent twice (C-110). Leaving a request closes its connection, by which the server
aborts it.
"""

import asyncio
import contextlib
import itertools
import math
import mmap
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
from inference.backends.vllm_answers import (
    Answer,
    Choice,
    pack_generated,
    pack_prompt,
    read_answer,
    read_residuals,
)
from inference.backends.vllm_failures import Broken, misfit
from inference.backends.vllm_request import (
    body_of,
    check_offered,
    is_streamed,
    probe_of,
    prompt_logprobs_asked,
)
from inference.catalogue import ModelEntry
from inference.client import Patience
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    Finished,
    Given,
)

ERROR_BYTES = 64 * 1024
"""So much of an error's body is read."""
PIECE_BYTES = 2**20
"""Bytes of a whole answer that are put on disk at once."""
PROVEN_SECONDS = 60.0
"""So long a server that was seen to steer is trusted to do it again."""
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

        `Accepted` comes once the server has answered with 200. Leaving the context closes the
        connection.
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
        exchange = Exchange(self._http, model, request, left)
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
        exchange = Exchange(self._http, model, probe_of(request), patience)
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


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        model: ModelEntry,
        request: EngineRequest,
        patience: Patience,
    ) -> None:
        self._http = http
        self._model = model
        self._asked = request
        self._patience = patience
        self._deadline = time.monotonic() + patience.start
        self._seq = itertools.count()
        self._generated = 0
        self._told = False
        """Whether the id and the time of the answer were handed on."""

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events; the last is Finished or Failed."""
        try:
            async with contextlib.aclosing(self._answer()) as answer:
                async for event in answer:
                    yield event
        except Broken as broken:
            yield broken.event(self._asked.request_id, next(self._seq))

    async def _answer(self) -> AsyncGenerator[Event, None]:
        check_offered(self._asked)
        assert self._model.backend.kind == "vllm"
        address = self._model.backend.url.rstrip("/") + "/v1/completions"
        body = await asyncio.to_thread(body_of, self._model, self._asked)
        sent = self._http.build_request(
            "POST",
            address,
            content=body,
            headers={"Content-Type": "application/json"} | _credentials(self._model.id),
        )
        answer = await self._send(sent)
        try:
            await self._check_status(answer)
            yield Accepted(
                request_id=self._asked.request_id, seq=next(self._seq), worker_id=address
            )
            gained = self._streamed(answer) if is_streamed(self._asked) else self._whole(answer)
            async with contextlib.aclosing(gained):
                async for event in gained:
                    yield event
        finally:
            await answer.aclose()

    async def _send(self, sent: httpx2.Request) -> httpx2.Response:
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
                yield self._finished(usage)
                return
            chunk = read_answer(data)
            if chunk.error is not None:
                raise failures.of_event(chunk.error)
            if chunk.usage is not None:
                usage = chunk
            for choice in chunk.choices:
                yield await self._delta(choice, chunk)
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
            async for event in self._events_of(file):
                yield event

    async def _events_of(self, file: BinaryIO) -> AsyncGenerator[Event, None]:
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = await asyncio.to_thread(read_answer, memoryview(mapped))
        if whole.error is not None:
            raise failures.of_event(whole.error)
        for choice in whole.choices:
            yield await self._delta(choice, whole)
        read = await asyncio.to_thread(read_residuals, whole.activations, self._model.dtype)
        end = self._finished(whole)
        yield Finished(
            request_id=end.request_id,
            seq=end.seq,
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
            residuals=read,
        )

    async def _delta(self, choice: Choice, answer: Answer) -> Delta:
        if choice.prompt_logprobs is None:
            return self._gained(choice, answer)
        return await asyncio.to_thread(self._gained, choice, answer)

    def _gained(self, choice: Choice, answer: Answer) -> Delta:
        asked = self._asked
        if choice.token_ids is None:
            raise misfit("token ids are missing")
        self._generated += len(choice.token_ids)
        silent = asked.max_tokens == 0
        likeliest, prompt_logprobs = prompt_logprobs_asked(asked), None
        if likeliest is not None:
            if choice.index >= len(asked.prompts) * asked.n:
                raise misfit(f"there is no choice {choice.index}")
            prompt = asked.prompts[choice.index // asked.n]
            prompt_logprobs = pack_prompt(
                choice.prompt_logprobs, prompt, likeliest, self._model.vocab_size
            )
        logprobs = None
        if asked.logprobs is not None and not silent:
            logprobs = pack_generated(choice.logprobs, choice.token_ids)
        ends = choice.finish_reason is not None
        return Delta(
            request_id=asked.request_id,
            seq=next(self._seq),
            index=choice.index,
            text="" if silent else choice.text,
            token_ids=() if silent else tuple(choice.token_ids),
            given=self._given(answer),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason="length" if silent and ends else choice.finish_reason,
            stop_reason=None if silent else choice.stop_reason,
        )

    def _given(self, answer: Answer) -> Given | None:
        """Return the answer's id and time the first time (C-666)."""
        if self._told or answer.id is None or answer.created is None:
            return None
        self._told = True
        return Given(id=answer.id, created=answer.created)

    def _finished(self, last: Answer) -> Finished:
        """Return the end; the server's counts must be those of what it sent and was sent."""
        usage, prompt_tokens = last.usage, sum(map(len, self._asked.prompts))
        if usage is None:
            raise misfit("its usage is missing")
        if (usage.prompt_tokens, usage.completion_tokens) != (prompt_tokens, self._generated):
            raise misfit(
                f"it counts {usage.prompt_tokens} prompt tokens and {usage.completion_tokens} "
                f"generated ones instead of {prompt_tokens} and {self._generated}"
            )
        return Finished(
            request_id=self._asked.request_id,
            seq=next(self._seq),
            prompt_tokens=prompt_tokens,
            completion_tokens=self._generated,
        )
