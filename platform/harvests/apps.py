"""The room of harvests."""

from django.apps import AppConfig


class HarvestsConfig(AppConfig):
    """Harvests, their runs and their files."""

    name = "harvests"
    verbose_name = "Harvests"

    def ready(self) -> None:
        """Let the runner know harvests."""
        from harvests.following import HarvestKind
        from jobs.kinds import register

        register(HarvestKind())
