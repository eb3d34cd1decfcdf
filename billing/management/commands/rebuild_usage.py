"""`manage.py rebuild_usage`: the sums of usage made anew from the settled Holds."""

from django.core.management.base import BaseCommand

from billing.models import Account
from billing.usage import rebuild, rebuild_site


class Command(BaseCommand):
    """Rebuild the sums of every User, then everybody's; requests may be served meanwhile."""

    help = "Make the sums of usage by hour, day and week anew from the settled Holds."
    requires_system_checks = []

    def handle(self, *args: object, **options: object) -> None:
        """Rebuild User by User, so that each is locked for a moment only."""
        users = list(Account.objects.order_by("pk").values_list("user_id", flat=True))
        rows = sum(rebuild(user_id=user_id) for user_id in users)
        days = rebuild_site()
        self.stdout.write(f"{rows} daily sums of {len(users)} Users, on {days} days")
