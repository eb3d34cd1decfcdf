"""Sends requests to a model's workers and brings their events back: one client a process.

The client waits for a worker (asking for one while there is none), lays the request down, rings,
and hands out the events in order. Exactly one terminal event reaches the caller, whatever dies:
a worker that stops reporting, an event that went missing, or Valkey itself.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO, cast
from uuid import uuid4

import redis
import structlog
from django.conf import settings
from kombu.exceptions import OperationalError

from inference import valkey, wire
from inference.bell import Bell
from inference.call import Call
from inference.engine.messages import (
    Delta,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
)
from inference.failure_texts import (
    CUT_MESSAGE,
    DEAD_MESSAGE,
    DEADLINE_MESSAGE,
    UNREACHABLE_MESSAGE,
    UNSENT_MESSAGE,
)
from inference.fleet import Fleet, Stage, WorkerReport
from inference.large import BlobMissing, Large, fetch, read_event

log = structlog.get_logger()

CONSUMER_LIFE_MS = 5000
FETCHES_AT_ONCE = 4
"""Large events that are brought from Valkey at the same time."""
LOST = (redis.exceptions.RedisError, OperationalError, OSError)
"""What a broken connection to Valkey raises, our own or Celery's."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a caller waits, in seconds (C-221, C-222, C-669)."""

    start: float
    """Until the first tokens."""
    gap: float
    """Between two events after them."""


