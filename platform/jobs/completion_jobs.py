"""Jobs: submitted, cancelled, and erased when their time is over."""

from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from completions.generation import Record
from completions.kept import KeptBody, forget_files, keep_request
from completions.payer import Payer
from completions.request import CompletionRequest
from jobs import queue
from jobs.job_kind import REQUESTS, RESULTS, JobKind
from jobs.models import Job, JobQuerySet
from jobs.refusals import job_capacity
from jobs.states import WorkState

SUBMIT_LOCK = 0x6A6F6273
"""The advisory lock under which the caps on Jobs are read and a Job is made."""
ERASED_AT_ONCE = 500


def new_id() -> UUID:
    """Return the id of a Job to be, for what is kept beside it."""
    return uuid4()


def submit(
    *,
    job_id: UUID,
    payer: Payer,
    model: str,
    request: CompletionRequest,
    record: Record | None = None,
) -> Job:
    """Make a queued Job of a request that `completions.admission.check_submission` let pass.

    `model` is its model's id. `record` is paid in the same transaction, so that a repeat of the
    request finds either the Job or a free key. Large requests go to the file storage first.

    Raises:
        Failure: 429 `job_capacity`, and nothing is made (C-415, C-416).
        RecordLost: another request with the key made a Job by now.
        OSError: when the storage does not take the request.
    """
    kept = keep_request(f"{REQUESTS}/{job_id}", request)
    try:
        with transaction.atomic():
            _check_room(payer)
            job = Job.objects.create(
                id=job_id,
                user_id=payer.user_id,
                key_id=payer.key_id,
                model=model,
                created_at=Now(),
                request=kept.inline,
                request_file=kept.file,
            )
            if record is not None:
                record.paid()
            queue.ring(JobKind.name)
    except BaseException:
        kept.drop()
        raise
    job.refresh_from_db(fields=["created_at"])
    return job


def _check_room(payer: Payer) -> None:
    """Refuse a Job past a cap; until the transaction ends nobody else makes one."""
    env = settings.BASALT
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [SUBMIT_LOCK])
    live, kept = Job.objects.live(), Job.objects.kept()
    of_user = "Jobs of yours"
    caps = (
        (env.max_live_jobs_per_key, live.filter(key_id=payer.key_id), "Jobs of this API key"),
        (env.max_live_jobs_per_user, live.of(payer.user_id), of_user),
        (env.max_live_jobs, live, "Jobs of all Users"),
    )
    for most, jobs, whose in caps:
        if jobs[:most].count() >= most:
            raise job_capacity(most, f"{whose} queued or running")
    for most, jobs, whose in (
        (env.max_kept_jobs_per_user, kept.of(payer.user_id), of_user),
        (env.max_kept_jobs, kept, "Jobs of all Users"),
    ):
        if jobs[:most].count() >= most:
            raise job_capacity(most, f"ended {whose} with a kept result")


def cancel(*, job_id: UUID, user_id: UUID) -> Job | None:
    """Cancel a Job of a User unless it has ended, and return it as it is then (C-440, C-443).

    None when the User has no such Job. What a running one pays is settled by its runner (C-441).
    """
    own = Job.objects.of(user_id).filter(id=job_id)
    with transaction.atomic():
        if queue.cancel(own):
            _forget_request(own.filter(state=WorkState.CANCELLED, owner__isnull=True))
    return own.first()


def _forget_request(jobs: JobQuerySet) -> None:
    """Drop the requests of Jobs that will never run."""
    for file in jobs.values_list("request_file", flat=True):
        transaction.on_commit(KeptBody(None, file).drop)
    jobs.update(request=None, request_file="")


def erase_expired() -> int:
    """Erase the results of Jobs past their time, and files that no Job has (C-637).

    Returns how many Jobs; each call does a bounded part, so it is called again and again.
    """
    env = settings.BASALT
    before = timezone.now() - timedelta(seconds=env.job_result_seconds)
    erased = 0
    ended = Job.objects.filter(
        state__in=[WorkState.DONE, WorkState.FAILED], erased_at=None, finished_at__lte=before
    )
    for job in ended.only("id", "result_file")[:ERASED_AT_ONCE]:
        Job.objects.filter(id=job.id).update(result=None, result_file="", erased_at=Now())
        KeptBody(None, job.result_file).drop()
        erased += 1
    forget_files(RESULTS, before)
    forget_files(REQUESTS, before, lambda file: Job.objects.filter(request_file=file).exists())
    return erased
