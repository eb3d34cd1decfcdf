"""The room of saved Steering vectors."""

from django.apps import AppConfig


class VectorsConfig(AppConfig):
    """Steering vectors that Users saved by name."""

    name = "vectors"
    verbose_name = "Steering vectors"
    default_auto_field = "django.db.models.BigAutoField"