class InferenceClient:
    """The one client of a process; it lives in the event loop that started it."""

    def __init__(self) -> None:
        self.consumer_id = uuid4().hex
        self._fleet = Fleet(valkey.connection())
        self._calls: dict[str, Call] = {}
        self._serving: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = threading.Event()
        self._fetching = asyncio.Semaphore(FETCHES_AT_ONCE)
        self._bell = Bell(self.consumer_id, self._abort)

    async def start(self) -> None:
        """Begin to read events; call it once, in the loop that will use the client."""
        threading.Thread(target=self._beat, name="consumer-heartbeat", daemon=True).start()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        """Fail what is under way and stop."""
        self._closing.set()
        for call in list(self._calls.values()):
            call.fail(FailureCode.INCOMPLETE, CUT_MESSAGE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def complete(
        self, model_id: str, request: EngineRequest, patience: Patience
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Run a request: the context's value iterates its events up to the terminal one.

        Leaving the context before the engine's terminal event aborts the request, wherever it is.
        """
        call = Call(request=request, model_id=model_id)
        self._calls[request.request_id] = call
        submitting = asyncio.create_task(self._submit(call))
        try:
            yield self._events(call, patience)
        finally:
            submitting.cancel()
            del self._calls[request.request_id]
            call.mailbox.close()
            for fetched in call.fetched.values():
                fetched.add_done_callback(_close)
            if call.rung and not call.over:
                await asyncio.shield(self._abort(call.model_id, [request.request_id]))

    async def _events(self, call: Call, patience: Patience) -> AsyncIterator[Event]:
        started = False
        deadline = time.monotonic() + patience.start
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    arrival = await call.mailbox.get()
            except TimeoutError:
                call.fail(FailureCode.DEADLINE, DEADLINE_MESSAGE)
                arrival = await call.mailbox.get()
            event = await self._read_large(call, arrival) if isinstance(arrival, Large) else arrival
            yield event
            if isinstance(event, Finished | Failed):
                return
            started = started or isinstance(event, Delta)
            if started:
                deadline = time.monotonic() + patience.gap

    @staticmethod
    async def _read_large(call: Call, large: Large) -> Event:
        """Return a large event from its file, or a failure when it could not be brought here."""
        try:
            file = await asyncio.shield(call.fetched[large.seq])
            del call.fetched[large.seq]
            with file:
                return await asyncio.to_thread(read_event, large, file)
        except (BlobMissing, *LOST) as lost:
            log.warning("a large event is lost", cause=str(lost))
            return Failed(
                request_id=large.request_id,
                seq=large.seq,
                code=FailureCode.INCOMPLETE,
                message=CUT_MESSAGE,
            )

    async def _submit(self, call: Call) -> None:
        """Ring at a worker until one takes the request, waiting for one to start if need be."""
        accept_s = settings.BASALT.accept_seconds
        while not call.ended:
            serving = self._serving.setdefault(call.model_id, asyncio.Event())
            try:
                if not serving.is_set():
                    await self._look(call.model_id, asks=True)
                    await serving.wait()
                await self._bell.ring(call)
            except LOST:
                call.fail(FailureCode.UNREACHABLE, UNREACHABLE_MESSAGE)
                return
            except Exception:
                # Whatever it is, nobody shall wait for a request that never left.
                log.exception("a request cannot be sent", request_id=call.request.request_id)
                call.fail(FailureCode.SERVER_ERROR, UNSENT_MESSAGE)
                return
            if await self._is_taken(call, serving, accept_s):
                return
            if serving.is_set():
                call.fail(FailureCode.UNREACHABLE, UNREACHABLE_MESSAGE)

    @staticmethod
    async def _is_taken(call: Call, serving: asyncio.Event, accept_s: float) -> bool:
        """Wait for the acceptance: False after `accept_s`, or once no worker serves any more."""
        deadline = time.monotonic() + accept_s
        while time.monotonic() < deadline and serving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await call.taken.wait()
                    return True
        return call.taken.is_set()

    async def _abort(self, model_id: str, request_ids: list[str]) -> None:
        try:
            await asyncio.to_thread(wire.send_abort, valkey.connection(), model_id, request_ids)
        except LOST as lost:
            log.warning("abort not sent", requests=len(request_ids), cause=str(lost))

    async def _read(self) -> None:
        """Read this process's event stream; a broken connection fails what was rung for."""
        while True:
            connection = valkey.reader()
            try:
                await self._read_from(connection)
            except LOST as lost:
                log.warning("event wire lost", cause=str(lost))
                await self._lost()
                await asyncio.sleep(0.2)
            finally:
                with contextlib.suppress(*LOST):
                    await connection.aclose()

    async def _read_from(self, connection: redis.asyncio.Redis) -> None:
        stream = valkey.events(self.consumer_id)
        last = b"0"
        while True:
            answer = await connection.xread({stream: last}, block=1000, count=128)
            for _, entries in cast("wire.StreamAnswer", answer):
                for entry_id, fields in entries:
                    last = entry_id
                    self._dispatch(fields[b"e"])
            if answer:
                await connection.xtrim(stream, minid=last, approximate=False)

    def _dispatch(self, raw: bytes) -> None:
        for event in wire.arrivals(raw):
            call = self._calls.get(event.request_id)
            taken = call is not None and call.deliver(event)
            if isinstance(event, Large):
                fetching = asyncio.create_task(self._fetch(event))
                if call is not None and taken:
                    call.fetched[event.seq] = fetching
                else:
                    fetching.add_done_callback(_close)

    async def _fetch(self, large: Large) -> BinaryIO:
        """Bring a large event here at once, because its blobs do not wait for a slow reader."""
        async with self._fetching:
            return await asyncio.to_thread(fetch, valkey.connection(), large)

    async def _lost(self) -> None:
        """Fail every call that a worker may have, and tell the workers once they can be told."""
        rung: dict[str, list[str]] = {}
        for call in self._calls.values():
            if call.rung and not call.ended:
                call.fail(FailureCode.UNREACHABLE, UNREACHABLE_MESSAGE)
                rung.setdefault(call.model_id, []).append(call.request.request_id)
        for model_id, request_ids in rung.items():
            await self._abort(model_id, request_ids)

    async def _watch(self) -> None:
        """Look at the workers of every model that is called: quickly while somebody waits."""
        while True:
            calls = [call for call in self._calls.values() if not call.ended]
            waiting = {call.model_id for call in calls if call.worker_id is None}
            for model_id in waiting | {call.model_id for call in calls}:
                with contextlib.suppress(*LOST):
                    await self._look(model_id, asks=model_id in waiting)
            for model_id in set(self._serving) - {call.model_id for call in calls}:
                self._serving[model_id].clear()
            await asyncio.sleep(0.1 if waiting else 0.5)

    async def _look(self, model_id: str, *, asks: bool) -> None:
        """Read the reports: note who serves, ask for a worker, fail calls of dead workers."""
        reports = await asyncio.to_thread(self._fleet.workers, model_id)
        serving = self._serving.setdefault(model_id, asyncio.Event())
        self._bell.workers[model_id] = sum(report.stage is Stage.SERVING for report in reports)
        if self._bell.workers[model_id]:
            serving.set()
        else:
            serving.clear()
            if asks:
                await asyncio.to_thread(self._fleet.ask, model_id)
        self._fail_dead(model_id, reports)

    def _fail_dead(self, model_id: str, reports: list[WorkerReport]) -> None:
        alive = {report.worker_id for report in reports}
        for call in self._calls.values():
            if call.model_id == model_id and call.worker_id and call.worker_id not in alive:
                call.fail(FailureCode.ENGINE_DEAD, DEAD_MESSAGE)

    def _beat(self) -> None:
        """Say that this consumer lives, on a thread of its own."""
        connection = valkey.connection()
        while True:
            with contextlib.suppress(*LOST), connection.pipeline(transaction=False) as pipe:
                pipe.set(valkey.consumer_alive(self.consumer_id), b"1", px=CONSUMER_LIFE_MS)
                pipe.pexpire(valkey.events(self.consumer_id), wire.LIFE_MS)
                pipe.execute()
            if self._closing.wait(1.0):
                with contextlib.suppress(*LOST):
                    connection.delete(
                        valkey.consumer_alive(self.consumer_id), valkey.events(self.consumer_id)
                    )
                return


def _close(fetched: asyncio.Task[BinaryIO]) -> None:
    """Drop a large event that nobody will read."""
    if not fetched.cancelled() and fetched.exception() is None:
        fetched.result().close()
