"""`manage.py restore EMAIL`: restore a User."""

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from accounts.actions import note
from accounts.models import User
from accounts.people import Refused, restore


class Command(BaseCommand):
    """Restore a User."""

    help = "Restore the User with EMAIL."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("email", metavar="EMAIL")

    def handle(self, *args: object, email: str, **options: str) -> None:
        """Restore, and write it down."""
        user = User.objects.filter(email=email).first()
        if user is None:
            raise CommandError(f"there is no User {email}")
        try:
            with transaction.atomic():
                restore(user_id=user.id, by=None)
                note(by=None, action="Restore", target=user)
        except Refused as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(f"{user.email} is restored")
