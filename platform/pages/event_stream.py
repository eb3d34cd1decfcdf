"""Server-sent events of a page: one form of answer, for whoever follows something."""

from collections.abc import AsyncIterator

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


def event_stream(told: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """Answer with events as they come; Django ends `told` when the page leaves."""
    answer = StreamingHttpResponse(told, content_type="text/event-stream; charset=utf-8")
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


def event(name: str, data: bytes, *, place: str = "") -> bytes:
    """Return one event; `place` is its id, by which a page goes on after a broken line."""
    at = f"id: {place}\n" if place else ""
    return f"{at}event: {name}\ndata: ".encode() + data + b"\n\n"
