"""Places of a key's Completions, of requests in flight to a model, and of reads that wait.

A place is a member of a sorted set in Valkey, scored by the time at which its lease runs out, by
Valkey's own clock. Whoever holds places renews them from one thread of its process; when the
process dies, its places are free one lease later, whatever else happens (C-370, C-371, C-375).
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import TypeVar, cast

import redis
import structlog
from django.conf import settings

from completions.database import to_its_end
from completions.failures import queue_full
from inference import valkey
from inference.client import LOST

log = structlog.get_logger()

Found = TypeVar("Found")
LEASE_MS = 10_000
LOOK_SECONDS = 0.05
"""How often the first of a process's Completions in a line looks whether it is its turn."""

_PURGE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function purge(set) redis.call('ZREMRANGEBYSCORE', set, '-inf', now) end
"""

# KEYS running, line, alive, counter; ARGV member, lease, most running, most waiting.
# Answers 1 for a place, 0 when the line is full, minus its number for a turn in the line.
_ENTER = (
    _PURGE
    + """
purge(KEYS[1])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
  redis.call('ZREM', KEYS[2], member)
end
purge(KEYS[3])
local free = tonumber(ARGV[3]) - redis.call('ZCARD', KEYS[1])
local rank = redis.call('ZRANK', KEYS[2], ARGV[1])
local number = redis.call('ZSCORE', KEYS[2], ARGV[1])
local ahead = rank or redis.call('ZCARD', KEYS[2])
if ahead < free then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], 2 * ARGV[2])
  return 1
end
if not rank then
  if ahead >= tonumber(ARGV[4]) then return 0 end
  number = redis.call('INCR', KEYS[4])
  redis.call('ZADD', KEYS[2], number, ARGV[1])
end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], 2 * ARGV[2]) end
return -tonumber(number)
"""
)

# KEYS sets; ARGV member, lease, then the most of each set. Answers 1 for a place in every set, 0
# when one of them has none.
_TAKE = (
    _PURGE
    + """
for i, set in ipairs(KEYS) do
  purge(set)
  if redis.call('ZCARD', set) >= tonumber(ARGV[i + 2]) then return 0 end
