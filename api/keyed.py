"""What consumers share that take an `Idempotency-Key`: checks, the key, the answer of a repeat."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import DatabaseError

from accounts.keys import KeyState
from api import idempotency
from api.edge import Scope, Send, answer_body
from api.errors import Headers
from api.idempotency import Attempt, StoredAnswer
from completions.database import in_database, or_undone
from completions.generation import LATE_SETTLE_SECONDS
from completions.pieces import file_pieces

log = structlog.get_logger()

Given = TypeVar("Given")
Found = TypeVar("Found")
JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
CHECK_IN_THREAD_BYTES = 64 * 1024
"""A body above this size is read and checked in a thread."""


async def checked(check: Callable[[Given], Found], given: Given, body: bytes) -> Found:
    """Check something of a request, in a thread when its body is large."""
    if len(body) <= CHECK_IN_THREAD_BYTES:
        return check(given)
    return await asyncio.to_thread(check, given)


async def take_key(scope: Scope, value: object, key: KeyState) -> Attempt | StoredAnswer | None:
    """Take the request's `Idempotency-Key`: None without one, the first answer of a repeat.

    `value` is the JSON value of the body.

    Raises:
        Failure: 400 for a bad header, 409 `idempotency_conflict`, `running` or `no_answer`.
    """
    idempotency_key = idempotency.read_header(scope["headers"])
    if idempotency_key is None:
        return None
    method, path = scope["method"], scope["path"]
    same = await asyncio.to_thread(idempotency.fingerprint, method, path, value)
    taking = in_database(
        idempotency.take, user_id=key.user_id, key=idempotency_key, fingerprint=same
    )
    return await or_undone(taking, free_key)


async def free_key(taken: Attempt | StoredAnswer | None) -> None:
    """Free the key of a request that did nothing, however long the database is busy."""
    while isinstance(taken, Attempt):
        try:
            await in_database(taken.released)
            return
        except DatabaseError as busy:
            log.warning("a key is freed later", attempt=str(taken.id), cause=str(busy))
            await asyncio.sleep(LATE_SETTLE_SECONDS)


async def answer_again(answer: StoredAnswer, send: Send) -> None:
    """Send a kept answer."""
    kept = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    headers = [*JSON_HEADERS, *kept]
    if isinstance(answer.body, bytes):
        await answer_body(answer.status, answer.body, headers, send)
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    pieces = file_pieces(answer.body)
    while piece := await asyncio.to_thread(next, pieces, b""):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
