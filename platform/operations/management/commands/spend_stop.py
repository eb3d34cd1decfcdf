"""`manage.py spend_stop`: pause new GPU work, lift the pause, or say how things stand."""

from argparse import ArgumentParser

from django.core.management.base import BaseCommand
from django.utils import timezone

from billing import spend_stop
from operations import spend, stop

WHEN = "%Y-%m-%d %H:%M UTC"


class Command(BaseCommand):
    """Does what the page `Spend` does; what runs already goes on in any case."""

    help = "Pause new GPU work (lock), lift the pause (clear), or say how it stands (show)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what to do."""
        parser.add_argument("action", choices=("lock", "clear", "show"))
        parser.add_argument("--reason", default="", help="why, for the list of changes")

    def handle(self, *, action: str, reason: str, **options: object) -> None:
        """Do it, and say how things stand then."""
        if action == "lock":
            stop.lock(by=None, note=reason)
        elif action == "clear" and not stop.clear(by=None):
            self.stdout.write("new GPU work was not paused")
        self._show()

    def _show(self) -> None:
        on = spend_stop.current()
        if on is None:
            self.stdout.write("new GPU work is not paused")
        else:
            note = f" ({on.note})" if on.note else ""
            self.stdout.write(
                f"new GPU work is paused since {on.started_at:{WHEN}}: "
                f"{on.get_reason_display()}{note}"
            )
        stands = spend.standing(timezone.now())
        counted = f"{stands.counted_at:{WHEN}}" if stands.counted_at else "never"
        self.stdout.write(
            f"the last 24 hours cost about ${stands.last_day:,.2f}; ${stands.counting:,.2f} count "
            f"since the last clear; containers were last counted: {counted}"
            + (", which is stale" if stands.stale else "")
        )
