"""The app of access."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    """Applications, Invites, and the ways to sign in."""

    name = "access"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Keep nothing that a provider tells of its account but the id (A-057)."""
        from allauth.socialaccount.models import SocialAccount
        from django.db.models.signals import pre_save

        from access.providers import keep_only_the_id

        pre_save.connect(keep_only_the_id, sender=SocialAccount, dispatch_uid="access.providers")
