"""Rate limits that hold across web processes: buckets in Valkey, taken from in one script.

A bucket has a size and refills evenly; it is full when nobody has used it for a minute.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import cast

from django.conf import settings
from redis.commands.core import Script

from completions.failures import ErrorType, Failure, seconds_up
from inference import valkey
from inference.client import LOST

# KEYS buckets; ARGV for each: size, milliseconds for one token, tokens to take (-1: give back).
# Keeps the time at which a bucket will be full. Answers 0, or the milliseconds to wait for the
# first that has too few; those after it stay as they are.
_TAKE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
for i, bucket in ipairs(KEYS) do
  local size, each, take = unpack(ARGV, 3 * i - 2, 3 * i)
  local full = math.max(tonumber(redis.call('GET', bucket) or '0'), now)
  local after = math.max(full + take * each, now)
  if tonumber(take) > 0 and after - now > size * each then
    return math.ceil(after - now - size * each)
  end
  if after > now then
    redis.call('SET', bucket, string.format('%.3f', after), 'PX', math.ceil(after - now))
  else
    redis.call('DEL', bucket)
  end
end
return 0
"""


class Bucket(StrEnum):
    """The two buckets of a key (C-365)."""

    WORK = "work"
    OTHER = "other"


@cache
def _script() -> Script:
    return valkey.connection().register_script(_TAKE)


@dataclass(frozen=True)
class RateBucket:
    """One bucket of so many requests a minute."""

    name: str
    per_minute: int
    whose: str
    """Whose requests it counts, for the message."""

    def take(self, *, giving_back: "RateBucket | None" = None) -> None:
        """Take one request, after giving one back to another bucket.

        Raises:
            Failure: 429 `rate_limited`, with the seconds to wait (C-085, C-367).
        """
        back = [] if giving_back is None else [(giving_back, -1)]
        if wait_ms := _run(*back, (self, 1)):
            seconds = seconds_up(wait_ms / 1000)
            raise Failure(
                429,
                f"{self.whose} may make {self.per_minute} requests a minute. "
                f"Try again in {seconds} seconds.",
                "rate_limited",
                ErrorType.RATE_LIMIT,
                retry_after=seconds,
            )

    def try_take(self) -> int:
        """Take one request if there is one; returns 0, or the whole seconds to wait."""
        wait_ms = _run((self, 1))
        return seconds_up(wait_ms / 1000) if wait_ms > 0 else 0

    def give_back(self) -> None:
        """Give one request back."""
        _run((self, -1))


def _run(*moves: tuple[RateBucket, int]) -> int:
    """Run the script; while Valkey is away, nothing is limited, so that it costs no answer."""
    keys = [f"{valkey.PREFIX}rate:{bucket.name}" for bucket, _ in moves]
    args = [
        number
        for bucket, take in moves
        for number in (bucket.per_minute, 60_000 / bucket.per_minute, take)
    ]
    try:
        return cast("int", _script()(keys=keys, args=args))
    except LOST:
        return 0


def bad_key_bucket(address: str) -> RateBucket:
    """The bucket of refused keys of one address (C-017, C-652)."""
    most = settings.BASALT.bad_key_limit_per_minute
    return RateBucket(f"address:{address}", most, "One address with refused API keys")


def key_bucket(key_id: str, bucket: Bucket) -> RateBucket:
    """One of the two buckets of a key (C-364)."""
    most = settings.BASALT.rate_limit_per_minute
    return RateBucket(f"{bucket.value}:{key_id}", most, "An API key")


def app_bucket(user_id: str) -> RateBucket:
    """What a User may start in the App, apart from every key's limits (A-122, A-571)."""
    most = settings.BASALT.rate_limit_per_minute
    return RateBucket(f"app:{user_id}", most, "A User of the App")
