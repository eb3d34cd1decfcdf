"""How a Run runs: one Completion with a stream, whose gains are saved as they come."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from billing.models import Source
from completions.admission import Policy
from completions.database import in_database, to_its_end
from completions.generation import Generation
from completions.kept import KeptBody, keep, read_request
from completions.payloads import Choices, is_large
from completions.pieces import body_of, in_file
from completions.request import CompletionRequest
from inference.backends.router import Inference
from inference.engine.messages import Delta, Finished
from jobs.background import completion
from jobs.kinds import Kind
from jobs.models import START_LENGTH, Run, RunPiece
from jobs.outages import Outage
from jobs.records import WorkRecord
from jobs.run_output import Gathered, piece_of, written_gain
from jobs.states import LIVE, WorkState

RUN = Policy(source=Source.PLAYGROUND)
REQUESTS = "run-requests"
OUTPUTS = "run-outputs"
ACTIVATIONS = "run-activations"
"""Folders of the file storage: what Runs ask for, their outputs, and what they read."""


# A Run that is another attempt's by now, or was cancelled, gains nothing more here.
_SAVE = """
INSERT INTO jobs_runpiece (run_id, attempt, position, gains)
SELECT id, attempt, %(position)s, %(gains)s FROM jobs_run
WHERE id = %(run)s AND attempt = %(attempt)s AND state = 'running'
"""


def without_nul(text: str) -> str:
    """Return a text that a column can hold: the database has no U+0000."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def start_of(text: str) -> str:
    """Return what lists show of a text."""
    return without_nul(text[:START_LENGTH])


class RunRecord(WorkRecord[Run]):
    """One attempt at a Run; a crash ends it for good, with the text that it had (C-609)."""

    runs_again = False

    def __init__(self, work: Run) -> None:
        super().__init__(work)
        self._gathered = Gathered()
        self._gains: list[bytes] = []
        self._position = 0
        self._head: Mapping[str, object] = {}
        self._output: KeptBody | None = None
        self._activations: KeptBody | None = None
        self._shape: tuple[int, ...] | None = None
        self._finished: Finished | None = None
        self._prompts: tuple[tuple[int, ...], ...] = ()
        self._outage = Outage(
            "a piece is saved later", "pieces are saved again", run=str(self.work.id)
        )

    def request(self) -> CompletionRequest:
        """Return the request that was made; for a thread."""
        run = self.work
        return read_request(
            KeptBody(None if run.request is None else bytes(run.request), run.request_file)
        )

    def begin(self, generation: Generation) -> None:
        """Note what the output begins with."""
        self._prompts = generation.engine_request.prompts

    def gain(self, choices: Choices, delta: Delta) -> None:
        """Take what a choice gained."""
        self._gains.append(written_gain(b"".join(choices.gained(delta)), delta))
        self._head = choices.head

    def save(self) -> None:
        """Save what was gained since the last time; a failure costs a moment, not the Run."""
        gains = list(self._gains)
        if not gains:
            return
        piece = piece_of(gains)
        values = {
            "run": self.work.id,
            "attempt": self.work.attempt,
            "position": self._position + 1,
            "gains": piece,
        }
        try:
            with connection.cursor() as cursor:
                cursor.execute(_SAVE, values)
                if not cursor.rowcount:
                    return
        except DatabaseError as away:
            self._outage.failed(away)
            return
        self._outage.over()
        self._position += 1
        del self._gains[: len(gains)]
        self._gathered.add(piece)

    def finish(self, choices: Choices, end: Finished) -> None:
        """Keep what was read of the residual stream; for a thread.

        Raises:
            OSError: when it cannot be kept.
        """
        self._finished = end
        pieces = choices.activations()
        if pieces is None or end.residuals is None:
            return
        body = body_of(pieces)
        content = in_file(body)
        content.seek(0)
        self._activations = keep(f"{ACTIVATIONS}/{uuid4()}", content)
        self._shape = end.residuals.shape

    def columns(self, state: WorkState) -> Mapping[str, object]:
        """Keep what the Run came to; one that runs again begins anew (C-607)."""
        pieces = RunPiece.objects.filter(run_id=self.work.id)
        if state in LIVE:
            pieces.delete()
            return {}
        self._gather(pieces.filter(attempt=self.attempt).order_by("position"))
        if state is not WorkState.DONE and self._activations is not None:
            transaction.on_commit(self._activations.drop)
            self._activations = None
        transaction.on_commit(KeptBody(None, self.work.request_file).drop)
        pieces.delete()
        kept = self._keep_output()
        return {
            "request": None,
            "request_file": "",
            "output": kept.inline,
            "output_file": kept.file,
            "output_start": start_of(self._gathered.first_text),
            "activations_file": self._activations.file if self._activations else "",
            "activations_shape": self._shape if self._activations else None,
            **self._usage(),
        }

    def _gather(self, pieces: QuerySet[RunPiece]) -> None:
        """Gather what was not saved yet, or, after a crash, what a dead process had saved."""
        if not self._prompts:
            for piece in pieces.values_list("gains", flat=True).iterator():
                self._gathered.add(bytes(piece))
        elif self._gains:
            self._gathered.add(piece_of(self._gains))
            self._gains.clear()

    def _keep_output(self) -> KeptBody:
        """Keep the output once, however often the end has to be written."""
        if self._output is None:
            more = {"prompt_token_ids": self._prompts, "usage": self._usage()}
            body = body_of(self._gathered.pieces({**self._head, **more}))
            content = body.start if body.rest is None else in_file(body)
            if not isinstance(content, bytes):
                content.seek(0)
            self._output = keep(f"{OUTPUTS}/{uuid4()}", content)
        return self._output

    def _usage(self) -> dict[str, object]:
        if self._finished is not None:
            end = self._finished
            return {
                "prompt_tokens": end.prompt_tokens,
                "completion_tokens": end.completion_tokens,
            }
        if not self._prompts:
            return {"completion_tokens": self._gathered.generated or None}
        return {
            "prompt_tokens": sum(map(len, self._prompts)),
            "completion_tokens": self._gathered.generated,
        }


