"""A server that is away: told of once, tried again with growing pauses, told of when it is back."""

import time

import structlog

log = structlog.get_logger()

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 5.0
"""Seconds between two tries; a server that is back is found within the longest."""


class Outage:
    """What one thing that is tried again and again says of the failures that it meets.

    The first of a row of failures is logged and so is the success that ends the row; what lies
    between would only say the same again.
    """

    def __init__(self, away: str, back: str, **what: str) -> None:
        """`away` and `back` are the lines of the log, `what` goes with both."""
        self._away, self._back, self._what = away, back, what
        self._since: float | None = None
        self._next_pause = FIRST_PAUSE
        self._until = 0.0

    def failed(self, cause: BaseException) -> None:
        """Note a failure."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.warning(self._away, **self._what, cause=str(cause).strip())
        self._until = now + self._next_pause
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)

    def over(self) -> None:
        """Note a success."""
        if self._since is not None:
            log.info(self._back, **self._what, seconds=round(time.monotonic() - self._since, 1))
        self._since, self._next_pause, self._until = None, FIRST_PAUSE, 0.0

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try; 0 when the last one succeeded."""
        return max(0.0, self._until - time.monotonic())
