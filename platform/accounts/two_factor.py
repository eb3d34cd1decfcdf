"""Two-factor sign-in: who must have it, and whether this session has it."""

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.http import HttpRequest

from accounts.models import User


def lacks_two_factor(request: HttpRequest) -> bool:
    """Whether a User with a role must first set up two-factor sign-in.

    Who has set it up cannot sign in without it: allauth asks for the code before the session
    begins, whichever way a person signs in.
    """
    if not settings.BASALT.staff_two_factor or not isinstance(request.user, User):
        return False
    return not has_two_factor(request.user)


def has_two_factor(user: User) -> bool:
    """Whether the User has an authenticator app."""
    found = Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP)
    return bool(found.exists())
