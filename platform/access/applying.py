"""The Apply form, and the same form behind an Invite (A-001 to A-023)."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from access.decisions import apply as store
from access.forms import RULES, ApplyForm
from access.invites import PATH, InviteDead, accept, find_invite
from access.limits import Tried, refusal, seconds_to_wait
from access.passwords import to_link

COOKIE = "invite"


@require_http_methods(["GET", "HEAD", "POST"])
def apply(request: HttpRequest) -> HttpResponse:
    """Show the form, or store an Application; every address gets the same answer (A-007)."""
    if request.method != "POST":
        return _page(request, ApplyForm())
    form = ApplyForm(request.POST)
    if seconds := seconds_to_wait(request, Tried.APPLY):
        return _page(request, form, fault=refusal(Tried.APPLY, seconds), status=429)
    if not form.is_valid():
        return _page(request, form, status=400)
    store(
        email=form.cleaned_data["email"],
        name=form.cleaned_data["name"],
        organization=form.cleaned_data["organization"],
        planned_usage=form.cleaned_data["planned_usage"],
        answers=form.answers,
    )
    return render(request, "accounts/received.html")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invited(request: HttpRequest) -> HttpResponse:
    """Show an Invite's form, or set the person up and go on to the password (A-015 to A-018)."""
    if "token" in request.GET:
        answer = HttpResponseRedirect(PATH)
        answer.set_cookie(
            COOKIE,
            request.GET["token"][:200],
            max_age=3600,
            httponly=True,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
        return answer
    token = request.COOKIES.get(COOKIE, "")
    try:
        found = find_invite(token)
    except InviteDead:
        return _dead(request)
    if request.method != "POST":
        return _page(request, ApplyForm(email=found.email), is_invite=True)
    form = ApplyForm(request.POST, email=found.email)
    if not form.is_valid():
        return _page(request, form, is_invite=True, status=400)
    try:
        link = accept(
            token=token,
            name=form.cleaned_data["name"],
            organization=form.cleaned_data["organization"],
            planned_usage=form.cleaned_data["planned_usage"],
            answers=form.answers,
        )
    except InviteDead:
        return _dead(request)
    on = to_link(link)
    on.delete_cookie(COOKIE)
    return on


def _page(
    request: HttpRequest,
    form: ApplyForm,
    *,
    fault: str = "",
    is_invite: bool = False,
    status: int = 200,
) -> HttpResponse:
    rules = [rule.format(app=settings.BASALT.app_address) for rule in RULES]
    shown = {"form": form, "rules": rules, "fault": fault, "is_invite": is_invite}
    return render(request, "accounts/apply.html", shown, status=status)


def _dead(request: HttpRequest) -> HttpResponse:
    """Say that the Invite's link did not work, and link to the Apply form (U-03)."""
    return render(request, "accounts/invite_dead.html", status=410)
