"""Connections to Valkey, and the names of everything that inference keeps there."""

from functools import cache

import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

PREFIX = "basalt:"


def worker_set(model_id: str) -> str:
    """Set of the ids of a model's workers."""
    return f"{PREFIX}workers:{model_id}"


def worker_report(worker_id: str) -> str:
    """A worker's report; it expires when the worker stops reporting."""
    return f"{PREFIX}worker:{worker_id}"


def demand(model_id: str) -> str:
    """Since when a request waits for a model; it expires when nobody waits any more."""
    return f"{PREFIX}demand:{model_id}"


def floor(model_id: str) -> str:
    """Since when a window keeps a model warm; it expires when nobody repeats it."""
    return f"{PREFIX}floor:{model_id}"


def answered(model_id: str) -> str:
    """Mark that a model answered lately; a worker that retires takes it away."""
    return f"{PREFIX}answered:{model_id}"


def consumer_alive(consumer_id: str) -> str:
    """Mark of a living consumer of events."""
    return f"{PREFIX}consumer:{consumer_id}"


def events(consumer_id: str) -> str:
    """Stream of the events for one consumer process."""
    return f"{PREFIX}events:{consumer_id}"


def control(model_id: str) -> str:
    """Stream of aborts that every worker of a model reads."""
    return f"{PREFIX}control:{model_id}"


def submission(request_id: str) -> str:
    """Where a submitted request lies until a worker takes it."""
    return f"{PREFIX}request:{request_id}"


def aborted(request_id: str) -> str:
    """Mark that a request was aborted before a worker took it."""
    return f"{PREFIX}aborted:{request_id}"


@cache
def connection() -> redis.Redis:
    """This process's connection pool; a lost connection is tried once more, then an error.

    Raises:
        redis.exceptions.ConnectionError: from its commands, when Valkey is not there.
    """
    return redis.Redis.from_url(
        settings.BASALT.valkey_url,
        socket_timeout=5,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 1),
        retry_on_error=[redis.exceptions.ConnectionError],
        max_connections=64,
    )


def reader() -> redis.asyncio.Redis:
    """A connection that waits for events; it never connects again by itself.

    Whoever waits must know when the connection broke, as events may have been lost with it.
    """
    return redis.asyncio.Redis.from_url(
        settings.BASALT.valkey_url,
        socket_timeout=None,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 0),
        single_connection_client=True,
    )
