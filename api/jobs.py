"""The routes of Jobs (section 15)."""

import asyncio
from http import HTTPStatus
from typing import cast
from uuid import UUID

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from accounts.keys import KeyState
from api.app import PARAMETERS
from api.bodies import job_request
from api.edge import answer_body
from api.errors import Headers, error_body, error_headers
from api.idempotency import Attempt, StoredAnswer
from api.json_body import read_json
from api.keyed import JSON_HEADERS, answer_again, checked, free_key, take_key
from api.path_ids import path_id
from api.schemas import CompletionJob
from api.stream import StreamConsumer
from api.times import iso, iso_or_none
from api.views import KeyView, answer
from completions.admission import check_submission
from completions.database import in_database
from completions.failures import Failure, running_elsewhere
from completions.generation import RecordLost
from completions.kept_failures import restored
from completions.request import CompletionRequest
from jobs import completion_jobs
from jobs.job_kind import JOB, result_of
from jobs.models import Job
from jobs.refusals import job_cancelled, job_failed, job_not_found, job_result_expired
from jobs.states import WorkState

STATUSES = {
    WorkState.QUEUED: "queued",
    WorkState.RUNNING: "running",
    WorkState.DONE: "succeeded",
    WorkState.FAILED: "failed",
    WorkState.CANCELLED: "cancelled",
}
ADDRESS = "/v1/completion-jobs"


def shape_of(job: Job) -> CompletionJob:
    """Return a Job as the API shows it (C-419 to C-426)."""
    return CompletionJob(
        id=str(job.id),
        request_id=job.request_id,
        model=job.model,
        status=STATUSES[WorkState(job.state)],
        cancel_requested=job.state == WorkState.CANCELLED,
        created_at=iso(job.created_at),
        started_at=iso_or_none(job.started_at),
        finished_at=iso_or_none(job.finished_at),
        expires_at=iso_or_none(job.expires_at),
        result_expired=job.has_expired,
        status_url=f"{ADDRESS}/{job.id}",
        result_url=f"{ADDRESS}/{job.id}/result",
        usage_pending=job.state == WorkState.RUNNING,
    )


def own_job(parameters: dict[str, str], user_id: UUID) -> Job:
    """Return the User's Job that a path names; it uses the database.

    Raises:
        Failure: 400 for what is no id, 404 `job_not_found`.
    """
    job = Job.objects.of(user_id).filter(id=path_id(parameters, "job_id")).first()
    if job is None:
        raise job_not_found()
    return job


class CreateCompletionJob(StreamConsumer):
    """Submits a Job."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Check the request as a Completion's, and make a Job of it; a repeat gets its Job."""
        value = await checked(read_json, body, body)
        taken = await take_key(self.scope, value, key)
        if isinstance(taken, StoredAnswer):
            job = await in_database(self._made_before, taken, key)
            await self._send(HTTPStatus.OK, job)
            return
        try:
            request = await checked(job_request, value, body)
            counted = await check_submission(request, payer=key, policy=JOB)
            job = await in_database(self._submit, request, counted.model.id, key, taken)
        except BaseException:
            await asyncio.shield(free_key(taken))
            raise
        await self._send(HTTPStatus.ACCEPTED, job)

    @staticmethod
    def _made_before(kept: StoredAnswer, key: KeyState) -> Job:
        """Return the Job that the first request with the key made, as it is now (C-392)."""
        assert isinstance(kept.body, bytes)
        return own_job({"job_id": msgspec.json.decode(kept.body, type=str)}, key.user_id)

    @staticmethod
    def _submit(
        request: CompletionRequest, model: str, key: KeyState, taken: Attempt | None
    ) -> Job:
        job_id = completion_jobs.new_id()
        if taken is not None:
            named = msgspec.json.encode(str(job_id))
            taken.prepare(StoredAnswer(HTTPStatus.OK, named, {}))
        try:
            return completion_jobs.submit(
                job_id=job_id, payer=key, model=model, request=request, record=taken
            )
        except RecordLost:
            raise running_elsewhere() from None

    async def _send(self, status: HTTPStatus, job: Job) -> None:
        shape = shape_of(job)
        headers = [*JSON_HEADERS, (b"location", shape.status_url.encode())]
        await answer_body(int(status), shape.model_dump_json().encode(), headers, self.send)


class ReadCompletionJob(KeyView):
    """Answers a Job as it is."""

    def get(self, request: Request, job_id: str) -> HttpResponse:
        """Answer (C-428, C-429)."""
        return answer(shape_of(own_job({"job_id": job_id}, self.key.user_id)))


class CancelCompletionJob(KeyView):
    """Cancels a Job."""

    def post(self, request: Request, job_id: str) -> HttpResponse:
        """Cancel it unless it has ended, and answer it as it is then (C-440 to C-444)."""
        job = completion_jobs.cancel(
            job_id=path_id({"job_id": job_id}, "job_id"), user_id=self.key.user_id
        )
        if job is None:
            raise job_not_found()
        return answer(shape_of(job))


class ReadCompletionJobResult(StreamConsumer):
    """Answers what a Job came to (C-431 to C-439)."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Answer with the Completion, the Job, or the error."""
        job = await in_database(
            own_job, cast("dict[str, str]", self.scope[PARAMETERS]), key.user_id
        )
        if job.is_live:
            text = shape_of(job).model_dump_json().encode()
            await answer_body(202, text, [*JSON_HEADERS, (b"retry-after", b"1")], self.send)
        elif job.has_expired or job.erased_at is not None:
            raise job_result_expired()
        elif job.state == WorkState.CANCELLED:
            raise job_cancelled()
        elif job.state == WorkState.FAILED:
            await self._fail(restored(job.error), job)
        else:
            await self._succeed(job)

    async def _succeed(self, job: Job) -> None:
        try:
            kept = await asyncio.to_thread(result_of(job).read)
        except OSError:
            raise job_failed() from None
        await answer_again(StoredAnswer(200, kept, {}), self.send)

    async def _fail(self, failure: Failure, job: Job) -> None:
        """Answer the Job's error with its status, and without its headers (C-433, C-434)."""
        headers: Headers = JSON_HEADERS
        if failure.code == job_failed().code:
            headers = error_headers(failure)
        await answer_body(failure.status, error_body(failure, job.request_id), headers, self.send)
