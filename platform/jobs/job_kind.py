"""How a Job runs: one Completion without a stream, whose body is kept."""

import asyncio
import contextlib
from collections.abc import Mapping
from uuid import uuid4

from django.conf import settings
from django.db import transaction

from billing.models import Source
from completions.admission import Policy
from completions.generation import Generation
from completions.kept import KeptBody, keep, read_request
from completions.payloads import Choices, is_large
from completions.pieces import body_of, in_file
from completions.request import CompletionRequest
from inference.backends.router import Inference
from inference.engine.messages import Delta
from jobs.background import completion
from jobs.kinds import Kind
from jobs.models import Job
from jobs.records import WorkRecord
from jobs.states import LIVE, WorkState

JOB = Policy(source=Source.JOB)
RESULTS = "job-results"
"""Folder of large results in the file storage."""
REQUESTS = "job-requests"
"""Folder of large requests."""


def result_of(job: Job) -> KeptBody:
    """Return the kept body of a Job that succeeded."""
    return KeptBody(None if job.result is None else bytes(job.result), job.result_file)


class JobRecord(WorkRecord[Job]):
    """One attempt at a Job."""

    def __init__(self, work: Job) -> None:
        super().__init__(work)
        self._result: KeptBody | None = None

    def keep(self, choices: Choices, usage: dict[str, int]) -> None:
        """Keep the body of the answer; for a thread.

        Raises:
            OSError: when it cannot be kept, which fails the Job (C-437).
        """
        body = body_of(choices.whole(usage))
        content = body.start if body.rest is None else in_file(body)
        if not isinstance(content, bytes):
            content.seek(0)
        self._result = keep(f"{RESULTS}/{uuid4()}", content)

    def request(self) -> CompletionRequest:
        """Return the request that was submitted; for a thread."""
        job = self.work
        return read_request(
            KeptBody(None if job.request is None else bytes(job.request), job.request_file)
        )

    def columns(self, state: WorkState) -> Mapping[str, object]:
        """Keep the answer of a Job that succeeded; an ended Job needs its request no more."""
        if state is not WorkState.DONE and self._result is not None:
            transaction.on_commit(self._result.drop)
        if state in LIVE:
            return {}
        columns: dict[str, object] = {"request": None, "request_file": ""}
        transaction.on_commit(KeptBody(None, self.work.request_file).drop)
        if state is WorkState.DONE and self._result is not None:
            columns |= {"result": self._result.inline, "result_file": self._result.file}
        return columns


class JobKind(Kind[JobRecord]):
    """Jobs: few at once, and every User has a turn (C-445, C-446)."""

    name = "job"
    model = Job
    by_turns = True
    source = Source.JOB

    @property
    def most(self) -> int:
        """Jobs that run at once over all Users."""
        return settings.BASALT.max_running_jobs

    @property
    def most_here(self) -> int:
        """The same: one runner may have all of them."""
        return settings.BASALT.max_running_jobs

    def record(self, work: Job) -> JobRecord:
        """Return the record of an attempt."""
        return JobRecord(work)

    async def run(self, record: JobRecord, client: Inference) -> None:
        """Run the Job's request and keep its answer."""
        request = await asyncio.to_thread(record.request)
        async with completion(
            request,
            record=record,
            request_id=record.work.request_id,
            policy=JOB,
            client=client,
        ) as generation:
            await answer(record, generation)


async def answer(record: JobRecord, generation: Generation) -> None:
    """Gather the answer and have it kept.

    Raises:
        Failure: of Inference, or because its answer does not fit the request.
    """
    choices = await asyncio.to_thread(Choices, generation)
    usage: dict[str, int] = {}
    async with contextlib.aclosing(generation.events()) as events:
        async for event in events:
            if not isinstance(event, Delta):
                usage = choices.end(generation, event)
            elif is_large(event):
                await asyncio.to_thread(choices.keep, event)
            else:
                choices.keep(event)
    await asyncio.to_thread(record.keep, choices, usage)
