"""The app of tokens."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Allowances, Budgets, Holds and their ledger."""

    name = "billing"
    default_auto_field = "django.db.models.BigAutoField"
