"""The room of what every surface of Completions shares."""

from django.apps import AppConfig


class CompletionsConfig(AppConfig):
    """The request, admission, places and failures."""

    name = "completions"
    verbose_name = "Completions"
