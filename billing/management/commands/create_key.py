"""`manage.py create_key`: an API key from the command line, with the User when there is none."""

import argparse
from typing import NotRequired, TypedDict, Unpack

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.db.models import Field

from accounts.keys import KeyNameTaken, TooManyKeys, create_key
from accounts.models import ApiKey, User
from billing.grants import grant, set_allowance

MOST_TOKENS = 10**15
"""The largest number of tokens that one command gives; the sums stay far from 64 bits."""


def _tokens(text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        tokens = -1
    if not 0 <= tokens <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {MOST_TOKENS}")
    return tokens


class Options(TypedDict):
    """The options of the command, as `add_arguments` declares them."""

    email: str
    name: str
    tokens: int
    allowance: NotRequired[int | None]
    admin: bool


class Command(BaseCommand):
    """Print a new key, alone, on standard output; all else goes to standard error."""

    help = "Make an API key for EMAIL, and the User when there is none; prints only the key."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("email", metavar="EMAIL", help="email address of the User")
        parser.add_argument("--name", default="main", help="name of the key (default: main)")
        parser.add_argument(
            "--tokens", type=_tokens, default=0, metavar="N", help="tokens to add to the Budget"
        )
        parser.add_argument(
            "--allowance", type=_tokens, metavar="N", help="monthly allowance of this User"
        )
        parser.add_argument("--admin", action="store_true", help="make the User an admin")

    def handle(self, *args: object, **options: Unpack[Options]) -> None:
        """Make what was asked for, all of it or nothing."""
        email = _checked(User._meta.get_field("email"), options["email"])
        name = _checked(ApiKey._meta.get_field("name"), options["name"].strip())
        allowance = options.get("allowance")
        try:
            with transaction.atomic():
                user = self._user(email, admin=options["admin"])
                _, secret = create_key(user=user, name=name)
                if options["tokens"]:
                    grant(user_id=user.id, tokens=options["tokens"], by=None)
                if allowance is not None:
                    set_allowance(user_id=user.id, tokens=allowance)
        except KeyNameTaken as taken:
            raise CommandError(f"{taken}: give another --name") from None
        except TooManyKeys as many:
            raise CommandError(f"{many}: revoke one first") from None
        self.stdout.write(secret)

    def _user(self, email: str, *, admin: bool) -> User:
        user = User.objects.filter(email=email).first()
        if user is None:
            user = User.objects.create_user(email)
            self.stderr.write(f"made the User {email}")
        if user.suspended_at is not None:
            raise CommandError(f"{email} is suspended: restore the User first")
        if admin:
            user.is_staff = user.is_superuser = True
            user.save(update_fields=["is_staff", "is_superuser"])
            self.stderr.write(f"{email} is an admin of {settings.BASALT.site_name}")
            if not user.has_usable_password():
                self.stderr.write(f"set a password with: manage.py changepassword {email}")
        return user


def _checked(field: "Field[str, str]", value: str) -> str:
    """Return `value` as the field keeps it; raises `CommandError` where it does not take it."""
    try:
        return str(field.clean(value, None))
    except ValidationError as invalid:
        raise CommandError(f"{field.name} {value!r}: {' '.join(invalid.messages)}") from None
