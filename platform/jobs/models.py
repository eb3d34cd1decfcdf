"""What background work is kept as. `Work` is the form that every kind shares."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce

from accounts.models import ApiKey, User
from billing.models import MODEL_ID_LENGTH
from jobs.states import ENDED, LIVE, WorkState


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
