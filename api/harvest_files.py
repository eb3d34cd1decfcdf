"""The files of harvests by their links: no key, a signature instead, ranges, and nothing kept.

A file is read piece by piece as the client takes it: Django's `FileResponse` would read it whole
into memory under ASGI and knows no ranges.
"""

import asyncio
import os
from email.utils import formatdate
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs
from uuid import UUID

import structlog

from api.app import PARAMETERS
from api.authentication import header
from api.edge import TRICKLES, App, Receive, Scope, Send, answer_body, answer_failure
from api.errors import Headers
from api.ranges import Span, Unsatisfiable, span_of
from completions.database import in_database, is_busy
from completions.failures import Failure, database_busy
from harvests.files import opened_by

log = structlog.get_logger()

PIECE_BYTES = 1024 * 1024
TYPES = {".json": b"application/json", ".safetensors": b"application/octet-stream"}


class ReadHarvestFile:
    """Answers one link."""

    @classmethod
    def as_asgi(cls) -> App:
        """Return the ASGI application."""
        return cls()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the file, a part of it, or a refusal that says nothing of it."""
        # Bytes of a file go out as they are: a range of a compressed answer would be another one.
        scope[TRICKLES] = True
        try:
            path = await _opened(scope)
            opened = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        except Failure as failure:
            await answer_failure(failure, scope, send)
            return
        except OSError as error:
            log.error("a harvest's file cannot be read", cause=str(error))
            await answer_failure(_gone(), scope, send)
            return
        except Exception as error:
            if not is_busy(error):
                raise
            await answer_failure(database_busy(), scope, send)
            return
        try:
            await _answer(path, opened, scope, send)
        finally:
            os.close(opened)


async def _opened(scope: Scope) -> Path:
    """Return the file of a link that works.

    Raises:
        Failure: 403, whatever is wrong with the link.
    """
    parameters = cast("dict[str, str]", scope[PARAMETERS])
    query = parse_qs(cast("bytes", scope["query_string"]).decode("latin-1"))
    expires, signature = (query.get(name, [""])[-1] for name in ("expires", "signature"))
    try:
        harvest_id = UUID(parameters["job_id"])
    except ValueError:
        raise _refused() from None
    path = await in_database(opened_by, harvest_id, parameters["file"], expires, signature)
    if path is None:
        raise _refused()
    return path


def _refused() -> Failure:
    return Failure(
        403,
        "This link does not work: it has run out, or it is not whole. Read the harvest again for"
        " new links.",
    )


def _gone() -> Failure:
    return Failure(404, "This file is not in the storage any more.")


async def _answer(path: Path, opened: int, scope: Scope, send: Send) -> None:
    about = os.fstat(opened)
    tag = f'"{about.st_size:x}-{about.st_mtime_ns:x}"'
    changed = formatdate(about.st_mtime, usegmt=True)
    headers: Headers = [
        (b"content-type", TYPES.get(path.suffix, b"application/octet-stream")),
        (b"content-disposition", f'attachment; filename="{path.name}"'.encode()),
        (b"accept-ranges", b"bytes"),
        (b"cache-control", b"private, no-transform"),
        (b"etag", tag.encode()),
        (b"last-modified", changed.encode()),
    ]
    asked = header(scope["headers"], b"range")
    unless = header(scope["headers"], b"if-range")
    try:
        span = span_of(asked if unless in (None, tag, changed) else None, about.st_size)
    except Unsatisfiable:
        headers.append((b"content-range", f"bytes */{about.st_size}".encode()))
        await answer_body(416, b"", headers, send)
        return
    status = 200
    if span is not None:
        status = 206
        shown = f"bytes {span.start}-{span.stop - 1}/{about.st_size}"
        headers.append((b"content-range", shown.encode()))
    whole = span or Span(0, about.st_size)
    headers.append((b"content-length", str(whole.stop - whole.start).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] != "HEAD":
        await _send_bytes(opened, whole, send)
    await send({"type": "http.response.body", "body": b""})


async def _send_bytes(opened: int, span: Span, send: Send) -> None:
    """Send a span piece by piece; `send` waits for the reader, so one piece is in memory."""
    start = span.start
    while start < span.stop:
        count = min(PIECE_BYTES, span.stop - start)
        piece = await asyncio.to_thread(os.pread, opened, count, start)
        if not piece:
            raise ConnectionAbortedError("the file became shorter while it was read")
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        start += len(piece)
