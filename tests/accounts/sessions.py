"""Sessions of people who gave their password, as a sign-in leaves them."""

from allauth.account.authentication import AUTHENTICATION_METHODS_SESSION_KEY
from allauth.account.internal.flows.login import record_authentication
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.test import Client

from accounts.models import User

BACKEND = "django.contrib.auth.backends.ModelBackend"


def sign_in(client: Client, user: User, *, ago: float = 0) -> Client:
    """Give a browser the session of somebody who gave their password so many seconds ago."""
    client.force_login(user, backend=BACKEND)
    session, request = client.session, HttpRequest()
    request.session = session
    record_authentication(request, user, method="password")
    session.save()
    set_back(session, ago)
    return client


def set_back(session: SessionBase, seconds: float) -> None:
    """Let the password of a session have been given so many seconds earlier."""
    session[AUTHENTICATION_METHODS_SESSION_KEY][0]["at"] -= seconds
    session.save()
