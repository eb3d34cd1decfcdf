"""What background work is kept as. `Work` is the form that every kind shares."""

import uuid
from datetime import datetime, timedelta
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from accounts.models import ApiKey, User
from billing.models import MODEL_ID_LENGTH
from jobs.states import ENDED, LIVE, WorkState

START_LENGTH = 300
"""Characters of a prompt and of an output that lists show."""


class Work(models.Model):
    """One piece of background work: a Job, a Node, a Run or a harvest.

    A runner takes it in hand by writing its own lease (`owner`, see `billing.owners`) and a new
    `attempt` on the row; every later write of that runner names the attempt, so one that was
    thought dead writes nothing. Only `jobs.queue` and `jobs.records` change these columns.

    A subclass takes its indexes and constraints from `Work.Meta` by inheriting it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    """The API key that asked; None for what was started in the App."""
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    """The model's id in the catalogue."""
    state = models.CharField(max_length=16, choices=WorkState, default=WorkState.QUEUED)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    """When it first held its tokens; a restart keeps it."""
    finished_at = models.DateTimeField(null=True)
    error = models.JSONField(null=True)
    """Why it failed, as `completions.failures.stored` writes it."""
    attempt = models.UUIDField(null=True)
    """The last time that a runner took it in hand."""
    owner = models.UUIDField(null=True)
    """The lease of the process that has it in hand, also while a cancelled one still settles."""
    losses = models.PositiveSmallIntegerField(default=0, db_default=0)
    """How often a process or an engine that ran it died."""
    lane = models.GeneratedField(
        expression=Coalesce("key_id", "user_id"), output_field=models.UUIDField(), db_persist=True
    )
    """What waits in one order: the work of one key, or of one User in the App."""

    objects: ClassVar[models.Manager["Work"]]

    class Meta:
        abstract = True
        constraints = [
            models.CheckConstraint(
                condition=Q(state=WorkState.QUEUED, finished_at__isnull=True, error__isnull=True)
                | Q(
                    state=WorkState.RUNNING,
                    started_at__isnull=False,
                    finished_at__isnull=True,
                    error__isnull=True,
                    owner__isnull=False,
                )
                | Q(
                    state=WorkState.DONE,
                    started_at__isnull=False,
                    finished_at__isnull=False,
                    error__isnull=True,
                    owner__isnull=True,
                )
                | Q(
                    state=WorkState.FAILED,
                    finished_at__isnull=False,
                    error__isnull=False,
                    owner__isnull=True,
                )
                | Q(state=WorkState.CANCELLED, finished_at__isnull=False, error__isnull=True),
                name="%(class)s_state",
            ),
            models.CheckConstraint(
                condition=Q(owner__isnull=True) | Q(attempt__isnull=False),
                name="%(class)s_in_hand_by_an_attempt",
            ),
        ]
        indexes = [
            models.Index(
                fields=["lane", "model", "created_at", "id"],
                condition=Q(state=WorkState.QUEUED, owner__isnull=True),
                name="%(class)s_waiting",
            ),
            models.Index(
                fields=["owner"], condition=Q(owner__isnull=False), name="%(class)s_in_hand"
            ),
            models.Index(
                fields=["user"], condition=Q(state__in=LIVE), name="%(class)s_live_by_user"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.id}"

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more, but for the last words of a cancelled one."""
        return self.state in ENDED


KEPT = Q(state__in=[WorkState.DONE, WorkState.FAILED], erased_at__isnull=True)
"""Jobs that ended with an answer that has not been erased."""


class JobQuerySet(models.QuerySet["Job"]):
    """Reads of Jobs."""

    def of(self, user_id: uuid.UUID) -> "JobQuerySet":
        """Return the Jobs of a User (C-015)."""
        return self.filter(user_id=user_id)

    def live(self) -> "JobQuerySet":
        """Return the Jobs that have not ended (C-415)."""
        return self.filter(state__in=LIVE)

    def kept(self) -> "JobQuerySet":
        """Return the ended Jobs whose result is kept (C-416)."""
        since = timezone.now() - timedelta(seconds=settings.BASALT.job_result_seconds)
        return self.filter(KEPT, finished_at__gt=since)


class Job(Work):
    """A Completion that was submitted to run in the background (section 15).

    Until it ends it has its request, afterwards what it answered: the body of a Completion, or
    `error`. A large one lies in the file storage, and 30 days after the end it is erased.
    """

    request = models.BinaryField(null=True)
    request_file = models.CharField(max_length=200, blank=True)
    result = models.BinaryField(null=True)
    result_file = models.CharField(max_length=200, blank=True)
    erased_at = models.DateTimeField(null=True)

    objects: ClassVar[models.Manager["Job"]] = JobQuerySet.as_manager()

    class Meta(Work.Meta):
        constraints = [
            *Work.Meta.constraints,
            models.CheckConstraint(
                condition=Q(state=WorkState.DONE, erased_at__isnull=True)
                & (Q(result__isnull=False, result_file="") | (Q(result=None) & ~Q(result_file="")))
                | (
                    (~Q(state=WorkState.DONE) | Q(erased_at__isnull=False))
                    & Q(result__isnull=True, result_file="")
                ),
                name="job_result_when_done",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=LIVE) | Q(request__isnull=False) | ~Q(request_file=""),
                name="job_request_while_live",
            ),
        ]
        indexes = [
            *Work.Meta.indexes,
            models.Index(fields=["user", "finished_at"], condition=KEPT, name="job_kept_by_user"),
            models.Index(fields=["finished_at"], condition=KEPT, name="job_kept"),
            models.Index(fields=["user", "-created_at"], name="job_by_user"),
            models.Index(fields=["key"], condition=Q(state__in=LIVE), name="job_live_by_key"),
        ]

    @property
    def request_id(self) -> str:
        """The id under which its request runs and its error is told (C-420)."""
        return f"req_job_{self.id.hex}"

    @property
    def expires_at(self) -> datetime | None:
        """When its result is gone; None until it has ended (C-423)."""
        if self.finished_at is None:
            return None
        return self.finished_at + timedelta(seconds=settings.BASALT.job_result_seconds)

    @property
    def has_expired(self) -> bool:
        """Whether its result is past its time (C-436)."""
        expires = self.expires_at
        return expires is not None and expires <= timezone.now()


class RunNumbers(models.Model):
    """The last number that a User's Runs were given; a number is never given twice (A-271)."""

    user = models.OneToOneField(
        User, primary_key=True, on_delete=models.CASCADE, related_name="run_numbers"
    )
    last = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.user_id} {self.last}"


