"""Database work of code that runs in an event loop.

A request that waits must not hold a thread or a connection: each call runs in a thread of its own
and gives its connection back before it returns. There are more threads than connections, so that
it is the pool that says when the database is busy, after a bounded wait (C-094).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import OperationalError, connection
from psycopg_pool import PoolTimeout

WAITING_CALLS = 64
"""Calls that may wait for a connection at once; beyond them a call waits for one of these."""

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _threads() -> ThreadPoolExecutor:
    calls = settings.BASALT.db_pool_size + WAITING_CALLS
    return ThreadPoolExecutor(calls, thread_name_prefix="database")


async def in_database(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a synchronous function that uses the database, in a thread of its own.

    Raises whatever the function raises; see `is_busy` for a database that had no connection.
    """
    call = partial(_call, partial(function, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work in a thread that must not be left half done: a cancellation waits for its end.

    Whoever cleans up after it then finds what it did.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _detached(asyncio.wait([task]))
        raise


async def or_undone(work: Awaitable[T], undo: Callable[[T], Awaitable[object]]) -> T:
    """Await work whose result must not be lost: a cancellation undoes what was done."""
    task = asyncio.ensure_future(work)

    async def undo_it() -> None:
        await asyncio.wait([task])
        if task.exception() is None:
            await undo(task.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _detached(undo_it())
        raise


_tidying: set[asyncio.Task[object]] = set()


async def _detached(work: Coroutine[object, object, object]) -> None:
    """Await work that goes on by itself when this is cancelled once more."""
    task = asyncio.ensure_future(work)
    _tidying.add(task)
    task.add_done_callback(_tidying.discard)
    await asyncio.shield(task)


def _call(function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        # Inside a test's transaction the connection is the test's own.
        if not connection.in_atomic_block:
            connection.close()


def is_busy(error: BaseException | None) -> bool:
    """Whether an error means that no connection was free in time (C-094)."""
    return isinstance(error, OperationalError) and isinstance(error.__cause__, PoolTimeout)
