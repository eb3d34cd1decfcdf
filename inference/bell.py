"""Rings at the workers: lays requests down for them and says so through Celery.

Ringing takes a thread for a moment and is one of the dearer parts of a request. Requests that come
while it is under way go together with the next ring.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from celery import current_app
from django.conf import settings

from inference import valkey, wire
from inference.call import Call
from inference.fleet import queue_of

RING = "inference.ring"
"""The Celery task that rings at a worker."""
CALLS_AT_ONCE = 64
"""Requests that are laid down together."""


Abort = Callable[[str, list[str]], Awaitable[None]]
"""Aborts requests of a model by their ids."""


@dataclass(frozen=True)
class _Waiting:
    call: Call
    done: asyncio.Future[None]


class Bell:
    """The bell of one process; it lives in the event loop of its client."""

    def __init__(self, consumer_id: str, abort: Abort) -> None:
        self.workers: dict[str, int] = {}
        """Workers of a model that were seen serving: a ring goes to each of them."""
        self._consumer_id = consumer_id
        self._abort = abort
        self._waiting: list[_Waiting] = []
        self._ringing: asyncio.Task[None] | None = None

    async def ring(self, call: Call) -> None:
        """Lay the call's request down and ring for it; `call.rung` tells that it lies there.

        When the caller stops waiting before that, the request is not laid down, or aborted.

        Raises whatever kept this request from being written, or the loss of Valkey.
        """
        waiting = _Waiting(call, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._ring_all())
        await waiting.done

    async def _ring_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:CALLS_AT_ONCE], self._waiting[CALLS_AT_ONCE:]
            batch = [each for each in batch if not each.done.cancelled()]
            calls = [each.call for each in batch]
            ringing = asyncio.to_thread(self._ring, calls)
            [told] = await asyncio.gather(ringing, return_exceptions=True)
            errors = told if isinstance(told, dict) else dict.fromkeys(calls, told)
            for each in batch:
                if not each.done.cancelled():
                    self._tell(each.done, errors.get(each.call))
                elif each.call.rung:
                    await self._abort(each.call.model_id, [each.call.request.request_id])

    @staticmethod
    def _tell(done: asyncio.Future[None], error: BaseException | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _ring(self, calls: Sequence[Call]) -> dict[Call, BaseException]:
        """Lay requests down and ring; returns what is wrong with those that cannot be written."""
        unfit: dict[Call, BaseException] = {}
        blobs: dict[Call, wire.Blobs] = {}
        for call in calls:
            try:
                submission = wire.Submission(request=call.request, consumer_id=self._consumer_id)
                blobs[call] = wire.packed(submission)
            except (msgspec.MsgspecError, OverflowError, TypeError) as error:
                unfit[call] = error
        life_s = settings.BASALT.accept_seconds + 1
        wire.put_submissions(valkey.connection(), blobs.values(), life_s)
        for call in blobs:
            call.rung = True
        for part in self._parts(list(blobs)):
            self._send(part)
        return unfit

    def _parts(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Yield the calls of each model in as many parts as workers may take them."""
        for model_id in {call.model_id for call in calls}:
            own = [call for call in calls if call.model_id == model_id]
            workers = max(1, self.workers.get(model_id, 1))
            for number in range(min(workers, len(own))):
                yield own[number::workers]

    @staticmethod
    def _send(calls: Sequence[Call]) -> None:
        current_app.send_task(
            RING,
            args=[call.request.request_id for call in calls],
            queue=queue_of(calls[0].model_id),
            expires=60,
            ignore_result=True,
            retry=False,
        )
