"""A Run as the Playground draws it: a row of the table, and the whole of one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

import msgspec
from django.utils import timezone

from completions.kept_failures import restored
from inference import catalogue
from inference.tokenizers import CONTEXT_TOKENS, TokenCounter, counter_for
from jobs.models import Run
from jobs.runs import body_of, output_of
from jobs.states import WorkState

LEAST = -1e300
"""Stands for minus infinity in a JSON number that a browser reads."""

STATUSES = {
    WorkState.QUEUED: ("waiting", "Waiting"),
    WorkState.RUNNING: ("running", "Running"),
    WorkState.DONE: ("completed", "Completed"),
    WorkState.CANCELLED: ("stopped", "Stopped"),
    WorkState.FAILED: ("failed", "Failed"),
}
"""What pages call the states of a Run (U-31)."""


class PageError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a Run failed or was refused."""

    message: str
    code: str | None
    param: str | None


class PageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a Run."""

    prompt_tokens: int
    completion_tokens: int


class PageRun(msgspec.Struct, kw_only=True):
    """A row of the table (A-273)."""

    number: int
    status: str
    status_label: str
    model: str
    request: dict[str, object]
    text: str
    usage: PageUsage | None
    seconds: float | None
    time: str
    comparison: str | None
    error: PageError | None


class PageAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    text: str
    id: int | None
    logprob: float


class PageToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a choice; `begin` and `end` are code points of the choice's text."""

    text: str
    id: int | None
    logprob: float | None
    begin: int
    end: int
    top: Sequence[PageAlternative]


class PageChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a Run."""

    index: int
    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    tokens: Sequence[PageToken] | None


class WholeRun(PageRun, kw_only=True):
    """A Run as it is shown when it is selected (A-276)."""

    prompt: str
    choices: Sequence[PageChoice] | None
    activations: bool
    can_branch: bool


class Lists(msgspec.Struct):
    """`logprobs` of a choice (C-224)."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class OutputChoice(msgspec.Struct):
    """A choice as `jobs.run_output` keeps it."""

    index: int
    text: str
    logprobs: Lists | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int]
    alternatives: list[list[int]] | None


class Output(msgspec.Struct):
    """What an ended Run came to."""

    choices: list[OutputChoice]
    prompt_token_ids: list[list[int]] = []
    created: int | None = None
    model: str | None = None


def read_output(raw: bytes) -> Output:
    """Read a kept output; a log probability of minus infinity is written as `-1e999`."""
    return msgspec.convert(json.loads(raw), Output)


def page_run(run: Run) -> PageRun:
    """Return a row of the table."""
    return _row(run, {"model": run.model, **run.settings})


def whole_run(run: Run) -> WholeRun:
    """Return a Run with its text, tokens and request.

    Raises:
        OSError: when the file storage cannot give it.
    """
    raw = output_of(run)
    output = read_output(raw) if raw is not None else None
    choices = None if output is None else page_choices(run, output)
    until = run.activations_until
    has_tokens = bool(choices and any(choice.tokens for choice in choices))
    return WholeRun(
        **msgspec.structs.asdict(_row(run, body_of(run))),
        prompt=run.prompt,
        choices=choices,
        activations=until is not None and until > timezone.now(),
        can_branch=has_tokens and bool(output and output.prompt_token_ids),
    )


def _row(run: Run, request: dict[str, object]) -> PageRun:
    status, label = STATUSES[WorkState(run.state)]
    began, ended = run.started_at, run.finished_at
    usage = None
    if run.completion_tokens is not None and run.state != WorkState.FAILED:
        usage = PageUsage(
            prompt_tokens=run.prompt_tokens or 0, completion_tokens=run.completion_tokens
        )
    return PageRun(
        number=run.number,
        status=status,
        status_label=label,
        model=run.model,
        request=request,
        text=run.output_start,
        usage=usage,
        seconds=(ended - began).total_seconds() if ended and began else None,
        time=run_time(run),
        comparison=str(run.comparison) if run.comparison else None,
        error=page_error(run),
    )