class RunKind(Kind[RunRecord]):
    """Runs: as many at once as the models have places (C-616)."""

    name = "run"
    model = Run
    source = Source.PLAYGROUND

    @property
    def most(self) -> None:
        """No bound over all runners."""
        return

    @property
    def most_here(self) -> int:
        """Runs of one runner."""
        return settings.BASALT.max_work_in_runner

    def record(self, work: Run) -> RunRecord:
        """Return the record of an attempt."""
        return RunRecord(work)

    async def run(self, record: RunRecord, client: Inference) -> None:
        """Run the Completion and save what it gains."""
        request = await asyncio.to_thread(record.request)
        async with completion(
            request, record=record, request_id=record.work.request_id, policy=RUN, client=client
        ) as generation:
            record.begin(generation)
            async with saving(record):
                await follow_engine(record, generation)


async def follow_engine(record: RunRecord, generation: Generation) -> None:
    """Take what the Completion gains until it has ended.

    Raises:
        Failure: of Inference, or because its answer does not fit the request.
    """
    choices = await asyncio.to_thread(Choices, generation)
    async with contextlib.aclosing(generation.events()) as events:
        async for event in events:
            if not isinstance(event, Delta):
                choices.end(generation, event)
                await asyncio.to_thread(record.finish, choices, event)
                continue
            if is_large(event):
                await asyncio.to_thread(record.gain, choices, event)
            else:
                record.gain(choices, event)
            generation.sent(len(event.token_ids))


@contextlib.asynccontextmanager
async def saving(record: RunRecord) -> AsyncIterator[None]:
    """Save what is gained every moment while the context is open."""

    async def run() -> None:
        while True:
            await asyncio.sleep(settings.BASALT.run_stream_seconds)
            await to_its_end(in_database(record.save))

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
