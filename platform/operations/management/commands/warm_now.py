"""`manage.py warm_now`: keep a model warm for some hours."""

from argparse import ArgumentParser
from decimal import Decimal

from django.core.management.base import BaseCommand, CommandError

from billing import spend_stop
from operations.warm import LONGEST_HOURS, WindowRefused, check_model, warm_now
from operations.windows import cost


class Command(BaseCommand):
    """Does what `Warm now` on the page `Models` does."""

    help = f"Start MODEL now and keep it warm for HOURS, from 1 to {LONGEST_HOURS}."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the model and the hours."""
        parser.add_argument("model", metavar="MODEL", help="id of a served model")
        parser.add_argument("hours", metavar="HOURS", type=int)

    def handle(self, *, model: str, hours: int, **options: object) -> None:
        """Make the window, and say until when it lasts and what it costs."""
        try:
            window = warm_now(model_id=model, hours=hours, by=None)
            price = check_model(model).price_per_hour
        except WindowRefused as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(
            f"{window.model} is kept warm until {window.ends_at:%Y-%m-%d %H:%M UTC}, "
            f"which costs about ${cost(Decimal(hours), price):,.2f}"
        )
        if spend_stop.is_on():
            self.stdout.write("new GPU work is paused: the window has no effect until it is lifted")
