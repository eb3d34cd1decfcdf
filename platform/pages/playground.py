"""The page Playground: its frame, the models' state, and how many tokens a prompt has."""

from time import time

import msgspec
from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.templatetags.static import static
from django.views.decorators.http import require_POST, require_safe
from pydantic import BaseModel, ConfigDict

from api.bodies import Text, checked
from api.json_body import read_json
from billing.allowance import tokens_left
from completions.admission import find_model
from completions.counting import count
from completions.failures import Failure
from completions.request import CompletionRequest
from inference import catalogue, valkey
from inference.catalogue import ModelEntry
from inference.fleet import Boot, Fleet
from jobs import runs
from pages.context import site
from pages.run_state import page_run
from pages.shell import AppRequest, refused, signed_in
from pages.templatetags.models import model_name

EXAMPLE = "The sky is"
"""The gray example of the prompt box (U-44)."""
SETTINGS_COOKIE = "settings"
JSON = "application/json"


class PageModel(msgspec.Struct, kw_only=True):
    """A model as the page offers it; `left_seconds` is about how long its start still takes."""

    id: str
    label: str
    logo: str
    default: bool
    context: int
    layers: int
    width: int
    capture: int
    warm: bool
    stage: str | None
    left_seconds: int | None


class TokensPayload(BaseModel):
    """A prompt to be counted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: Text
    prompt: Text
    add_special_tokens: bool = True


@require_safe
@signed_in
def page(request: AppRequest) -> HttpResponse:
    """Show the Playground with the newest Runs (A-221, A-272, A-273)."""
    rows = [msgspec.to_builtins(page_run(run)) for run in runs.newest(request.user.id)]
    left = tokens_left(user_id=request.user.id, key_id=None)
    state = {
        "models": msgspec.to_builtins(page_models()),
        "runs": rows,
        "left": left.allowance_left + left.budget_left,
        "api": site().api_url,
    }
    context = {
        "state": state,
        "has_runs": bool(rows),
        "example": EXAMPLE,
        "settings_closed": request.COOKIES.get(SETTINGS_COOKIE) == "closed",
    }
    return render(request, "app/playground.html", context)


@require_safe
@signed_in
def models(request: AppRequest) -> HttpResponse:
    """Tell which models are warm, and how far a start is (A-247, A-248)."""
    return shown({"models": page_models()})


@require_POST
@signed_in
def tokens(request: AppRequest) -> HttpResponse:
    """Count the tokens of a prompt for a model."""
    try:
        asked = checked(TokensPayload, read_json(request.body))
        return shown({"tokens": _count(asked)})
    except Failure as failure:
        return refused(request, failure)


def page_models() -> list[PageModel]:
    """Return the served models in the catalogue's order with their state (A-558)."""
    fleet = Fleet(valkey.connection())
    return [_page_model(entry, fleet) for entry in catalogue.current().enabled]


def shown(value: object) -> HttpResponse:
    """Answer a page's script with JSON."""
    return HttpResponse(msgspec.json.encode(value), content_type=JSON)


def _page_model(entry: ModelEntry, fleet: Fleet) -> PageModel:
    name, state = model_name(entry.id), fleet.state(entry)
    return PageModel(
        id=entry.id,
        label=name.label,
        logo=static(name.logo),
        default=entry.default,
        context=entry.max_model_len,
        layers=entry.n_layers,
        width=entry.hidden_size,
        capture=settings.BASALT.max_capture_numbers,
        warm=state.warm,
        stage=None if state.warm or state.boot is None else state.boot.stage.label,
        left_seconds=None if state.boot is None else left_seconds(entry, state.boot),
    )


def left_seconds(entry: ModelEntry, boot: Boot) -> int:
    """Return about how long a start still takes, never below a minute (U-32)."""
    return max(60, entry.start_seconds - int(time() - boot.since))


def _count(asked: TokensPayload) -> int:
    request = CompletionRequest(
        model=asked.model, prompts=(asked.prompt,), add_special_tokens=asked.add_special_tokens
    )
    counted = async_to_sync(count)(request, find_model(asked.model))
    return sum(counted.counts)
