"""`manage.py serve`: one web process."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inference import catalogue
from inference.catalogue import CatalogueInvalid


class Command(BaseCommand):
    """Serves the API and the pages."""

    help = "Run one web process."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare where to listen."""
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on")
        parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of both")

    def handle(self, *args: Any, host: str, port: int, fd: int | None, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT."""
        from config.server import serve

        check_catalogue()
        serve(fd=fd, host=host, port=port)


def check_catalogue() -> None:
    """Read the catalogue before anybody asks for it.

    Raises:
        CommandError: for one that is broken.
    """
    try:
        catalogue.current()
    except CatalogueInvalid as broken:
        raise CommandError(str(broken)) from None
