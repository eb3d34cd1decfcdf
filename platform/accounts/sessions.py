"""Sessions: begun by a sign-in, renewed by visits, and ended for one browser or for all.

A session ends 30 days after its last renewal, and a visit renews it once a day at most, so a page
view writes nothing (A-066, A-067). When it began is never moved (A-064). All sessions of a User end
together by a number that each of them carries a hash of, without a search for them.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.signals import user_logged_in
from django.db.models import F
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone

from accounts.models import User

BEGAN = "signed_in_at"
RENEWED = "renewed_at"
RENEW_EVERY = timedelta(days=1)
MARK = "signed-in"
"""A cookie that outlives the session and says that there was one; it names nobody."""
MARK_SECONDS = 400 * 86_400


def note_begin(sender: object, request: HttpRequest, **known: object) -> None:
    """Write down when a session began; called at each sign-in."""
    now = timezone.now().timestamp()
    request.session[BEGAN] = request.session[RENEWED] = now


user_logged_in.connect(note_begin, dispatch_uid="accounts.sessions")


def began_at(request: HttpRequest) -> datetime | None:
    """Return when this session began with a sign-in, whatever renewed it since."""
    began = request.session.get(BEGAN)
    return (
        None if began is None else datetime.fromtimestamp(began, tz=timezone.get_current_timezone())
    )


def end_all_sessions(*, user_id: UUID) -> None:
    """End every session of a User, on every device."""
    User.objects.filter(id=user_id).update(session_number=F("session_number") + 1)


def sign_out(request: HttpRequest) -> HttpResponseRedirect:
    """End this session; the sign-in page forgets what scripts of the App kept (A-073, A-074).

    The caller lets only a POST with a CSRF token through.
    """
    logout(request)
    answer = HttpResponseRedirect(settings.LOGIN_URL)
    answer.delete_cookie(MARK)
    return answer


def has_ended(request: HttpRequest) -> bool:
    """Whether this browser had a session that nobody signed out of, and has none now (A-070)."""
    return bool(request.COOKIES.get(MARK)) and not request.user.is_authenticated


class SessionMiddleware:
    """Renews the session of a visitor, and marks the browser of one who is signed in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer the request; a request that never asks who calls reads no session."""
        answer = self._get_response(request)
        if not request.session.accessed or BEGAN not in request.session:
            return answer
        now = timezone.now()
        renewed = float(request.session.get(RENEWED, 0))
        if now.timestamp() - renewed >= RENEW_EVERY.total_seconds():
            request.session[RENEWED] = now.timestamp()
        if not request.COOKIES.get(MARK):
            answer.set_cookie(
                MARK,
                "1",
                max_age=MARK_SECONDS,
                httponly=True,
                samesite="Lax",
                secure=settings.SESSION_COOKIE_SECURE,
            )
        return answer
