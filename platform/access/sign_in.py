"""Signing in and out (A-039 to A-050, A-070, A-074, A-082)."""

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from django.contrib.auth.hashers import make_password
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from access.forms import SignInForm
from access.limits import Tried, refusal, seconds_to_wait
from access.places import first_page, wanted
from access.providers import providers
from accounts import sessions
from accounts.links import normal
from accounts.models import User
from completions.failures import suspension_message
from pages.shell import AppRequest, signed_in

WRONG = "The email or the password is wrong."
ENDED = "Your session has ended."


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponseBase:
    """Show the form, or sign in with what was written."""
    if isinstance(request.user, User):
        return HttpResponseRedirect(wanted(request.GET.get("next", "")) or first_page(request.user))
    if request.method != "POST":
        next_page = wanted(request.GET.get("next", "")) or ""
        form = SignInForm(initial={"next": next_page})
        told = ENDED if sessions.has_ended(request) else ""
        return _page(request, form, told=told)
    form = SignInForm(request.POST)
    if seconds := seconds_to_wait(request, Tried.SIGN_IN):
        answer = _page(request, form, fault=refusal(Tried.SIGN_IN, seconds), status=429)
        answer.headers["Retry-After"] = str(seconds)
        return answer
    if not form.is_valid():
        return _page(request, form, status=400)
    user = check_credentials(form.cleaned_data["email"], form.cleaned_data["password"])
    if user is None:
        return _page(request, form, fault=WRONG, status=400)
    if not user.is_active:
        return suspended(request)
    login = Login(user=user, redirect_url=wanted(form.cleaned_data["next"]) or first_page(user))
    return perform_password_login(request, {"email": user.email}, login)  # type: ignore[no-any-return]


def check_credentials(email: str, password: str) -> User | None:
    """Return the User with this email and password, suspended or not, else None.

    One hash is made in each case, so that the time does not tell whether a User has the address.
    """
    user = User.objects.filter(email=email, deleted_at=None).first()
    if user is None:
        make_password(normal(password))
        return None
    return user if user.check_password(normal(password)) else None


def suspended(request: HttpRequest) -> HttpResponse:
    """Answer 403 with the message that the API gives too (A-082)."""
    return render(request, "accounts/suspended.html", {"message": suspension_message()}, status=403)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session (A-074)."""
    return sessions.sign_out(request)


@require_safe
@signed_in
def to_first_page(request: AppRequest) -> HttpResponse:
    """Go where a User starts (A-046, A-047)."""
    return HttpResponseRedirect(first_page(request.user))


def _page(
    request: HttpRequest,
    form: SignInForm,
    *,
    fault: str = "",
    told: str = "",
    status: int = 200,
) -> HttpResponse:
    """Show the form; with a fault, the email that was written stays (A-043)."""
    shown = {
        "form": form,
        "fault": fault,
        "told": told,
        "providers": providers(),
        "next": wanted(form["next"].value() or "") or "",
    }
    return render(request, "accounts/sign_in.html", shown, status=status)
