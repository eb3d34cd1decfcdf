"""`manage.py clock`: Celery beat, at most one per site."""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType

import psycopg
import structlog
from celery import Celery
from celery import current_app as app
from celery.beat import Service
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections
from django_celery_beat.models import PeriodicTask

log = structlog.get_logger()

LOCK = 0x62617361
"""Number of the advisory lock in PostgreSQL that the clock of a site holds."""
LOOK_SECONDS = 2.0


class Command(BaseCommand):
    """Runs beat while it holds the site's lock; a second clock waits for its turn."""

    help = "Run the clock: rings the periodic tasks. A second one waits until the first is gone."
    requires_system_checks: list[str] = []

    def handle(self, **options: object) -> None:
        """Run until SIGTERM or SIGINT."""
        stop = threading.Event()

        def on_signal(number: int, frame: FrameType | None) -> None:
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        while not stop.is_set():
            try:
                with psycopg.connect(settings.BASALT.database_url, autocommit=True) as connection:
                    _tick(app, connection, stop)
            except (psycopg.Error, DatabaseError) as failure:
                log.warning("the clock lost the database", cause=str(failure).strip())
                stop.wait(LOOK_SECONDS)
            finally:
                connections.close_all()


def _tick(celery: Celery, connection: psycopg.Connection, stop: threading.Event) -> None:
    """Wait for the lock, then run beat until `stop`; raises `psycopg.Error` when it is lost."""
    while not _locked(connection):
        if stop.wait(LOOK_SECONDS):
            return
    forget_old_rings(celery)
    service = Service(celery, scheduler_cls=celery.conf.beat_scheduler)
    ended = threading.Event()
    thread = threading.Thread(target=_run, args=(service.start, ended), name="beat", daemon=True)
    thread.start()
    log.info("the clock ticks")
    try:
        while not stop.wait(LOOK_SECONDS):
            if ended.is_set():
                raise DatabaseError("beat ended by itself")
            connection.execute("SELECT 1")
    except psycopg.Error:
        # Another clock may have the lock by now, so this one must be silent before it asks again.
        service.stop(wait=False)
        thread.join()
        raise
    service.stop(wait=False)
    with contextlib.suppress(DatabaseError):
        service.sync()


def forget_old_rings(celery: Celery) -> None:
    """Remove from the scheduler's table what the schedule in the code does not have (any more).

    Celery's scheduler adds what is new and never removes, so a task that was taken out of the code
    would be rung for ever.
    """
    PeriodicTask.objects.exclude(name__in=celery.conf.beat_schedule).delete()


def _run(work: Callable[[], None], ended: threading.Event) -> None:
    try:
        work()
    finally:
        # A thread that only ends would keep its place in the pool for ever.
        connections.close_all()
        ended.set()


def _locked(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", [LOCK]).fetchone()
    return row is not None and bool(row[0])
