"""`manage.py approve EMAIL`: approve the open Application of an address."""

from django.core.management.base import BaseCommand, CommandError, CommandParser

from access.decisions import Terms, approve
from access.models import Application
from accounts.actions import note
from accounts.people import Refused
from billing.amounts import AmountUnreadable, read_tokens


def amount(text: str) -> int:
    """Return the tokens of `50K`, `2500000` or `0`; raises `CommandError`."""
    if text.strip() == "0":
        return 0
    try:
        return read_tokens(text)
    except AmountUnreadable as unreadable:
        raise CommandError(str(unreadable)) from None


class Command(BaseCommand):
    """Make the User of an Application and mail the link."""

    help = "Approve the open Application of EMAIL: makes the User and mails the link."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("email", metavar="EMAIL")
        parser.add_argument("--tokens", default="0", help="tokens to grant, such as 50K")
        parser.add_argument("--allowance", help="monthly allowance, such as 2.5M")

    def handle(self, *args: object, **options: str) -> None:
        """Approve."""
        email = options["email"].strip().lower()
        application = Application.objects.filter(email=email, status="open").first()
        if application is None:
            raise CommandError(f"no Application of {email} waits for a decision")
        given = options["allowance"]
        terms = Terms(allowance=amount(given) if given else None, tokens=amount(options["tokens"]))
        try:
            user = approve(application_id=application.id, terms=terms, by=None)
        except Refused as refused:
            raise CommandError(str(refused)) from None
        note(by=None, action="Approve", target=application)
        note(by=None, action="Approved", target=user)
        self.stdout.write(f"{user.email} has access; the mail with the link waits to be sent")
