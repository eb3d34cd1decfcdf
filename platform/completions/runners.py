"""The runners of this site: each says when it last looked for work (C-631, C-686).

A runner writes its report from the loop that takes its messages, with the time of its last look
for work, so that either loop falls silent when it hangs. A report that is silent for five minutes
is of a runner that is gone for good.
"""

import time
from typing import cast

import msgspec
import redis

from inference import valkey

REPORTS = f"{valkey.PREFIX}runners"
POLL_SECONDS = 2.0
SILENT_SECONDS = 15.0
"""After so long without a look, a runner counts as stopped."""
FORGET_SECONDS = 300.0


class RunnerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One runner's last word."""

    name: str
    running: int
    polled_at: float
    """Unix seconds."""

    def silence(self, now: float) -> int:
        """Return the whole seconds since its last look."""
        return max(0, int(now - self.polled_at))


def report_runner(connection: redis.Redis, name: str, running: int, polled_at: float) -> None:
    """Write a runner's report; `polled_at` are the Unix seconds of its last look for work."""
    report = RunnerReport(name=name, running=running, polled_at=polled_at)
    connection.hset(REPORTS, name, msgspec.msgpack.encode(report))


def retire_runner(connection: redis.Redis, name: str) -> None:
    """Take a runner's report away: it stops as planned."""
    connection.hdel(REPORTS, name)


def runners(connection: redis.Redis) -> list[RunnerReport]:
    """Return the reports of the runners, by name; those that are gone for good are dropped."""
    raw = cast("dict[bytes, bytes]", connection.hgetall(REPORTS))
    reports = [msgspec.msgpack.decode(value, type=RunnerReport) for value in raw.values()]
    gone = [report.name for report in reports if report.silence(time.time()) > FORGET_SECONDS]
    if gone:
        connection.hdel(REPORTS, *gone)
    return sorted((r for r in reports if r.name not in gone), key=lambda report: report.name)


def complaints(reports: list[RunnerReport], now: float) -> list[str]:
    """Return why the runners make the site degraded, if they do."""
    if not reports:
        return ["no runner runs"]
    return [
        f"the runner {report.name} stopped polling"
        for report in reports
        if report.silence(now) > SILENT_SECONDS
    ]
