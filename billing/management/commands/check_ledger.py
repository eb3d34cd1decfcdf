"""`manage.py check_ledger`: does every token add up?"""

from django.core.management.base import BaseCommand

from billing.audit import check_ledger


class Command(BaseCommand):
    """Print a line for each number that does not add up; exit with 1 when there is one."""

    help = "Compare balances, Holds and daily usage with the lines of the ledger."
    requires_system_checks = []

    def handle(self, *args: object, **options: object) -> None:
        """Run the check."""
        found = check_ledger()
        for discrepancy in found:
            self.stdout.write(str(discrepancy))
        if found:
            raise SystemExit(1)
        self.stdout.write("the ledger adds up")
