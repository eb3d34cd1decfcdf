"""`manage.py worker QUEUE`: starts the runner, or the engine or the harvests of one model."""

import contextlib
import os
import socket
import time
from argparse import ArgumentParser
from functools import partial
from typing import Any

from celery import current_app
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.models import OwnerKind
from completions.owner import own_as
from completions.runners import POLL_SECONDS, report_runner, retire_runner
from inference import valkey
from inference.client import LOST
from operations.hosting import CeleryHost

RING_GRACE_SECONDS = 0.5
"""How long a stopping worker still answers a bell that was rung before it said so."""


class Command(BaseCommand):
    """Starts a worker: `runner`, `engine.MODEL`, or `harvest.MODEL`."""

    help = (
        "Run a worker: `runner`, or for one model its engine, `engine.MODEL`, or its harvests, "
        "`harvest.MODEL`."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the queue."""
        parser.add_argument("queue", help="runner, engine.MODEL, or harvest.MODEL")

    def handle(self, *args: Any, queue: str, **options: Any) -> None:
        """Run until SIGTERM or SIGINT."""
        kind, _, model_id = queue.partition(".")
        if kind == "engine" and model_id:
            code = run_engine(model_id)
        elif kind == "harvest" and model_id:
            code = run_harvests(model_id)
        elif queue == "runner":
            code = run_runner()
        else:
            raise CommandError(
                f"there is no worker {queue!r}: runner, engine.MODEL, or harvest.MODEL"
            )
        # Threads of libraries must not keep a stopped worker alive.
        self.stdout.flush()
        os._exit(code)


def run_engine(model_id: str) -> int:
    """Load a prepared model and serve it; returns the exit code."""
    from inference import catalogue
    from inference.preparation import prepared
    from inference.worker import EngineWorker, load_engine

    entry = catalogue.current().find(model_id)
    if entry is None:
        raise CommandError(f"the catalogue has no model {model_id!r}")
    files = prepared(entry, settings.BASALT.models)
    if files is None:
        raise CommandError(f"{model_id} is not prepared: run manage.py pull_model {model_id}")
    worker = EngineWorker(entry, partial(load_engine, entry, files.folder))
    host = CeleryHost(current_app, f"engine.{model_id}", worker.announce_serving)
    host.watch_signals()
    worker.start()

    def before_stop() -> None:
        worker.announce_stop()
        time.sleep(RING_GRACE_SECONDS)

    code = host.run(before_stop)
    worker.stop(settings.BASALT.drain_seconds)
    return code


def run_harvests(model_id: str) -> int:
    """Run the harvests of a model; returns the exit code."""
    from inference import catalogue, harvesting

    entry = catalogue.current().find(model_id)
    if entry is None or not entry.harvest.enabled or entry.backend.kind != "worker":
        raise CommandError(f"the catalogue has no model {model_id!r} that is harvested here")
    harvesting.step_back()
    from harvests.worker import HarvestWorker, work_here

    worker = HarvestWorker(entry)
    work_here(worker)
    host = CeleryHost(current_app, f"harvest.{model_id}", worker.announce_serving)
    host.watch_signals()
    worker.start()
    code = host.run(lambda: None)
    worker.stop(settings.BASALT.drain_seconds)
    return code


def run_runner() -> int:
    """Run background work; returns the exit code."""
    from jobs.kinds import kinds
    from jobs.ringing import listen
    from jobs.runner import RunnerThread

    name = f"runner-{socket.gethostname()}-{os.getpid()}"
    connection = valkey.connection()
    owner = own_as(OwnerKind.RUNNER)

    def say() -> None:
        with contextlib.suppress(*LOST):
            report_runner(connection, name, thread.runner.running, thread.runner.looked_at)

    host = CeleryHost(current_app, "runner", say, poll=(POLL_SECONDS, say))
    host.watch_signals()
    thread = RunnerThread(kinds(), on_broken=host.stop)
    thread.start()
    listen(thread.ring)
    code = host.run(lambda: thread.stop(settings.BASALT.drain_seconds))
    owner.close()
    with contextlib.suppress(*LOST):
        retire_runner(connection, name)
    return 1 if thread.broke else code
