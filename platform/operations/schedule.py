"""What the clock rings, and how often: the one schedule of a site.

Each task is harmless when it runs twice, late, or not at all for a while: it looks at rows and at
the time, and never at when it was rung last. A bell that nobody heard in time expires.
"""

from dataclasses import dataclass
from typing import TypedDict

QUEUE = "runner"


@dataclass(frozen=True)
class Ring:
    """One periodic task."""

    name: str
    task: str
    seconds: float
    """Seconds between two rings."""


class BeatEntry(TypedDict):
    """One entry of Celery's `beat_schedule`."""

    task: str
    schedule: float
    options: dict[str, object]


MINUTE, HOUR = 60.0, 3600.0


def rings(*, reap_seconds: float) -> tuple[Ring, ...]:
    """Return the schedule."""
    return (
        # Lost processes: what they held and ran (C-608, U-45).
        Ring("reap", "operations.reap", reap_seconds),
        # Money and warm models (sections 19 and 20).
        Ring("sample-spend", "operations.sample_spend", MINUTE),
        Ring("keep-warm", "operations.keep_warm", 10.0),
        Ring("roll-up-spend", "operations.roll_up_spend", HOUR),
        Ring("send-mails", "accounts.send_mails", 30.0),
        Ring("make-issues", "feedback.make_issues", 5 * MINUTE),
        # Kept data and its end (section 22).
        Ring("erase", "operations.erase", 10 * MINUTE),
        Ring("erase-people", "access.erase", HOUR),
        Ring("forget-people", "accounts.forget", HOUR),
        Ring("forget-expired-keys", "api.forget_expired_keys", 10 * MINUTE),
    )


def beat_schedule(*, reap_seconds: float) -> dict[str, BeatEntry]:
    """Return the schedule in Celery's form; a bell is worth two intervals, an hour at most."""
    return {
        ring.name: BeatEntry(
            task=ring.task,
            schedule=ring.seconds,
            options={"queue": QUEUE, "expires": min(2 * ring.seconds, HOUR)},
        )
        for ring in rings(reap_seconds=reap_seconds)
    }
