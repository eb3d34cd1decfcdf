"""`GET /v1/looms/{loom_id}/stream`: the Nodes of a Loom, and what becomes of those that grow."""

import asyncio
import contextlib
from typing import Any

import structlog
from django.conf import settings

from accounts.keys import KeyState
from api.app import PARAMETERS
from api.completions import STREAM_HEADERS, clock
from api.errors import late_error_body
from api.path_ids import path_id
from api.stream import StreamConsumer
from completions.database import is_busy
from completions.failures import ClientLeft, Failure, database_busy, internal
from completions.payloads import DONE, KEEPALIVE
from looms.following import follow
from looms.reads import LoomMissing
from looms.refusals import refusal

log = structlog.get_logger()


class StreamLoom(StreamConsumer):
    """Follows one Loom for one client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = False
        self._over = False
        self._sending = asyncio.Lock()

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Send events until nothing grows (C-556, C-557); an error ends a stream (C-559)."""
        loom_id = path_id(self.scope[PARAMETERS], "loom_id")
        every = settings.BASALT.keepalive_seconds
        async with clock(every, every, self._keep_alive):
            try:
                async with contextlib.aclosing(follow(key.user_id, loom_id)) as events:
                    async for data in events:
                        await self._write(data)
            except LoomMissing as missing:
                raise refusal(missing) from None
            except ClientLeft:
                raise
            except Exception as error:
                if not self._started:
                    raise
                failure = self._failure(error)
                await self._write(b"data: " + late_error_body(failure, self.request_id) + b"\n\n")
            await self._write(DONE, more=False)

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, Failure):
            return error
        if is_busy(error):
            return database_busy()
        log.error("a Loom cannot be read", request_id=self.request_id, exc_info=error)
        return internal()

    async def _keep_alive(self) -> None:
        if self._started and not self._over:
            await self._write(KEEPALIVE)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        async with self._sending:
            if self._over:
                return
            if not self._started:
                self._started = True
                await self.send(
                    {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
                )
            self._over = not more
            await self.send({"type": "http.response.body", "body": data, "more_body": more})
