"""Runs of the Playground: made, listed, read, stopped, deleted, erased."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import IO
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from completions.kept import KeptBody, forget_files, keep, keep_request
from completions.request import CompletionRequest
from jobs import queue
from jobs.models import Run, RunQuerySet
from jobs.run_kind import ACTIVATIONS, OUTPUTS, REQUESTS, RunKind, start_of, without_nul
from jobs.states import WorkState

APART = ("prompt", "model", "stream", "apply_steering_vectors")
"""Fields of a body that are not among a Run's settings."""
ERASED_AT_ONCE = 200
LISTED = 100

_NUMBER = """
INSERT INTO jobs_runnumbers AS n (user_id, last) VALUES (%s, %s)
ON CONFLICT (user_id) DO UPDATE SET last = n.last + EXCLUDED.last RETURNING last
"""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A Run to be made, which `completions.admission.check_submission` let pass."""

    body: dict[str, object]
    """What was asked for, in the API's form."""
    request: CompletionRequest
    """The same, checked; it streams."""
    model: str
    """The model's id."""
    prompt: str
    """The prompt as it is shown."""


def start(*, user_id: UUID, asked: Sequence[Asked]) -> list[Run]:
    """Make one queued Run, or the Runs of a `Run all`, and return them in order.

    Each gets the User's next number (A-270, A-271); several share a `comparison`.

    Raises:
        OSError: when the file storage does not take a large request.
    """
    comparison = uuid4() if len(asked) > 1 else None
    ids = [uuid4() for _ in asked]
    requests = [
        keep_request(f"{REQUESTS}/{run_id}", each.request)
        for run_id, each in zip(ids, asked, strict=True)
    ]
    bodies = [
        keep(f"{REQUESTS}/{run_id}-body", msgspec.json.encode(each.body))
        for run_id, each in zip(ids, asked, strict=True)
    ]
    try:
        with transaction.atomic():
            first = _take_numbers(user_id, len(asked))
            for place, each in enumerate(asked):
                Run.objects.create(
                    id=ids[place],
                    user_id=user_id,
                    number=first + place,
                    model=each.model,
                    created_at=Now(),
                    prompt=without_nul(each.prompt),
                    prompt_start=start_of(each.prompt),
                    settings=_settings(each.body),
                    body=bodies[place].inline,
                    body_file=bodies[place].file,
                    request=requests[place].inline,
                    request_file=requests[place].file,
                    comparison=comparison,
                )
            queue.ring(RunKind.name)
    except BaseException:
        for kept in (*requests, *bodies):
            kept.drop()
        raise
    made = Run.objects.in_bulk(ids)
    return [made[run_id] for run_id in ids]


def _settings(body: dict[str, object]) -> dict[str, object]:
    """Return what lists show of a body: no prompt, and of Steering vectors not their numbers."""
    settings = {name: value for name, value in body.items() if name not in APART}
    vectors = body.get("apply_steering_vectors")
    if isinstance(vectors, list):
        settings["apply_steering_vectors"] = [
            {name: value for name, value in vector.items() if name != "activations"}
            for vector in vectors
        ]
    return settings


def _take_numbers(user_id: UUID, count: int) -> int:
    """Take the next numbers of a User, and return the first of them."""
    with connection.cursor() as cursor:
        cursor.execute(_NUMBER, [user_id, count])
        return int(cursor.fetchone()[0]) - count + 1


def newest(user_id: UUID) -> list[Run]:
    """Return the newest Runs of a User, and the rest of a comparison that the end would cut.

    Newest first, without what only a look at one of them needs (A-273, A-274).
    """
    runs = list(Run.objects.of(user_id).listed()[:LISTED])
    if len(runs) < LISTED or runs[-1].comparison is None:
        return runs
    cut = Q(comparison=runs[-1].comparison, number__lt=runs[-1].number)
    return [*runs, *Run.objects.of(user_id).listed().filter(cut)]


def body_of(run: Run) -> dict[str, object]:
    """Return what a Run asked for, in the API's form.

    Raises:
        OSError: when the file storage cannot give it.
    """
    kept = KeptBody(None if run.body is None else bytes(run.body), run.body_file)
    return msgspec.json.decode(_bytes(kept.read()), type=dict[str, object])


def output_of(run: Run) -> bytes | None:
    """Return the JSON of what an ended Run came to (see `jobs.run_output`).

    None before the end, and for one that was stopped before it began.

    Raises:
        OSError: when the file storage cannot give it.
    """
    if run.output is None and not run.output_file:
        return None
    kept = KeptBody(None if run.output is None else bytes(run.output), run.output_file)
    return _bytes(kept.read())


def activations_of(run: Run) -> IO[bytes] | None:
    """Return the JSON of what a Run read, `{"residual_stream": {...}}`, while it is kept.

    Raises:
        OSError: when the file storage cannot give it.
    """
    until = run.activations_until
    if until is None or until <= timezone.now():
        return None
    file = KeptBody(None, run.activations_file).read()
    assert not isinstance(file, bytes)
    return file


def _bytes(kept: bytes | IO[bytes]) -> bytes:
    if isinstance(kept, bytes):
        return kept
    with kept:
        return kept.read()


def stop(runs: RunQuerySet) -> int:
    """Stop the Runs of a query that have not ended; they keep their text and pay for it (A-238)."""
    with transaction.atomic():
        stopped = queue.cancel(runs)
        waits = Q(request__isnull=False) | ~Q(request_file="")
        idle = runs.filter(waits, state=WorkState.CANCELLED, owner__isnull=True)
        for run in idle.only("id", "request_file"):
            transaction.on_commit(KeptBody(None, run.request_file).drop)
            Run.objects.filter(id=run.id).update(request=None, request_file="")
    return stopped


def delete(runs: RunQuerySet) -> int:
    """Delete the Runs of a query: stopped, unreadable at once, erased later (A-285, A-286)."""
    with transaction.atomic():
        stop(runs)
        return runs.filter(deleted_at__isnull=True).update(deleted_at=Now())


def erase_expired() -> int:
    """Erase deleted Runs and what Runs read, each past its time (C-638, C-639).

    Returns how many were erased; each call does a bounded part, so it is called again and again.
    """
    env, now = settings.BASALT, timezone.now()
    old = now - timedelta(seconds=env.run_activations_seconds)
    for run in (
        Run.objects.exclude(activations_file="")
        .filter(finished_at__lte=old)
        .only("id", "activations_file")[:ERASED_AT_ONCE]
    ):
        Run.objects.filter(id=run.id).update(activations_file="", activations_shape=None)
        KeptBody(None, run.activations_file).drop()
    gone = now - timedelta(seconds=env.run_keep_deleted_seconds)
    erased = 0
    for run in Run.objects.filter(deleted_at__lte=gone, owner__isnull=True).only(
        "id", "body_file", "request_file", "output_file", "activations_file"
    )[:ERASED_AT_ONCE]:
        files = (run.body_file, run.request_file, run.output_file, run.activations_file)
        Run.objects.filter(id=run.id).delete()
        for file in files:
            KeptBody(None, file).drop()
        erased += 1
    forget_files(ACTIVATIONS, old)
    _forget_orphans()
    return erased


def _forget_orphans() -> None:
    """Remove files that no Run has: those of attempts that were lost as they ended."""
    day_ago = timezone.now() - timedelta(days=1)

    def has_request(file: str) -> bool:
        return Run.objects.filter(Q(request_file=file) | Q(body_file=file)).exists()

    forget_files(REQUESTS, day_ago, has_request)
    forget_files(OUTPUTS, day_ago, lambda file: Run.objects.filter(output_file=file).exists())
