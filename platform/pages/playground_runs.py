"""Runs from the Playground's page: start, read, go on from a token, stop, delete, read Layers."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated
from uuid import UUID

import msgspec
import numpy as np
from asgiref.sync import async_to_sync
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST, require_safe
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import checked, completion_request
from api.json_body import read_json
from api.limits import app_bucket
from billing.allowance import tokens_left
from completions.admission import check_submission
from completions.failures import Failure, invalid
from completions.kept_activations import KeptActivations
from completions.payer import AppUser
from inference import catalogue
from inference.tokenizers import CONTEXT_TOKENS, counter_for
from jobs import runs
from jobs.models import Run
from jobs.run_kind import RUN
from jobs.runs import Asked
from pages.playground import shown
from pages.run_state import PageError, PageRun, page_choices, page_run, read_output, whole_run
from pages.shell import AppRequest, refused, signed_in
from pages.templatetags.numbers import full_time

MOST_MODELS = 6
"""Models of one `Run all` (A-264)."""
GONE = "The Activations of this Run are gone: they are kept for 7 days after it ended."


class StartPayload(BaseModel):
    """What `Run` and `Run all` send: one body of the API for each model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: Annotated[list[dict[str, object]], Field(min_length=1, max_length=MOST_MODELS)]


class BranchPayload(BaseModel):
    """Where to go on: the choice, the place of a token in it, and the token that stands there."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    choice: Annotated[int, Field(ge=0)]
    place: Annotated[int, Field(ge=0)]
    token: Annotated[int, Field(ge=0)]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one body: a Run, or why there is none (A-252, A-269)."""

    run: PageRun | None = None
    error: PageError | None = None


