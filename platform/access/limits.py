"""Limits of the pages before the sign-in: so many tries a minute from one address (A-042, A-044).

They are kept in Valkey, so all web processes share them, and an address is believed as the API's
is: `X-Forwarded-For` only of a trusted proxy.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import wraps

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render

from api.authentication import client_address
from api.limits import RateBucket


class Tried(StrEnum):
    """What is limited, each apart."""

    SIGN_IN = "sign-in"
    ASK = "ask-link"
    SET = "set-password"
    CODE = "two-factor"
    APPLY = "apply"
    FEEDBACK = "feedback"


WORDS = {
    Tried.SIGN_IN: "Too many tries to sign in.",
    Tried.ASK: "Too many asks for a link.",
    Tried.SET: "Too many tries to set a password.",
    Tried.CODE: "Too many tries.",
    Tried.APPLY: "Too many Applications from here.",
    Tried.FEEDBACK: "Too many notes at once.",
}

FORMS = {Tried.APPLY, Tried.FEEDBACK}
"""Forms that a whole class may send from one address."""


def seconds_to_wait(request: HttpRequest, tried: Tried) -> int:
    """Take one try of this address; 0, or the whole seconds to wait for the next."""
    env = settings.BASALT
    most = env.forms_per_minute if tried in FORMS else env.sign_in_tries_per_minute
    return RateBucket(f"{tried}:{address_of(request)}", most, "One address").try_take()


def refusal(tried: Tried, seconds: int) -> str:
    """Return what a page says instead."""
    unit = "second" if seconds == 1 else "seconds"
    return f"{WORDS[tried]} Wait {seconds} {unit}."


def address_of(request: HttpRequest) -> str:
    """Return the address that a request comes from."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").encode("latin-1", "replace")
    return client_address(request.META.get("REMOTE_ADDR"), [(b"x-forwarded-for", forwarded)])


def limit_posts(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Limit the tries of a code or of a repeated password, on a view of allauth's."""

    @wraps(view)
    def limited(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if request.method == "POST" and (seconds := seconds_to_wait(request, Tried.CODE)):
            fault = refusal(Tried.CODE, seconds)
            answer = render(request, "accounts/too_many.html", {"fault": fault}, status=429)
            answer.headers["Retry-After"] = str(seconds)
            return answer
        return view(request, *args, **kwargs)

    return limited
