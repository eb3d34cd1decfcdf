"""The page API Keys: make, rename, pause, resume and revoke one's own keys."""

import json
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from accounts.keys import (
    KeyNameTaken,
    TooManyKeys,
    create_key,
    pause_key,
    rename_key,
    resume_key,
    revoke_key,
)
from accounts.models import KEY_NAME_LENGTH, ApiKey
from billing.report import live_keys
from completions.failures import NUL_MESSAGE, Failure, invalid
from pages.shell import AppRequest, refused, signed_in


@require_safe
@signed_in
def page(request: AppRequest) -> HttpResponse:
    """Show the frame of the page; its table comes by itself (A-141)."""
    context = {"name_length": KEY_NAME_LENGTH, "most": settings.BASALT.max_keys_per_user}
    return render(request, "app/api_keys.html", context)


@require_safe
@signed_in
def table(request: AppRequest) -> HttpResponse:
    """Show the live keys with what they used and have left (A-151 to A-156)."""
    most = settings.BASALT.max_keys_per_user
    keys = live_keys(user_id=request.user.id)
    context = {"keys": keys, "most": most, "is_full": len(keys) >= most}
    return render(request, "app/api_keys_table.html", context)


@require_POST
@signed_in
def create(request: AppRequest) -> HttpResponse:
    """Make a key and answer with its secret, this once (A-146)."""
    try:
        _, secret = create_key(user=request.user, name=_name(request))
    except Failure as failure:
        return refused(request, failure)
    except TooManyKeys:
        return refused(request, too_many_keys())
    except KeyNameTaken:
        return refused(request, name_taken())
    return JsonResponse({"secret": secret}, status=201)


@require_POST
@signed_in
def rename(request: AppRequest, key_id: UUID) -> HttpResponse:
    """Rename a live key (A-158)."""
    key = own_key(request, key_id)
    try:
        rename_key(key_id=key.id, name=_name(request))
    except Failure as failure:
        return refused(request, failure)
    except KeyNameTaken:
        return refused(request, name_taken())
    return HttpResponse(status=204)


@require_POST
@signed_in
def pause(request: AppRequest, key_id: UUID) -> HttpResponse:
    """Pause a live key (A-159)."""
    pause_key(key_id=own_key(request, key_id).id)
    return HttpResponse(status=204)


@require_POST
@signed_in
def resume(request: AppRequest, key_id: UUID) -> HttpResponse:
    """Accept a paused key again (A-160)."""
    resume_key(key_id=own_key(request, key_id).id)
    return HttpResponse(status=204)


@require_POST
@signed_in
def revoke(request: AppRequest, key_id: UUID) -> HttpResponse:
    """End a live key for good (A-163)."""
    revoke_key(key_id=own_key(request, key_id).id)
    return HttpResponse(status=204)


def own_key(request: AppRequest, key_id: UUID) -> ApiKey:
    """Return the User's live key with this id; 404 for every other (A-167)."""
    key = ApiKey.objects.filter(user=request.user, id=key_id, revoked_at=None).first()
    if key is None:
        raise Http404("there is no such API key")
    return key


def check_key_name(name: object) -> str:
    """Return a key's name without the spaces around it.

    Raises:
        Failure: 400 on `name` for one that is empty, too long or holds U+0000 (A-143, A-126).
    """
    if not isinstance(name, str) or not name.strip():
        raise invalid("name", "Give the key a name.")
    if "\0" in name:
        raise invalid("name", NUL_MESSAGE)
    if len(name.strip()) > KEY_NAME_LENGTH:
        raise invalid("name", f"A name has at most {KEY_NAME_LENGTH} characters.")
    return name.strip()


def too_many_keys() -> Failure:
    """The User has as many live keys as a User may have (A-149, A-150)."""
    most = settings.BASALT.max_keys_per_user
    return Failure(
        409,
        f"You have {most} API keys, the most that a User may have. Delete one to make another.",
    )


def name_taken() -> Failure:
    """Another live key of the User has the name (A-144)."""
    return Failure(409, "One of your API keys has this name already.", param="name")


def _name(request: HttpRequest) -> str:
    try:
        body = json.loads(request.body)
    except ValueError:
        raise invalid("name", "Give the key a name.") from None
    return check_key_name(body.get("name") if isinstance(body, dict) else None)
