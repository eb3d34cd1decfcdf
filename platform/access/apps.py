"""The app of access."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    """Applications, Invites, and the ways to sign in."""

    name = "access"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Keep only the id of a provider's account (A-057), and delete what deleted Users wrote."""
        from allauth.socialaccount.models import SocialAccount
        from django.db.models.signals import pre_save

        from access.erasure import delete_writings
        from access.providers import keep_only_the_id
        from accounts.people import users_deleted

        pre_save.connect(keep_only_the_id, sender=SocialAccount, dispatch_uid="access.providers")
        users_deleted.connect(delete_writings, dispatch_uid="access.erasure")
