"""The room of background work."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The queue, the runner, Jobs and Runs."""

    name = "jobs"
    verbose_name = "Jobs"

    def ready(self) -> None:
        """Make the kinds of this application known."""
        from jobs.job_kind import JobKind
        from jobs.kinds import register
        from jobs.run_kind import RunKind

        register(JobKind())
        register(RunKind())