def run_time(run: Run) -> str:
    """Write when a Run was started: `05:02 UTC`, before today with its day (A-117)."""
    at = run.created_at.astimezone(UTC)
    is_today = at.date() == timezone.now().astimezone(UTC).date()
    return at.strftime("%H:%M UTC" if is_today else "%Y-%m-%d %H:%M UTC")


def page_error(run: Run) -> PageError | None:
    """Return why a Run failed."""
    if run.error is None:
        return None
    failure = restored(run.error)
    return PageError(message=failure.message, code=failure.code, param=failure.param)


def page_choices(run: Run, output: Output) -> list[PageChoice]:
    """Return the choices of an output with their tokens."""
    entry = catalogue.current().entry(run.model)
    counter = counter_for(entry) if entry is not None and entry.tokenizer else None
    prompt = output.prompt_token_ids[0] if output.prompt_token_ids else []
    return [
        PageChoice(
            index=choice.index,
            text=choice.text,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            tokens=tokens_of(choice, prompt, counter),
        )
        for choice in output.choices
    ]


def tokens_of(
    choice: OutputChoice, prompt: Sequence[int], counter: TokenCounter | None
) -> list[PageToken] | None:
    """Return the tokens of a choice with the likeliest others; with `echo` the prompt's too.

    `prompt` are the ids before the choice's own, and `counter` reads tokens in their context.
    """
    lists = choice.logprobs
    if lists is None:
        return None
    whole = len(choice.text)
    ends = [*lists.text_offset[1:], whole]
    first = len(lists.tokens) - len(choice.token_ids)
    names = TokenNames([*prompt, *choice.token_ids], len(prompt), counter)
    return [
        _token(choice, lists, place, min(ends[place], whole), place - first, names)
        for place in range(len(lists.tokens))
    ]


@dataclass(frozen=True)
class TokenNames:
    """Finds which id a text of the likeliest tokens belongs to."""

    ids: Sequence[int]
    first: int
    """Where the choice's own ids begin."""
    counter: TokenCounter | None

    def of(self, texts: Sequence[str], ids: Sequence[int], place: int) -> list[int | None]:
        """Return the id of each text at a place of the choice; None where two ids share a text.

        Texts stand in the order of their ids unless two of them are the same: then each id is
        read anew.
        """
        if len(ids) == len(texts):
            return list(ids)
        if self.counter is None:
            return [None] * len(texts)
        end = self.first + place
        before = self.ids[max(0, end - CONTEXT_TOKENS) : end]
        named: dict[str, list[int]] = {}
        for each in ids:
            named.setdefault(self.counter.decode_token_in_context(before, each), []).append(each)
        return [found[0] if len(found := named.get(text, [])) == 1 else None for text in texts]


def _token(
    choice: OutputChoice, lists: Lists, place: int, end: int, drawn: int, names: TokenNames
) -> PageToken:
    """Return the token at a place; `drawn` counts those that were generated, below 0 for others."""
    ids: list[int] = []
    if drawn >= 0 and choice.alternatives:
        ids = list(dict.fromkeys(choice.alternatives[drawn]))
    top = lists.top_logprobs[place] or {}
    known = names.of(list(top), ids, drawn)
    likeliest = [
        PageAlternative(text=text, id=each, logprob=max(LEAST, logprob))
        for (text, logprob), each in zip(top.items(), known, strict=True)
    ]
    logprob = lists.token_logprobs[place]
    return PageToken(
        text=lists.tokens[place],
        id=choice.token_ids[drawn] if drawn >= 0 else None,
        logprob=None if logprob is None else max(LEAST, logprob),
        begin=min(lists.text_offset[place], end),
        end=end,
        top=sorted(likeliest, key=lambda each: -each.logprob),
    )
