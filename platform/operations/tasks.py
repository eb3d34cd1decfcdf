"""What the clock has the runner do."""

import structlog
from celery import shared_task
from django.db import connection

from billing import owners

log = structlog.get_logger()


@shared_task(name="operations.reap", ignore_result=True)
def reap() -> None:
    """Release what dead processes owned."""
    try:
        report = owners.reap()
    finally:
        connection.close()
    if report.ended:
        log.warning("processes were lost", leases=len(report.ended), holds=report.holds)
