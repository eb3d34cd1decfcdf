"""The app of feedback."""

from django.apps import AppConfig


class FeedbackConfig(AppConfig):
    """Notes to the team."""

    name = "feedback"
    default_auto_field = "django.db.models.BigAutoField"
