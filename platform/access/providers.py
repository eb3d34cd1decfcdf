"""Sign-in through GitHub, Google and Hugging Face (A-051 to A-065).

A provider tells who somebody is; it never makes a User. What it tells is used in the one request
that comes back from it: the id is kept, no token and nothing else of the account.
"""

from dataclasses import dataclass

from allauth.socialaccount.models import SocialAccount, SocialLogin
from allauth.socialaccount.providers.base import AuthProcess
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from accounts.models import User
from accounts.people import Refused


@dataclass(frozen=True)
class Provider:
    """A provider that the deployment has set up."""

    id: str
    name: str

    @property
    def address(self) -> str:
        """Where the round trip begins."""
        if self.id == "github":
            return reverse("github_login")
        return reverse("openid_connect_login", args=[self.id])


NAMES = {"github": "GitHub", "google": "Google", "huggingface": "Hugging Face"}


def providers() -> list[Provider]:
    """Return what is set up, in the contract's order (A-051)."""
    env = settings.BASALT
    ids = {
        "github": env.github_client_id,
        "google": env.google_client_id,
        "huggingface": env.huggingface_client_id,
    }
    return [Provider(key, NAMES[key]) for key, client_id in ids.items() if client_id]


def find_user(request: HttpRequest, login: SocialLogin) -> None:
    """Make sure that a round trip belongs to a User; links the first one (A-052 to A-055).

    Raises:
        ValidationError: nobody is signed in, and why.
    """
    name = NAMES.get(login.account.provider, "the provider")
    linking = login.state.get("process") == AuthProcess.CONNECT
    if login.is_existing:
        if linking and login.user != request.user:
            raise ValidationError(f"This {name} account is linked to another User.")
        return
    verified = {
        address.email.strip().lower() for address in login.email_addresses if address.verified
    }
    told = {address.email.strip().lower() for address in login.email_addresses}
    if linking:
        user = request.user if request.user.is_authenticated else None
    else:
        user = User.objects.filter(email__in=sorted(verified), deleted_at=None).first()
    if user is not None and user.email in verified:
        _link(login, user, name)
    elif told and not verified:
        raise ValidationError(
            f"{name} has not verified your email address. Verify it at {name}, then try again."
        )
    elif linking:
        raise ValidationError(
            f"Your {name} account has no verified address that is your email address here."
        )
    else:
        raise NoUser(f"No User here has the email address of your {name} account.")


class NoUser(ValidationError):
    """Nobody here has the address; the page links to the Apply form (A-054)."""


def keep_only_the_id(sender: object, instance: SocialAccount, **known: object) -> None:
    """Empty what a provider told of its account, before a row is written (A-057)."""
    instance.extra_data = {}


def refuse_here(request: HttpRequest, refused: ValidationError) -> HttpResponse:
    """Say on the page that one came from why the provider signed nobody in."""
    message = " ".join(refused.messages)
    if request.user.is_authenticated:
        messages.error(request, message)
        return HttpResponseRedirect(reverse("profile"))
    shown = {"message": message, "apply": isinstance(refused, NoUser)}
    return render(request, "accounts/provider_refused.html", shown, status=403)


def linked(user: User) -> dict[str, int]:
    """Return the providers that a User has linked, with the ids of their rows."""
    rows = SocialAccount.objects.filter(user=user).values_list("provider", "id")
    return dict(rows)


def unlink(*, user: User, provider_id: str) -> None:
    """Take a provider off a User; raises `Refused` where it is the last way in (A-063)."""
    with transaction.atomic():
        locked = User.objects.select_for_update(no_key=True).get(id=user.id)
        rows = SocialAccount.objects.filter(user=locked)
        if not locked.has_usable_password() and not rows.exclude(provider=provider_id).exists():
            raise Refused("This is your only way to sign in. Set a password first.")
        rows.filter(provider=provider_id).delete()


def _link(login: SocialLogin, user: User, name: str) -> None:
    """Keep the provider's id for the User; one id of a provider for each (A-053, A-065)."""
    if SocialAccount.objects.filter(user=user, provider=login.account.provider).exists():
        raise ValidationError(f"Another {name} account is linked to this User.")
    if not user.is_active:
        login.user = user
        return
    login.user = user
    login.account.user = user
    login.account.save()
