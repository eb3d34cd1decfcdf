"""Requests that paid nothing, counted by how they ended.

A count goes into memory and is written every few seconds, because a refusal must stay cheap: it
touches no table of its own. A process that is killed loses the counts of its last seconds.
"""

import atexit
import threading
import time
from collections import Counter
from datetime import UTC, date, datetime

import structlog
from django.db import DatabaseError, connection, transaction

from billing.models import Ending, Source

log = structlog.get_logger()

WRITE_SECONDS = 5.0

Count = tuple[date, Source, str, Ending]
"""What is counted apart: the UTC day, the source, the model (or "") and the ending."""


class Endings:
    """The counts of this process that are not written yet."""

    def __init__(self) -> None:
        self._counts: Counter[Count] = Counter()
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def note(self, *, source: Source, model: str, ending: Ending) -> None:
        """Count one request that ended now; takes no time and never fails."""
        with self._lock:
            self._counts[(datetime.now(UTC).date(), source, model, ending)] += 1
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write_forever, name="endings", daemon=True
                )
                self._writer.start()
                atexit.register(self.write)

    def write(self) -> None:
        """Add what was counted to the days; it is kept for the next try when that fails."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                # In one order, so that two processes cannot wait for each other.
                for (day, source, model, ending), requests in sorted(counts.items()):
                    cursor.execute(ADD, [day, source.value, model, ending.value, requests])
        except DatabaseError as error:
            log.warning("endings not written", cause=str(error).strip().split("\n")[0])
            with self._lock:
                self._counts.update(counts)
        finally:
            connection.close()

    def _write_forever(self) -> None:
        while True:
            time.sleep(WRITE_SECONDS)
            self.write()


ADD = """
INSERT INTO billing_unpaidrequests AS u (day, source, model, ending, requests)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT ON CONSTRAINT unpaid_requests_once DO UPDATE
SET requests = u.requests + excluded.requests
"""

_endings = Endings()


def endings() -> Endings:
    """Return the counts of this process."""
    return _endings
