"""What the API keeps of requests with an `Idempotency-Key` (section 14)."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from accounts.models import User

KEY_LENGTH = 255
"""Characters of an `Idempotency-Key` at most (C-385)."""


class KeyState(models.TextChoices):
    """Running, then answered or without an answer to send again; a free key has no row."""

    RUNNING = "running"
    ANSWERED = "answered"
    NO_ANSWER = "no_answer"


class IdempotencyKey(models.Model):
    """A request that carried a key, and its answer once it is paid for.

    Rows are written by `api.idempotency` alone. `attempt` names the one run that may end the row;
    `owner` is the lease of its process: when that lease is gone, the key is free. A large answer
    lies in the file storage under `file`.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    key = models.CharField(max_length=KEY_LENGTH)
    fingerprint = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=KeyState)
    attempt = models.UUIDField(unique=True)
    owner = models.UUIDField()
    status = models.PositiveSmallIntegerField(null=True)
    body = models.BinaryField(null=True)
    file = models.CharField(max_length=200, blank=True)
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    objects: ClassVar[models.Manager["IdempotencyKey"]] = models.Manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once"),
            models.CheckConstraint(
                condition=Q(state=KeyState.ANSWERED, status__isnull=False)
                & (Q(body__isnull=False, file="") | (Q(body__isnull=True) & ~Q(file="")))
                | Q(
                    state__in=[KeyState.RUNNING, KeyState.NO_ANSWER],
                    status__isnull=True,
                    body__isnull=True,
                    file="",
                ),
                name="idempotency_answered_has_answer",
            ),
        ]
        indexes = [models.Index(fields=["expires_at"], name="idempotency_expires")]

    def __str__(self) -> str:
        return f"{self.key} of {self.user_id}"
