"""Follows a Loom for its page: what grew as events, and a hint when the tree has another shape.

A Loom is its owner's alone, so few pages follow one; each reads only the Nodes that changed since
it last looked. What was missed is read again by the revision that the page names.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from completions.database import in_database
from looms.following import hints
from looms.models import Loom
from looms.reads import LoomMissing, loom_of, node_rows
from pages.event_stream import HERE, KEEPALIVE, event, event_stream, follower
from pages.loom_state import PageNode, page_nodes


class Grown(msgspec.Struct, frozen=True):
    """Nodes whose status or text changed, and the revision up to which they are told."""

    revision: int
    nodes: list[PageNode]


class Shape(NamedTuple):
    """What changes with the shape of a Loom, and not with what grows in it."""

    undo: int | None
    redo: int | None
    title: str
    is_pinned: bool


async def events(request: HttpRequest, loom_id: UUID) -> HttpResponseBase:
    """Stream what happens to a Loom from the revision `after` on, until the page leaves."""
    user = await follower(request)
    if user is None:
        return HttpResponse(status=401)
    try:
        loom = await in_database(loom_of, user.id, loom_id)
    except LoomMissing:
        raise Http404("there is no such Loom") from None
    after = request.GET.get("after", "")
    known = int(after) if after.isdecimal() and len(after) < 19 else loom.revision
    return event_stream(_told(user.id, loom, known))


async def _told(user_id: UUID, loom: Loom, known: int) -> AsyncIterator[bytes]:
    """Yield events; a comment now and then keeps the line open, and notices a page that left."""
    yield HERE
    shape: Shape | None = None
    async for is_news in hints(loom.id, settings.BASALT.keepalive_seconds):
        if not is_news:
            yield KEEPALIVE
        try:
            loom = await in_database(loom_of, user_id, loom.id)
        except LoomMissing:
            yield event("shape", b'{"revision":null}')
            return
        seen, shape = shape, shape_of(loom)
        # What changed before the line was there may have been the shape.
        is_other = loom.revision > known if seen is None else seen != shape
        if is_other:
            yield event("shape", b'{"revision":%d}' % loom.revision)
        if loom.revision > known:
            rows = await in_database(node_rows, loom.id, where=Q(changed__gt=known))
            known = max([loom.revision, *(row.changed for row in rows)])
            yield event("nodes", msgspec.json.encode(Grown(known, list(page_nodes(rows)))))


def shape_of(loom: Loom) -> Shape:
    """Return what tells one shape of a Loom from another."""
    return Shape(loom.undo, loom.redo, loom.title, loom.pinned_at is not None)
