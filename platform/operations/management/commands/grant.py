"""`manage.py grant`: tokens for a User's Budget."""

from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from accounts.actions import note
from accounts.models import User
from billing.allowance import tokens_left
from billing.amounts import AmountUnreadable, read_tokens
from billing.grants import grant


class Command(BaseCommand):
    """Does what `Grant tokens` of a User's row does."""

    help = "Add TOKENS to the Budget of the User with this EMAIL."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the User and the tokens."""
        parser.add_argument("email", metavar="EMAIL")
        parser.add_argument("tokens", metavar="TOKENS", help="as 50000, 50K or 2.5M")

    def handle(self, *, email: str, tokens: str, **options: object) -> None:
        """Grant, and say what the Budget has left."""
        try:
            amount = read_tokens(tokens)
        except AmountUnreadable as unreadable:
            raise CommandError(f"{tokens!r} is not a number of tokens. {unreadable}") from None
        user = User.objects.filter(email=email).first()
        if user is None:
            raise CommandError(f"there is no User {email}")
        with transaction.atomic():
            grant(user_id=user.id, tokens=amount, by=None)
            note(by=None, action="Grant tokens", target=user, details=f"{amount:,}")
        left = tokens_left(user_id=user.id, key_id=None).budget_left
        self.stdout.write(f"{user.email}: {amount:,} tokens granted, {left:,} left in the Budget")
