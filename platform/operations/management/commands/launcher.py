"""`manage.py launcher`: starts and stops the engine workers of a site on demand."""

import asyncio
import os
import shlex
import signal
import sys
from argparse import ArgumentParser

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference import catalogue, valkey
from inference.fleet import Fleet
from operations.console import Console
from operations.launcher import Launcher, templated
from operations.processes import Command as Process
from operations.supervisor import Supervisor, first


class Command(BaseCommand):
    """Runs one launcher; `up` has its own."""

    help = (
        "Start a model's engine worker when a request waits for it, and stop it when it was idle. "
        "Run one per site."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the command that starts a worker."""
        here = shlex.join([sys.executable, str(settings.BASE_DIR / "manage.py"), "worker"])
        parser.add_argument(
            "--command",
            dest="template",
            default=f"{here} {{queue}}",
            metavar="TEMPLATE",
            help=(
                "what starts a worker, with {queue} for what `manage.py worker` takes and {model} "
                "for the model's id; it has to run as long as the worker does, and end it on "
                "SIGTERM. Without {queue} it starts engines alone (default: %(default)s)"
            ),
        )

    def handle(self, *, template: str, **options: object) -> None:
        """Run until SIGTERM or SIGINT; the workers started here end with it."""
        if "{model}" not in template and "{queue}" not in template:
            raise CommandError("--command needs {queue} or {model} in it, for what to start")
        asyncio.run(_launch(template))


async def _launch(template: str) -> None:
    env = settings.BASALT
    supervisor = Supervisor(Console(sys.stderr, as_json=env.log_json))

    def command(model_id: str) -> Process:
        return Process(
            name=model_id,
            arguments=templated(template, model_id),
            environment=dict(os.environ),
            death_signal=signal.SIGTERM,
        )

    launcher = Launcher(
        supervisor,
        Fleet(valkey.connection()),
        catalogue.current().enabled,
        command,
        env.drain_seconds,
        env.harvest_idle_seconds if "{queue}" in template else None,
    )
    try:
        await first(launcher.run(), supervisor.stop_wanted.wait())
    finally:
        await launcher.stop()