def tells_faults(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Let refusals of a view reach the page's script in the API's form of errors."""

    @wraps(view)
    def telling(request: AppRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except Failure as failure:
            return refused(request, failure)

    return telling


@require_POST
@signed_in
@tells_faults
def start(request: AppRequest) -> HttpResponse:
    """Start one Run for each body; one that is refused does not keep the others (A-269)."""
    payload = checked(StartPayload, read_json(request.body))
    asked = [ask(request.user.id, body) for body in payload.runs]
    made = iter(_start(request.user.id, [each for each in asked if isinstance(each, Asked)]))
    results = [
        Result(run=page_run(next(made))) if isinstance(each, Asked) else Result(error=each)
        for each in asked
    ]
    return shown({"results": results})


@require_POST
@signed_in
@tells_faults
def branch(request: AppRequest, number: int) -> HttpResponse:
    """Start a Run that goes on from another token of a Run (A-294, U-49)."""
    run = own_run(request, number)
    body, prompt = branched(run, checked(BranchPayload, read_json(request.body)))
    asked = ask(request.user.id, body, prompt=prompt)
    if isinstance(asked, PageError):
        return refused(request, Failure(400, asked.message, asked.code, param=asked.param))
    [made] = _start(request.user.id, [asked])
    return shown({"run": page_run(made)})


@require_safe
@signed_in
def whole(request: AppRequest, number: int) -> HttpResponse:
    """Answer with one Run as a whole (A-276), and the tokens that are left after it."""
    left = tokens_left(user_id=request.user.id, key_id=None)
    found = msgspec.to_builtins(whole_run(own_run(request, number)))
    return shown(found | {"left": left.allowance_left + left.budget_left})


@require_POST
@signed_in
def stop(request: AppRequest, number: int) -> HttpResponse:
    """Stop a Run; it keeps its text and pays the tokens that it used (A-238)."""
    runs.stop(Run.objects.of(request.user.id).filter(id=own_run(request, number).id))
    return HttpResponse(b"null", content_type="application/json")


@require_POST
@signed_in
def delete(request: AppRequest, number: int) -> HttpResponse:
    """Delete a Run (A-285)."""
    runs.delete(Run.objects.of(request.user.id).filter(id=own_run(request, number).id))
    return HttpResponse(b"null", content_type="application/json")


@require_safe
@signed_in
@tells_faults
def norms(request: AppRequest, number: int) -> HttpResponse:
    """Answer with the norm of each Layer at each token (A-246)."""
    run = own_run(request, number)
    kept = activations(run)
    with kept.file:
        values = kept.norms()
    layers = run.settings.get("output_residual_stream")
    tokens = token_texts(run)[: kept.shape[1]]
    return shown(
        {
            "layers": sorted(set(layers)) if isinstance(layers, list) else [*range(kept.shape[0])],
            "tokens": [*tokens, *[""] * (kept.shape[1] - len(tokens))],
            "norms": np.round(values, 6).tolist(),
            "hidden": kept.shape[2],
            "input_tokens": run.prompt_tokens,
            "output_tokens": kept.shape[1] - (run.prompt_tokens or 0),
            "expires": full_time(run.activations_until),
        }
    )


@require_safe
@signed_in
@tells_faults
def numbers(request: AppRequest, number: int) -> StreamingHttpResponse:
    """Hand out what was read as a NumPy file, `[layers, tokens, hidden]` in float32."""
    kept = activations(own_run(request, number))

    def pieces() -> Iterator[bytes]:
        with kept.file:
            yield from kept.npy_pieces()

    answer = StreamingHttpResponse(pieces(), content_type="application/octet-stream")
    answer.headers["Content-Disposition"] = f'attachment; filename="run-{number}.npy"'
    return answer


def own_run(request: AppRequest, number: int) -> Run:
    """Return the User's Run of this number; 404 for every other (A-127)."""
    run = Run.objects.of(request.user.id).filter(number=number).first()
    if run is None:
        raise Http404("there is no such Run")
    return run


def ask(user_id: UUID, body: dict[str, object], *, prompt: str | None = None) -> Asked | PageError:
    """Check what a Run asks for, as the API would; `prompt` is the text of one that is ids.

    Counts towards what a User may start in a minute (A-122), whether it is refused or not.
    """
    text = body.get("prompt")
    if isinstance(text, str):
        # A line break of a form is CRLF; what was typed is LF.
        body = body | {"prompt": text.replace("\r\n", "\n")}
    try:
        app_bucket(str(user_id)).take()
        if {"stream", "stream_options", "prompt_logprobs", "user"} & body.keys():
            raise invalid(None, "The App streams its Runs and has no prompt_logprobs.")
        request = completion_request(body | {"stream": True})
        if len(request.prompts) != 1:
            raise invalid("prompt", "A Run has one prompt.")
        counted = async_to_sync(check_submission)(request, payer=AppUser(user_id), policy=RUN)
    except Failure as failure:
        return PageError(message=failure.message, code=failure.code, param=failure.param)
    [shown_prompt] = request.prompts if prompt is None else (prompt,)
    return Asked(
        body=body | {"model": counted.model.id},
        request=request,
        model=counted.model.id,
        prompt=shown_prompt if isinstance(shown_prompt, str) else "",
    )


def _start(user_id: UUID, asked: list[Asked]) -> list[Run]:
    return runs.start(user_id=user_id, asked=asked) if asked else []


def branched(run: Run, at: BranchPayload) -> tuple[dict[str, object], str]:
    """Return the body of the Run that goes on from a token, as token ids, and its prompt's text.

    The prompt is what the first Run's tokens were, up to the place, then the token: so the
    tokenization is kept.

    Raises:
        Failure: when the Run has no such choice, place or token.
    """
    raw = runs.output_of(run)
    output = read_output(raw) if raw else None
    found = page_choices(run, output) if output else []
    shown_choice = next((each for each in found if each.index == at.choice), None)
    tokens = shown_choice.tokens if shown_choice else None
    if output is None or shown_choice is None or not tokens or at.place >= len(tokens):
        raise invalid("place", "The Run has no such token.")
    if not output.prompt_token_ids:
        raise invalid("place", "The token ids of this Run are not known.")
    token = tokens[at.place]
    text = next((each.text for each in token.top if each.id == at.token), None)
    if text is None:
        raise invalid("token", "The token is not one of the likeliest there.")
    [choice] = [each for each in output.choices if each.index == at.choice]
    ids = [*output.prompt_token_ids[0], *choice.token_ids]
    begin = len(ids) - len(tokens) + at.place
    body = runs.body_of(run)
    before = "" if body.get("echo") else run.prompt
    body = {name: value for name, value in body.items() if name != "n"}
    body["prompt"] = [*ids[:begin], at.token]
    return body, before + choice.text[: token.begin] + text


def activations(run: Run) -> KeptActivations:
    """Open what a Run read.

    Raises:
        Failure: 410 once it is gone (A-287).
    """
    file = runs.activations_of(run)
    if file is None:
        raise Failure(410, GONE)
    return KeptActivations.open(file)


def token_texts(run: Run) -> list[str]:
    """Return the text of each token that ran through the model: prompt, then output."""
    raw = runs.output_of(run)
    entry = catalogue.current().entry(run.model)
    if raw is None or entry is None or not entry.tokenizer:
        return []
    output = read_output(raw)
    ids = [*(output.prompt_token_ids or [[]])[0], *output.choices[0].token_ids]
    counter = counter_for(entry)
    return [
        counter.decode_token_in_context(ids[max(0, place - CONTEXT_TOKENS) : place], token)
        for place, token in enumerate(ids)
    ]
