"""The room of Looms."""

from django.apps import AppConfig


class LoomsConfig(AppConfig):
    """Looms, their Nodes, and the history of their changes."""

    name = "looms"
    verbose_name = "Looms"

    def ready(self) -> None:
        """Let the runner know of Nodes."""
        from jobs.kinds import register
        from looms.growth import Nodes

        register(Nodes())
