"""Server-sent events of a page: one form of answer, for whoever follows something."""

from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, StreamingHttpResponse

from accounts.models import User

HERE = b": here\n\n"
"""Opens a stream, so that the page knows that it listens."""
KEEPALIVE = b": keepalive\n\n"
"""Keeps a line open, and finds out whether the page has left."""


async def follower(request: HttpRequest) -> User | None:
    """Return the User who is signed in; None for anyone else."""
    user = await request.auser()
    return user if isinstance(user, User) else None


async def _holding_nothing(told: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    # What the request read until now it read in a thread of its own, whose connection Django gives
    # back when the answer ends: as many pages as connections would hold them all.
    await sync_to_async(connections.close_all)()
    async for part in told:
        yield part


def event_stream(told: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """Answer with events as they come; Django ends `told` when the page leaves."""
    shown = _holding_nothing(told)
    answer = StreamingHttpResponse(shown, content_type="text/event-stream; charset=utf-8")
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


def event(name: str, data: bytes, *, place: str = "") -> bytes:
    """Return one event; `place` is its id, by which a page goes on after a broken line."""
    at = f"id: {place}\n" if place else ""
    return f"{at}event: {name}\ndata: ".encode() + data + b"\n\n"
