"""`manage.py prepare_database`: migrations, and once the first admin with a first key."""

import io
from argparse import ArgumentParser

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand

FIRST_ADMIN = "admin@localhost"


class Command(BaseCommand):
    """Migrates; prints the key of the first admin if it was made just now, else nothing."""

    help = (
        "Migrate the database. Where it has no User yet, make an admin and print their API key, "
        "which cannot be shown again."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the first admin's address."""
        parser.add_argument("--email", default=FIRST_ADMIN, help="email of the first admin")

    def handle(self, *, email: str, **options: object) -> None:
        """Bring the database up to date."""
        call_command("migrate", interactive=False, stdout=self.stderr, verbosity=0)
        if get_user_model().objects.exists():
            return
        key = io.StringIO()
        call_command("create_key", email, name="first", admin=True, stdout=key)
        self.stdout.write(key.getvalue().strip())
