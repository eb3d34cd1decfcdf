"""`manage.py up`: everything that an instance needs, on this machine, until Ctrl+C."""

import asyncio
import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand

from inference import catalogue
from inference.catalogue import CatalogueInvalid
from operations.console import Console
from operations.instance import UpFailed
from operations.up import Instance, Wishes


class Command(BaseCommand):
    """Starts, watches and ends the processes of an instance."""

    help = (
        "Serve from this machine: starts PostgreSQL and Valkey unless DATABASE_URL and VALKEY_URL "
        "are set, the web process and the workers, and starts again what dies."
    )
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the address and the folder."""
        parser.add_argument(
            "--port", type=int, default=8000, help="port to serve on; 0 takes a free one"
        )
        parser.add_argument("--host", default="127.0.0.1", help="address to serve on")
        parser.add_argument(
            "--var",
            type=Path,
            metavar="FOLDER",
            help="where everything that this instance keeps lies (VAR_DIR)",
        )

    def handle(self, *, port: int, host: str, var: Path | None, **options: object) -> None:
        """Serve until a signal; ends with exit code 1 and one line when the start fails."""
        env = settings.BASALT
        console = Console(sys.stderr, as_json=env.log_json)
        try:
            wishes = Wishes(
                host=host,
                port=port,
                var_dir=(var or env.var_dir).absolute(),
                door=settings.BASE_DIR / "manage.py",
                catalogue=catalogue.current(),
                drain_seconds=env.drain_seconds,
                harvest_idle_seconds=env.harvest_idle_seconds,
                environment=dict(os.environ),
            )
            asyncio.run(_serve(wishes, console))
        except (UpFailed, CatalogueInvalid) as failure:
            console.line(f"cannot start: {failure}")
            raise SystemExit(1) from None


async def _serve(wishes: Wishes, console: Console) -> None:
    await Instance(wishes, console, sys.stdout).run()
