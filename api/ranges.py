"""One range of bytes of a file, as `Range` asks for it (RFC 9110, section 14)."""

import re
from dataclasses import dataclass

_ONE_RANGE = re.compile(r"bytes=\s*(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))\s*")


@dataclass(frozen=True)
class Span:
    """Bytes `start` to `stop - 1`."""

    start: int
    stop: int


class Unsatisfiable(Exception):
    """The range lies past the end of the file."""


def span_of(header: str | None, size: int) -> Span | None:
    """Return the span that a `Range` asks for; None for the whole file.

    A header that is no single range of bytes is passed over, as the standard allows.
    Raises Unsatisfiable for one that begins past the end.
    """
    found = _ONE_RANGE.fullmatch(header) if header is not None else None
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        if int(suffix) == 0 or size == 0:
            raise Unsatisfiable
        return Span(max(0, size - int(suffix)), size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return Span(start, min(size, int(last) + 1) if last else size)
