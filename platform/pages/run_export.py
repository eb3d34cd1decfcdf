"""Exports of Runs: JSON, JSONL and Text, written Run by Run so that any number fits (A-300)."""

from collections.abc import Callable, Iterator

import msgspec
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from completions.failures import Failure, invalid
from completions.payloads import usage_object
from jobs import runs
from jobs.models import Run
from jobs.states import WorkState
from pages.run_state import STATUSES, run_time
from pages.shell import AppRequest, refused, signed_in

MOST_CHOSEN = 1_000
"""Runs that one export names; `Export every run` names none."""
RULE = "-" * 40


class RawChoice(msgspec.Struct):
    """A choice of a kept output, its log probabilities as they were written."""

    index: int
    text: str
    logprobs: msgspec.Raw
    finish_reason: str | None
    stop_reason: str | int | None


class RawOutput(msgspec.Struct):
    """A kept output."""

    choices: list[RawChoice]
    created: int | None = None
    model: str | None = None


_outputs = msgspec.json.Decoder(RawOutput)


@require_safe
@signed_in
def export(request: AppRequest) -> HttpResponseBase:
    """Hand out the chosen Runs, or every one that is kept, oldest first (A-301)."""
    try:
        kind = request.GET.get("format", "")
        writer = WRITERS.get(kind)
        if writer is None:
            raise invalid("format", "An export is json, jsonl or txt.")
        chosen = _numbers(request.GET.get("runs"))
    except Failure as failure:
        return refused(request, failure)
    found = Run.objects.of(request.user.id).order_by("number")
    if chosen is not None:
        found = found.filter(number__in=chosen)
    pieces = writer(found.iterator(chunk_size=20), chosen is not None)
    answer = StreamingHttpResponse(pieces, content_type=TYPES[kind])
    answer.headers["Content-Disposition"] = f'attachment; filename="playground-runs.{kind}"'
    return answer


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > MOST_CHOSEN or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise invalid("runs", f"Name up to {MOST_CHOSEN} Runs by their numbers.")
    return [int(part) for part in parts]


def _json(found: Iterator[Run], with_activations: bool) -> Iterator[bytes]:
    """One object for each Run (A-302)."""
    separator = b"[\n"
    for run in found:
        yield separator
        yield from _object(run, with_activations)
        separator = b",\n"
    yield b"\n]\n" if separator == b",\n" else b"[]\n"


def _object(run: Run, with_activations: bool) -> Iterator[bytes]:
    head = {
        "number": run.number,
        "status": STATUSES[WorkState(run.state)][1],
        "model": run.model,
        "started": run.created_at.isoformat(),
        "ended": run.finished_at.isoformat() if run.finished_at else None,
        "usage": _usage(run),
        "error": run.error,
        "request": runs.body_of(run),
    }
    yield msgspec.json.encode(head)[:-1] + b',"completion":'
    output = _output(run)
    if output is None:
        yield b"null}"
        return
    completion = {
        "id": run.request_id,
        "object": "text_completion",
        "created": output.created,
        "model": output.model,
        "choices": output.choices,
        "usage": _usage(run),
    }
    yield msgspec.json.encode(completion)[:-1]
    file = runs.activations_of(run) if with_activations else None
    if file is not None:
        yield b',"activations":'
        with file:
            while part := file.read(2**20):
                yield part
    yield b"}}"


def _jsonl(found: Iterator[Run], with_activations: bool) -> Iterator[bytes]:
    """One line for each choice (A-303)."""
    for run in found:
        output = _output(run)
        if output is None:
            continue
        body = runs.body_of(run)
        asked = {name: value for name, value in body.items() if name not in ("prompt", "model")}
        for choice in output.choices:
            line = {
                "run": run.number,
                "choice": choice.index,
                "status": STATUSES[WorkState(run.state)][1],
                "model": run.model,
                "prompt": run.prompt,
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "prompt_tokens": run.prompt_tokens,
                "completion_tokens": run.completion_tokens,
                "started": run.created_at.isoformat(),
                "request": asked,
                "logprobs": choice.logprobs,
            }
            yield msgspec.json.encode(line) + b"\n"


def _text(found: Iterator[Run], with_activations: bool) -> Iterator[bytes]:
    """Each choice's text with its prompt (A-304)."""
    for run in found:
        output = _output(run)
        for choice in output.choices if output else []:
            many = f", choice {choice.index + 1}" if len(output.choices) > 1 else ""  # type: ignore[union-attr]
            title = f"Run {run.number}{many} · {run.model} · {run_time(run)}"
            prompt = "" if run.settings.get("echo") else run.prompt
            yield f"{RULE}\n{title}\n{RULE}\n{prompt}{choice.text}\n\n".encode()


def _output(run: Run) -> RawOutput | None:
    raw = runs.output_of(run)
    return None if raw is None else _outputs.decode(raw)


def _usage(run: Run) -> dict[str, int] | None:
    if run.completion_tokens is None:
        return None
    return usage_object(run.prompt_tokens or 0, run.completion_tokens)


WRITERS: dict[str, Callable[[Iterator[Run], bool], Iterator[bytes]]] = {
    "json": _json,
    "jsonl": _jsonl,
    "txt": _text,
}
TYPES = {
    "json": "application/json",
    "jsonl": "application/jsonl",
    "txt": "text/plain; charset=utf-8",
}
