"""The breaker of each model: after failures in a row Inference gets a pause (C-376 to C-381).

The state lives in Valkey, so that every web process and runner sees one breaker, and each change
is one script. A hash holds the failures in a row and the time until which the breaker is open, by
Valkey's own clock. That time is also the name of the period: a request notes it when it enters,
and its outcome counts only while the same period lasts, so that what began before the breaker
opened neither closes nor opens it again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import cast

import redis
import structlog
from django.conf import settings

from completions.failures import ErrorType, Failure, circuit_open, seconds_up
from inference import valkey
from inference.client import LOST
from inference.fleet import Fleet

log = structlog.get_logger()

_READ = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local open_until = tonumber(redis.call('HGET', KEYS[1], 'until') or '0')
"""

# KEYS state. Answers the milliseconds that it stays open, the period, and the failures in a row.
_LOOK = (
    _READ
    + """
local failures = tonumber(redis.call('HGET', KEYS[1], 'failures') or '0')
return {math.max(open_until - now, 0), open_until, failures}
"""
)

# KEYS state; ARGV the period in which the request entered, failures that open, milliseconds open.
# Answers the failures in a row when this one opened the breaker, else 0.
_FAIL = (
    _READ
    + """
if open_until ~= tonumber(ARGV[1]) then return 0 end
local failures = redis.call('HINCRBY', KEYS[1], 'failures', 1)
redis.call('PEXPIRE', KEYS[1], 86400000)
if open_until == 0 and failures < tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[3]))
return failures
"""
)

# KEYS state; ARGV the period in which the request entered.
_SUCCEED = (
    _READ
    + """
if open_until == tonumber(ARGV[1]) then redis.call('DEL', KEYS[1]) end
"""
)


class BreakerName(StrEnum):
    """The states of a breaker, as `/health` names them (C-632)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class BreakerState:
    """What a breaker is at one moment."""

    failures: int
    """Failures of Inference in a row."""
    open_ms: int
    """Milliseconds that it stays open; 0 when it lets requests through."""
    period: int
    """The time until which it was opened last, by Valkey's clock in ms; 0 when it is closed."""

    @property
    def name(self) -> BreakerName:
        """Closed, open, or half open: it has been open and the next requests try (C-378)."""
        if self.period == 0:
            return BreakerName.CLOSED
        return BreakerName.OPEN if self.open_ms > 0 else BreakerName.HALF_OPEN

    @property
    def open_seconds(self) -> int | None:
        """Whole seconds that it stays open, or None when it is not open."""
        return seconds_up(self.open_ms / 1000) if self.open_ms > 0 else None


def counts_as_failure(error: BaseException | None) -> bool:
    """Whether an ending says that Inference failed: an upstream error with a 5xx (U-34)."""
    return isinstance(error, Failure) and error.type is ErrorType.UPSTREAM and error.status >= 500


class Breakers:
    """The breakers of all models."""

    def __init__(self, connection: redis.Redis) -> None:
        self._look = connection.register_script(_LOOK)
        self._fail = connection.register_script(_FAIL)
        self._succeed = connection.register_script(_SUCCEED)
        self._fleet = Fleet(connection)

    def state(self, model_id: str) -> BreakerState:
        """Return what the breaker of a model is now.

        Raises:
            redis.exceptions.RedisError: when Valkey cannot be reached.
        """
        open_ms, period, failures = cast("list[int]", self._look(keys=[_state(model_id)]))
        return BreakerState(failures, open_ms, period)

    def enter(self, model_id: str) -> int:
        """Let a request through and return the period in which it entered.

        Raises:
            Failure: `circuit_open`, while the breaker is open (C-377).
            redis.exceptions.RedisError: when Valkey cannot be reached.
        """
        state = self.state(model_id)
        if state.open_ms > 0:
            raise circuit_open(model_id, seconds_up(state.open_ms / 1000))
        return state.period

    async def note_success(self, model_id: str, period: int) -> None:
        """Count an answer of Inference: it ends a row of failures (C-378, C-379, C-134)."""
        await self._note(self._succeeded, model_id, period)

    async def note_failure(self, model_id: str, period: int) -> None:
        """Count a failure of Inference (C-376, C-378)."""
        await self._note(self._failed, model_id, period)

    async def _note(self, write: Callable[[str, int], None], model_id: str, period: int) -> None:
        try:
            await asyncio.to_thread(write, model_id, period)
        except LOST as lost:
            log.warning("an outcome was not counted", model=model_id, cause=str(lost))

    def _succeeded(self, model_id: str, period: int) -> None:
        self._fleet.note_answer(model_id)
        self._succeed(keys=[_state(model_id)], args=[period])

    def _failed(self, model_id: str, period: int) -> None:
        env = settings.BASALT
        args = [period, env.breaker_failures, int(env.breaker_seconds * 1000)]
        opened_by = self._fail(keys=[_state(model_id)], args=args)
        if opened_by:
            log.warning("a breaker opened", model=model_id, failures=opened_by)


def _state(model_id: str) -> str:
    return f"{valkey.PREFIX}breaker:{model_id}"


@cache
def breakers() -> Breakers:
    """Return this process's view of the breakers."""
    return Breakers(valkey.connection())
