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

# KEYS bucket; ARGV size, milliseconds for one token, tokens to take (-1 gives one back).
# Keeps the time at which the bucket will be full; answers the milliseconds to wait, or 0.
_TAKE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
local size, each, take = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local after = math.max(full + take * each, now)
if take > 0 and after - now > size * each then
  return math.ceil(after - now - size * each)
end
if after > now then
  redis.call('SET', KEYS[1], string.format('%.3f', after), 'PX', math.ceil(after - now))
else
  redis.call('DEL', KEYS[1])
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

    def take(self) -> None:
        """Take one request.

        Raises:
            Failure: 429 `rate_limited`, with the seconds to wait (C-085, C-367).
        """
        if seconds := self.try_take():
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
        wait_ms = self._run(1)
        return seconds_up(wait_ms / 1000) if wait_ms > 0 else 0

    def give_back(self) -> None:
        """Give one request back."""
        self._run(-1)

    def _run(self, take: int) -> int:
        """Run the script; while Valkey is away, nothing is limited, so that it costs no answer."""
        args = [self.per_minute, 60_000 / self.per_minute, take]
        try:
            return cast("int", _script()(keys=[f"{valkey.PREFIX}rate:{self.name}"], args=args))
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
