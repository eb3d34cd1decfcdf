"""`manage.py prepare_database`: migrations, and once the first admin with a first key."""

import io
from argparse import ArgumentParser

import psycopg
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

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
        """Bring the database up to date; ends with one line when it does not answer."""
        try:
            # The pool would only say that it has no connection.
            psycopg.connect(settings.BASALT.database_url, connect_timeout=5).close()
        except psycopg.Error as failure:
            cause = " ".join(str(failure).split())
            raise CommandError(f"the database of DATABASE_URL does not answer: {cause}") from None
        call_command("migrate", interactive=False, stdout=self.stderr, verbosity=0)
        if get_user_model().objects.exists():
            return
        key = io.StringIO()
        call_command("create_key", email, name="first", admin=True, stdout=key)
        self.stdout.write(key.getvalue().strip())
