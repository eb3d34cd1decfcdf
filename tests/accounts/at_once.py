"""Calls made at the same moment, each on a database connection of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from django.db import connections

Result = TypeVar("Result")

THREADS = 6
"""Fewer than a process has connections, because a test's own thread holds one as well."""


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result | Exception]:
    """Run the calls on `THREADS` threads that start together; return each one's value or error."""
    start = Barrier(min(THREADS, len(calls)))

    def begin(index: int) -> Result | Exception:
        if index < start.parties:
            start.wait(timeout=30)
        try:
            return calls[index]()
        except Exception as error:  # noqa: BLE001 - the error is the result
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=start.parties) as pool:
        return list(pool.map(begin, range(len(calls))))
