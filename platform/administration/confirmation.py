"""One's own password again, before what is sensitive.

It is asked inside the dialog and counts for `REAUTHENTICATION_SECONDS`, as a sign-in does. Who has
no password gives a code of their authenticator app; tries are limited as those of a sign-in.
"""

import time

from allauth.account.authentication import get_authentication_records
from allauth.account.internal.flows.login import record_authentication
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.http import HttpRequest

from access.limits import Tried, refusal, seconds_to_wait
from accounts.links import normal
from accounts.models import User

PROOFS = ("password", "mfa")
"""Ways of a sign-in or a confirmation that show who sits there."""

SENSITIVE = frozenset(
    {
        "Set the role",
        "Suspend",
        "Restore",
        "Delete",
        "Grant tokens",
        "Set the Budget",
        "Set the monthly allowance",
        "Set allowance",
        "Invite",
        "Revoke",
        "Lock",
        "Clear",
    }
)
"""Actions, as the log names them, that somebody at another's open browser must not be able to do.

They give or take access, rights or tokens that nobody asked for, end what cannot be brought back,
or start and stop the spending. The others answer what somebody asked for (Applications, token
requests), change nothing of these (tags, remarks, details), or are undone by a second press (pauses
of keys, warm windows). Two-factor sign-in has a confirmation of its own, before every change of it.
"""


def is_sensitive(action: str) -> bool:
    """Whether an action, as the log names it, asks for the password again."""
    return action in SENSITIVE


def needs_confirmation(request: HttpRequest) -> bool:
    """Whether the password has to be given again: neither it nor a code was given lately.

    A sign-in counts as well; one through a provider does not, since its site may ask nothing.
    """
    proved = (
        float(record["at"])
        for record in get_authentication_records(request, request.user)
        if record.get("method") in PROOFS
    )
    return time.time() - max(proved, default=0.0) >= settings.BASALT.reauthentication_seconds


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
