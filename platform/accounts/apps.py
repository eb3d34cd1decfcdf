"""The app of people and their API keys."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Users and API keys."""

    name = "accounts"
    default_auto_field = "django.db.models.BigAutoField"
