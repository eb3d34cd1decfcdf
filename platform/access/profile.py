"""The profile: who one is here, and the ways to sign in (A-060 to A-065, A-374 to A-376)."""

from datetime import timedelta

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from access.providers import NAMES, linked, providers, unlink
from accounts import sessions
from accounts.people import Refused
from accounts.two_factor import has_two_factor
from pages.shell import AppRequest, signed_in

FRESH = timedelta(days=1)
STALE = "Your session is older than a day. Sign out, sign in again, and then unlink it."


@require_safe
@signed_in
def profile(request: AppRequest) -> HttpResponse:
    """Show name and email, how to sign in, and nothing of role or tokens (A-375)."""
    have = linked(request.user)
    ways = [{"provider": each, "is_linked": each.id in have} for each in providers()]
    shown = {
        "ways": ways,
        "has_password": request.user.has_usable_password(),
        "two_factor": has_two_factor(request.user),
    }
    return render(request, "accounts/profile.html", shown)


@require_POST
@signed_in
def unlink_provider(request: AppRequest, provider_id: str) -> HttpResponse:
    """Take a provider off the User (A-062 to A-064)."""
    if provider_id not in NAMES:
        raise Http404("There is no such provider.")
    began = sessions.began_at(request)
    if began is None or timezone.now() - began >= FRESH:
        messages.error(request, STALE)
    else:
        try:
            unlink(user=request.user, provider_id=provider_id)
        except Refused as why:
            messages.error(request, str(why))
        else:
            messages.success(request, f"{NAMES[provider_id]} is not linked any more.")
    return HttpResponseRedirect(reverse("profile"))


def gone(request: HttpRequest) -> HttpResponse:
    """Answer addresses that allauth's flows name and that do not exist here (A-013)."""
    raise Http404("There is no such page.")