class RunQuerySet(models.QuerySet["Run"]):
    """Reads of Runs; a deleted one cannot be read (C-639)."""

    def of(self, user_id: uuid.UUID) -> "RunQuerySet":
        """Return the Runs of a User."""
        return self.filter(user_id=user_id, deleted_at__isnull=True)

    def listed(self) -> "RunQuerySet":
        """Return Runs, newest first, without what only a look at one of them needs."""
        return self.defer("body", "request", "output", "prompt").order_by("-number")


class Run(Work):
    """A Completion that was started in the Playground (A-236, C-615).

    `body` is what was asked for, in the API's form; `settings` is that without prompt and Steering
    vectors, for lists. `output` is what came of it, as `jobs.run_output` writes it, once it has
    ended; until then the `RunPiece`s have it. `number` counts a User's Runs.
    """

    number = models.PositiveIntegerField()
    prompt = models.TextField(blank=True)
    prompt_start = models.CharField(max_length=START_LENGTH, blank=True)
    settings = models.JSONField()
    body = models.BinaryField(null=True)
    body_file = models.CharField(max_length=200, blank=True)
    request = models.BinaryField(null=True)
    request_file = models.CharField(max_length=200, blank=True)
    comparison = models.UUIDField(null=True)
    """What the Runs of one `Run all` share."""
    output = models.BinaryField(null=True)
    output_file = models.CharField(max_length=200, blank=True)
    output_start = models.CharField(max_length=START_LENGTH, blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    activations_file = models.CharField(max_length=200, blank=True)
    activations_shape = models.JSONField(null=True)
    deleted_at = models.DateTimeField(null=True)

    objects: ClassVar[models.Manager["Run"]] = RunQuerySet.as_manager()

    class Meta(Work.Meta):
        constraints = [
            *Work.Meta.constraints,
            models.UniqueConstraint(fields=["user", "number"], name="run_number_once"),
            models.CheckConstraint(
                condition=~Q(state__in=LIVE) | Q(request__isnull=False) | ~Q(request_file=""),
                name="run_request_while_live",
            ),
            models.CheckConstraint(
                condition=Q(deleted_at__isnull=True) | ~Q(state__in=LIVE),
                name="run_deleted_has_ended",
            ),
        ]
        indexes = [
            *Work.Meta.indexes,
            models.Index(
                fields=["user", "-number"],
                condition=Q(deleted_at__isnull=True),
                name="run_listed_by_user",
            ),
            models.Index(
                fields=["comparison"], condition=Q(comparison__isnull=False), name="run_compared"
            ),
            models.Index(
                fields=["finished_at"],
                condition=~Q(activations_file=""),
                name="run_with_activations",
            ),
            models.Index(
                fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="run_deleted"
            ),
        ]

    @property
    def request_id(self) -> str:
        """The id under which its request runs."""
        return f"req_run_{self.id.hex}"

    @property
    def activations_until(self) -> datetime | None:
        """When what it read is gone; None where it has none (C-638)."""
        if not self.activations_file or self.finished_at is None:
            return None
        return self.finished_at + timedelta(seconds=settings.BASALT.run_activations_seconds)


class RunPiece(models.Model):
    """What a running Run gained in a moment, for who follows it; gone when the Run has ended."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="pieces", db_index=False)
    attempt = models.UUIDField()
    position = models.PositiveIntegerField()
    """Counts the pieces of an attempt from 1."""
    gains = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "attempt", "position"], name="run_piece_in_order"
            )
        ]

    def __str__(self) -> str:
        return f"{self.position} of {self.run_id}"
