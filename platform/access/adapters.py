"""What allauth asks of us: where its flows lead, and that it makes no User and sends no mail."""

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialLogin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import reverse

from access.places import is_inside
from access.providers import find_user, refuse_here
from access.sign_in import suspended
from accounts.models import User
from accounts.secrets import seal, unseal


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Sign-in by allauth's stages, into the App."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Nobody signs up: a User comes from an approval or an Invite (A-013)."""
        return False

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """Return the page that a sign-in leads to when none was asked for (A-046, A-047)."""
        return reverse("first_page")

    def is_safe_url(self, url: str | None) -> bool:
        """Only addresses inside the App (A-048)."""
        return url is not None and is_inside(url)

    def is_reauthentication_required(self, *, app: str, **known: object) -> bool:
        """Ask for the password again for two-factor settings and for what the admin guards."""
        return app != "allauth.socialaccount"

    def send_mail(self, template_prefix: str, email: str, context: dict[str, object]) -> None:
        """Send nothing: every mail of ours goes through the outbox."""

    def respond_user_inactive(self, request: HttpRequest, user: User) -> object:
        """Tell a suspended User so, whichever way they sign in (A-059, A-082)."""
        return suspended(request)


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Providers: they link to a User who has the same verified address, and make none."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Nobody signs up (A-054)."""
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Find the User of the provider's account, or refuse; keep nothing else of it.

        Raises:
            ImmediateHttpResponse: the page that says why nobody was signed in (A-052 to A-055).
        """
        sociallogin.account.extra_data = {}
        try:
            find_user(request, sociallogin)
        except ValidationError as refused:
            raise ImmediateHttpResponse(refuse_here(request, refused)) from None

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: object,
        error: object = None,
        exception: Exception | None = None,
        extra_context: object = None,
    ) -> None:
        """Say that the round trip failed: a wrong state, a refusal there, or no answer (A-058)."""
        raise ImmediateHttpResponse(
            refuse_here(request, ValidationError("The sign-in there did not work. Try it again."))
        )

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: SocialAccount) -> str:
        """Linking comes back to the profile (A-061)."""
        return reverse("profile")

    def send_notification_mail(self, *known: object, **more: object) -> None:
        """Send nothing."""


class TwoFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Two-factor sign-in; its secrets are kept encrypted."""

    def encrypt(self, text: str) -> str:
        """Return a secret as it is stored."""
        return seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        """Return a stored secret."""
        return unseal(encrypted_text)

    def send_notification_mail(self, *known: object, **more: object) -> None:
        """Send nothing."""