end
for _, set in ipairs(KEYS) do
  redis.call('ZADD', set, now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', set, 2 * ARGV[2])
end
return 1
"""
)

# KEYS sets; ARGV lease, then a member for each set. Puts back what a restarted Valkey forgot.
_RENEW = (
    _PURGE
    + """
for i, set in ipairs(KEYS) do
  redis.call('ZADD', set, now + ARGV[1], ARGV[i + 1])
  redis.call('PEXPIRE', set, 2 * ARGV[1])
end
"""
)

# KEYS set; answers how many places of it are taken.
_COUNT = _PURGE + "purge(KEYS[1]) return redis.call('ZCARD', KEYS[1])"


def _running(key_id: str) -> str:
    return f"{valkey.PREFIX}places:running:{key_id}"


def _line(key_id: str) -> list[str]:
    return [f"{valkey.PREFIX}places:{part}:{key_id}" for part in ("line", "alive", "counter")]


def _alive(key_id: str) -> str:
    return _line(key_id)[1]


def _in_flight(model_id: str) -> str:
    return f"{valkey.PREFIX}places:model:{model_id}"


_WAITS = f"{valkey.PREFIX}places:waits"


def _waits(key_id: str) -> str:
    return f"{_WAITS}:{key_id}"


class ModelFull(Exception):
    """The model has its most requests in flight."""


class Places:
    """The places that this process holds, and the thread that renews them."""

    def __init__(self, connection: redis.Redis) -> None:
        self._enter = connection.register_script(_ENTER)
        self._take = connection.register_script(_TAKE)
        self._renew = connection.register_script(_RENEW)
        self._count = connection.register_script(_COUNT)
        self._valkey = connection
        self._held: set[tuple[str, str]] = set()
        self._lines: dict[str, dict[tuple[int, str], asyncio.Event]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._renew_forever, name="places", daemon=True).start()

    def in_flight(self, model_id: str) -> int:
        """Return how many requests a model has in flight, from every process."""
        return cast("int", self._count(keys=[_in_flight(model_id)]))

    def running(self, key_id: str) -> int:
        """Return how many Completions of a key run."""
        return cast("int", self._count(keys=[_running(key_id)]))

    def _try_key(self, key_id: str, member: str) -> int:
        env = settings.BASALT
        keys = [_running(key_id), *_line(key_id)]
        limits = [LEASE_MS, env.max_inflight_per_key, env.max_queued_per_key]
        with self._lock:
            answer = cast("int", self._enter(keys=keys, args=[member, *limits]))
            waits = (_alive(key_id), member)
            if answer == 1:
                self._held.add((_running(key_id), member))
                self._held.discard(waits)
            elif answer < 0:
                self._held.add(waits)
        return answer

    def try_sets(self, most: dict[str, int], member: str) -> bool:
        """Take a place in each of these sets, which hold so many at most, or in none."""
        with self._lock:
            limits = [LEASE_MS, *most.values()]
            taken = bool(self._take(keys=list(most), args=[member, *limits]))
            if taken:
                self._held |= {(name, member) for name in most}
        return taken

    def _leave(self, member: str, sets: list[str]) -> None:
        with self._lock:
            self._held -= {(name, member) for name in sets}
            with contextlib.suppress(*LOST), self._valkey.pipeline(transaction=False) as pipe:
                for name in sets:
                    pipe.zrem(name, member)
                pipe.execute()

    def _renew_forever(self) -> None:
        while True:
            threading.Event().wait(LEASE_MS / 4000)
            with self._lock, contextlib.suppress(*LOST):
                held = sorted(self._held)
                for start in range(0, len(held), 500):
                    part = held[start : start + 500]
                    self._renew(
                        keys=[name for name, _ in part],
                        args=[LEASE_MS, *(member for _, member in part)],
                    )

    @contextlib.asynccontextmanager
    async def of_request(self, member: str) -> AsyncIterator["OwnPlaces"]:
        """The places that one request takes in the context; they go back together at its end."""
        own = OwnPlaces(self, member)
        try:
            yield own
        finally:
            if own.sets:
                await asyncio.shield(asyncio.to_thread(self._leave, member, own.sets))

    async def stand_in_line(self, key_id: str, member: str) -> bool:
        """Take one of the key's places, waiting for it; False when the line is full."""
        answer = await self._look(key_id, member)
        if answer < 0:
            answer = await self._wait(key_id, member, -answer)
        return answer == 1

    async def _wait(self, key_id: str, member: str, number: int) -> int:
        """Wait in the line: of this process's Completions there only the first looks.

        None of them can have its turn before it, and the line's keys live on by its looks. A
        restarted Valkey counts anew, so a number alone may stand for two.
        """
        line = self._lines.setdefault(key_id, {})
        waiter = (number, member)
        line[waiter] = asyncio.Event()
        line[min(line)].set()
        try:
            await line[waiter].wait()
            while (answer := await self._look(key_id, member)) < 0:
                await asyncio.sleep(LOOK_SECONDS)
            return answer
        finally:
            del line[waiter]
            if line:
                line[min(line)].set()
            else:
                self._lines.pop(key_id, None)

    async def _look(self, key_id: str, member: str) -> int:
        return await to_its_end(asyncio.to_thread(self._try_key, key_id, member))

    @contextlib.asynccontextmanager
    async def of_wait(self, key_id: str, member: str) -> AsyncIterator[bool]:
        """Hold a place for a read that waits; False when the key or all have their most (C-490)."""
        env = settings.BASALT
        most = {_waits(key_id): env.max_longpolls_per_key, _WAITS: env.max_longpolls}
        try:
            yield await to_its_end(asyncio.to_thread(self.try_sets, most, member))
        finally:
            await asyncio.shield(asyncio.to_thread(self._leave, member, list(most)))


class OwnPlaces:
    """The places of one request."""

    def __init__(self, places: Places, member: str) -> None:
        self.sets: list[str] = []
        """Where it may have a place, or stand in a line."""
        self._places = places
        self._member = member

    async def of_key(self, key_id: str) -> None:
        """Take one of the key's places, waiting in its line for it.

        Raises:
            Failure: `queue_full`.
        """
        self.sets += [_running(key_id), *_line(key_id)[:2]]
        env = settings.BASALT
        if not await self._places.stand_in_line(key_id, self._member):
            raise queue_full(env.max_inflight_per_key, env.max_queued_per_key)

    async def of_model(self, model_id: str, first: Callable[[], Found]) -> Found:
        """Take one of the model's places in flight, after `first()` in the same thread.

        Returns what `first` returned.

        Raises:
            ModelFull: when all are taken. What `first` raises: nothing is taken then.
        """
        self.sets.append(_in_flight(model_id))
        most = {_in_flight(model_id): settings.BASALT.max_inflight_per_model}

        def take() -> Found:
            found = first()
            if not self._places.try_sets(most, self._member):
                raise ModelFull(model_id)
            return found

        return await to_its_end(asyncio.to_thread(take))


@cache
def places() -> Places:
    """Return this process's places."""
    return Places(valkey.connection())
