"""The room of background work."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The queue, the runner, Jobs and Runs."""

    name = "jobs"
    verbose_name = "Jobs"
