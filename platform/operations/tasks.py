"""What the clock has the runner do; `operations.schedule` says how often."""

from collections.abc import Callable
from functools import wraps

import structlog
from celery import shared_task
from django.db import connection
from django.utils import timezone

from billing import owners
from inference import valkey
from inference.client import LOST
from inference.fleet import Fleet
from jobs import completion_jobs, runs
from looms import erasure
from operations import spend, warm

log = structlog.get_logger()


def periodic(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a task of a function that gives its connection back and outlives a lost Valkey."""

    def wrap(work: Callable[[], None]) -> Callable[[], None]:
        @shared_task(name=name, ignore_result=True)
        @wraps(work)
        def task() -> None:
            try:
                work()
            except LOST as lost:
                log.warning("put off: Valkey cannot be reached", task=name, cause=str(lost))
            finally:
                connection.close()

        return task

    return wrap


@periodic("operations.reap")
def reap() -> None:
    """Release what dead processes owned."""
    report = owners.reap()
    if report.ended:
        log.warning("processes were lost", leases=len(report.ended), holds=report.holds)


@periodic("operations.sample_spend")
def sample_spend() -> None:
    """Count the containers of this minute, and pause new GPU work at the amount."""
    now = timezone.now()
    try:
        spend.sample(Fleet(valkey.connection()), now)
    finally:
        stands = spend.judge(now)
    if stands.counting:
        log.info("spend", dollars=str(stands.counting), last_day=str(stands.last_day))


@periodic("operations.keep_warm")
def keep_warm() -> None:
    """Set the floors of the models by their warm windows."""
    warm.keep_warm(Fleet(valkey.connection()), timezone.now())


@periodic("operations.roll_up_spend")
def roll_up_spend() -> None:
    """Sum the samples of yesterday and today."""
    spend.roll_up(timezone.now())


@periodic("operations.erase")
def erase() -> None:
    """Erase what is past its time: of Jobs (C-637), of Runs (C-638, C-639), of Looms (C-639)."""
    erased = {
        "jobs": completion_jobs.erase_expired(),
        "runs": runs.erase_expired(),
        "looms": erasure.erase_deleted(),
    }
    if any(erased.values()):
        log.info("erased", **erased)
