"""`manage.py invite EMAIL ...`: invite people by email."""

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.validators import validate_email

from access.invites import invite
from access.management.commands.approve import amount
from accounts.actions import note
from accounts.tags import TagInvalid, tag_form


class Command(BaseCommand):
    """Mail Invites."""

    help = "Invite each EMAIL: a mail with a link that sets the person up at once."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("emails", metavar="EMAIL", nargs="+")
        parser.add_argument("--tokens", default="0", help="Budget that each starts with")
        parser.add_argument("--tag", default="", help="tag that each gets")

    def handle(self, *args: object, emails: list[str], tokens: str, tag: str, **more: str) -> None:
        """Invite; lines of those who were not go to standard error."""
        kept = [email.strip().lower() for email in emails]
        for email in kept:
            try:
                validate_email(email)
            except ValidationError:
                raise CommandError(f"{email!r} is no email address") from None
        try:
            form = tag_form(tag) if tag else ""
        except TagInvalid as invalid:
            raise CommandError(str(invalid)) from None
        made, refused = invite(emails=kept, tokens=amount(tokens), tag=form, by=None)
        for each in made:
            note(by=None, action="Invite", target=each)
            self.stdout.write(f"invited {each.email}")
        for line in refused:
            self.stderr.write(line)
        if not made:
            raise CommandError("nobody was invited")
