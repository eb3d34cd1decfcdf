"""The room of running an instance."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """Processes, the launcher and health."""

    name = "operations"
    verbose_name = "Operations"
