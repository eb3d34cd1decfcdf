"""The stream consumer: what answers a request that may wait, without holding a thread.

The work runs in a task of its own, so that a client that leaves is heard at once, also while the
work waits or sends. Daphne's `Server` of `config.server` makes `send` wait for a slow reader.
"""

import asyncio
import contextlib
from abc import abstractmethod
from typing import Any, cast

import structlog
from asgiref.typing import HTTPDisconnectEvent, HTTPRequestEvent
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer

from accounts.keys import KeyState
from api.app import OPERATION
from api.authentication import Headers, authenticate, client_address
from api.edge import TOO_LARGE, answer_failure, request_id
from api.errors import too_large
from api.limits import Bucket
from api.routing import Operation
from completions.database import in_database, is_busy
from completions.failures import ClientLeft, Failure, database_busy, internal

log = structlog.get_logger()

_running_on: set[asyncio.Task[None]] = set()


def running_on() -> int:
    """Return how many requests run that may have no client any more."""
    return len(_running_on)


class StreamConsumer(AsyncHttpConsumer):  # type: ignore[misc]
    """Answers one request: subclasses write `answer`."""

    scope: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task: asyncio.Task[None] | None = None
        self._runs_on = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer; when this is cancelled, the work ends before it returns."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._cancel()

    @abstractmethod
    async def answer(self, body: bytes, key: KeyState) -> None:
        """Write the answer.

        Raises:
            Failure: before anything was sent; it becomes the answer.
        """

    def enter(self, headers: Headers, address: str, bucket: Bucket) -> KeyState:
        """Return the state of the request's key, see `authenticate`. Runs in a thread."""
        return authenticate(headers, address, bucket)

    def leave(self) -> None:
        """Called once when the client has left, before the work is cancelled."""

    def run_on(self) -> None:
        """From now on the work goes on when the client leaves (C-399)."""
        assert self._task is not None
        self._runs_on = True
        _running_on.add(self._task)
        self._task.add_done_callback(_running_on.discard)

    async def http_request(self, message: HTTPRequestEvent) -> None:
        """Collect the body, then start the work."""
        self.body.append(message.get("body", b""))
        if not message.get("more_body"):
            self._task = asyncio.create_task(self._work(b"".join(self.body)))
            self.body.clear()

    async def http_disconnect(self, message: HTTPDisconnectEvent) -> None:
        """End: after a whole answer, or because the client left."""
        if self._task is not None and not self._task.done() and not self._runs_on:
            self.leave()
        await self._cancel()
        raise StopConsumer

    async def _cancel(self) -> None:
        if self._task is None or self._runs_on:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _work(self, body: bytes) -> None:
        try:
            await self.answer(body, await self._admit())
        except ClientLeft:
            return
        except Failure as failure:
            await self._refuse(failure)
        except Exception as error:
            if is_busy(error):
                await self._refuse(database_busy())
                return
            log.exception("a stream consumer failed", request_id=self.request_id)
            await self._refuse(internal())

    async def _refuse(self, failure: Failure) -> None:
        with contextlib.suppress(ClientLeft):
            await answer_failure(failure, self.scope, self.send)

    async def _admit(self) -> KeyState:
        """Check the key, then the size of the body (C-002, C-041)."""
        operation = cast("Operation", self.scope[OPERATION])
        assert operation.bucket is not None
        peer = self.scope["client"]
        headers = self.scope["headers"]
        address = client_address(peer[0] if peer else None, headers)
        key = await in_database(self.enter, headers, address, operation.bucket)
        if self.scope.get(TOO_LARGE):
            raise too_large(self.scope[TOO_LARGE])
        return key

    @property
    def request_id(self) -> str:
        """The request's id."""
        return request_id(self.scope)
