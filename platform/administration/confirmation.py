"""One's own password again, before what is guarded: roles and deletes.

It is asked inside the dialog and counts for `REAUTHENTICATION_SECONDS`. Who has no password gives a
code of their authenticator app; tries are limited as those of a sign-in.
"""

from allauth.account.internal.flows.login import record_authentication
from allauth.account.internal.flows.reauthentication import did_recently_reauthenticate
from allauth.mfa.models import Authenticator
from django.http import HttpRequest

from access.limits import Tried, refusal, seconds_to_wait
from accounts.links import normal
from accounts.models import User


def needs_confirmation(request: HttpRequest) -> bool:
    """Whether the password has to be given again."""
    return not did_recently_reauthenticate(request)


def label(user: User) -> str:
    """Return what is asked of this User."""
    return "Your password" if user.has_usable_password() else "Code of your authenticator app"


def confirm(request: HttpRequest, secret: str) -> str:
    """Check the password or code and remember it; returns why not, or nothing."""
    assert isinstance(request.user, User)
    if seconds := seconds_to_wait(request, Tried.CODE):
        return refusal(Tried.CODE, seconds)
    if request.user.has_usable_password():
        right, method = request.user.check_password(normal(secret)), "password"
    else:
        right, method = _is_code(request.user, secret), "mfa"
    if not right:
        return "That is not right."
    record_authentication(request, request.user, method=method, reauthenticated=True)
    return ""


def _is_code(user: User, secret: str) -> bool:
    app = Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).first()
    return app is not None and bool(app.wrap().validate_code(secret))
