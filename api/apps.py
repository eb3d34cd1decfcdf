"""The `/v1` room."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    """Routes, streams, limits and errors of the wire contract."""

    name = "api"
    verbose_name = "API"
