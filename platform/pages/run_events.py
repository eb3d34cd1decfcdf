"""Follows a Run of the Playground for its page, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from jobs.models import Run
from jobs.run_events import News, follow
from pages.event_stream import HERE, KEEPALIVE, event, event_stream, follower


async def events(request: HttpRequest, number: int) -> HttpResponseBase:
    """Stream what a Run gains, from the event that `Last-Event-ID` or `after` names on.

    Each event `news` has an id, by which a page that was cut off goes on without a lost or a
    doubled character (A-240); the event `end` says that the Run stands whole on the server.
    """
    user = await follower(request)
    if user is None:
        return HttpResponse(status=401)
    run = await Run.objects.of(user.id).filter(number=number).only("id").afirst()
    if run is None:
        raise Http404("there is no such Run")
    after = request.headers.get("Last-Event-ID") or request.GET.get("after", "")
    return event_stream(_told(follow(run.id, after)))


async def _told(news: AsyncIterator[News]) -> AsyncIterator[bytes]:
    """Yield events; a comment now and then keeps the line open, and notices a page that left."""
    yield HERE
    coming = asyncio.ensure_future(anext(news))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=settings.BASALT.keepalive_seconds)
            if not done:
                yield KEEPALIVE
                continue
            yield _event(coming.result())
            coming = asyncio.ensure_future(anext(news))
    except StopAsyncIteration:
        return
    finally:
        coming.cancel()


def _event(news: News) -> bytes:
    state = b'"state": "' + news.state.value.encode() + b'"'
    if news.ended:
        return event("end", b"{" + state + b"}")
    gains = b", ".join(piece[1:-1] for piece in news.pieces)
    anew = b"true" if news.anew else b"false"
    data = b"{" + state + b', "anew": ' + anew + b', "gains": [' + gains + b"]}"
    return event("news", data, place=str(news.place))
