"""`manage.py rebuild_spend`: the sums of days made anew from the counts of minutes."""

from django.core.management.base import BaseCommand
from django.utils import timezone

from operations import spend


class Command(BaseCommand):
    """Sum every day whose minutes are kept; days before that stay as they are."""

    help = "Make what the GPUs cost on each day anew from the counts of its minutes."
    requires_system_checks: list[str] = []

    def handle(self, *args: object, **options: object) -> None:
        """Sum the days."""
        rows = spend.roll_up(timezone.now(), everything=True)
        self.stdout.write(f"{rows} daily sums of what the GPUs cost")
