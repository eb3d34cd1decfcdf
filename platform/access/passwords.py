"""Asking for a link, and setting a password with one (A-030 to A-038, A-075 to A-081).

A link's token comes in the query once. It is moved into a cookie of the two pages, so that it is in
no address that a page shows, sends on, or that a log of paths keeps.
"""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from access.forms import AskForm, NewPasswordForm, SetPasswordForm
from access.limits import Tried, refusal, seconds_to_wait
from accounts.links import (
    RESET_PATH,
    SET_PATH,
    LinkDead,
    ask_for_link,
    find_link,
    path_of,
    set_password,
)
from accounts.mail import SecretLink
from accounts.models import LinkPurpose

COOKIE = "link"
COOKIE_SECONDS = 3600


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def forgot_password(request: HttpRequest) -> HttpResponse:
    """Take an address, and answer the same for each (A-076)."""
    if request.method != "POST":
        return _ask_page(request, AskForm())
    form = AskForm(request.POST)
    if seconds := seconds_to_wait(request, Tried.ASK):
        answer = _ask_page(request, form, fault=refusal(Tried.ASK, seconds), status=429)
        answer.headers["Retry-After"] = str(seconds)
        return answer
    if not form.is_valid():
        return _ask_page(request, form, status=400)
    ask_for_link(email=form.cleaned_data["email"])
    return _ask_page(request, form, sent=True)


def carry(answer: HttpResponse, token: str) -> HttpResponse:
    """Give a browser the token of a link, for the pages that use it."""
    answer.set_cookie(
        COOKIE,
        token,
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )
    return answer


def to_link(link: SecretLink) -> HttpResponse:
    """Send a browser to the page of a link without its token in the address (A-018)."""
    return carry(HttpResponseRedirect(link.path), link.address.rpartition("token=")[2])


def password_page(path: str) -> Callable[[HttpRequest], HttpResponse]:
    """Return the view of `SET_PATH` or `RESET_PATH`."""

    @never_cache
    @require_http_methods(["GET", "HEAD", "POST"])
    def view(request: HttpRequest) -> HttpResponse:
        return _password(request, path)

    return view


set_first = password_page(SET_PATH)
reset = password_page(RESET_PATH)


def _password(request: HttpRequest, path: str) -> HttpResponse:
    if "token" in request.GET:
        return carry(HttpResponseRedirect(path), request.GET["token"][:200])
    token = request.COOKIES.get(COOKIE, "")
    try:
        link = find_link(token)
    except LinkDead:
        return _dead(request)
    right = path_of(LinkPurpose(link.purpose))
    if right != path:
        return HttpResponseRedirect(right)
    kind = NewPasswordForm if path == RESET_PATH else SetPasswordForm
    if request.method != "POST":
        return _password_page(request, kind(), path)
    form = kind(request.POST)
    if seconds := seconds_to_wait(request, Tried.SET):
        fault = refusal(Tried.SET, seconds)
        answer = _password_page(request, form, path, fault=fault, status=429)
        answer.headers["Retry-After"] = str(seconds)
        return answer
    if not form.is_valid():
        return _password_page(request, form, path, status=400)
    try:
        set_password(token=token, password=form.cleaned_data["password"])
    except LinkDead:
        return _dead(request)
    done = render(request, "accounts/password_set.html", {"changed": path == RESET_PATH})
    done.delete_cookie(COOKIE)
    return done


def _ask_page(
    request: HttpRequest, form: AskForm, *, fault: str = "", sent: bool = False, status: int = 200
) -> HttpResponse:
    shown = {"form": form, "fault": fault, "sent": sent}
    return render(request, "accounts/forgot_password.html", shown, status=status)


def _password_page(
    request: HttpRequest,
    form: SetPasswordForm | NewPasswordForm,
    path: str,
    *,
    fault: str = "",
    status: int = 200,
) -> HttpResponse:
    shown = {"form": form, "fault": fault, "is_reset": path == RESET_PATH}
    return render(request, "accounts/set_password.html", shown, status=status)


def _dead(request: HttpRequest) -> HttpResponse:
    """Say that the link did not work, and where to get another (A-034)."""
    return render(request, "accounts/link_dead.html", status=410)
