"""What admins decide: the pause of new GPU work, and requests for more tokens."""

import uuid

from django.db import models
from django.db.models import Q

from accounts.models import User


class StopReason(models.TextChoices):
    """Why new GPU work is paused."""

    LOCKED = "locked", "Locked by an admin"
    AMOUNT = "amount", "Spend of 24 hours"


class SpendStop(models.Model):
    """One pause of new GPU work, on until somebody clears it (C-617)."""

    reason = models.CharField(max_length=16, choices=StopReason)
    started_at = models.DateTimeField()
    started_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    note = models.CharField(max_length=300, blank=True, default="", db_default="")
    """Why, in the words of whoever locked."""
    spend = models.DecimalField(max_digits=14, decimal_places=2, null=True)
    """US dollars that counted when it began; None for a lock."""
    cleared_at = models.DateTimeField(null=True)
    cleared_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                models.Value(1),
                condition=Q(cleared_at__isnull=True),
                name="spend_stop_one_at_a_time",
            )
        ]

    def __str__(self) -> str:
        return f"{self.reason} since {self.started_at:%Y-%m-%d %H:%M}"


class Decision(models.TextChoices):
    """Where a request stands (A-215)."""

    WAITING = "waiting", "Waiting"
    APPROVED = "approved", "Approved"
    REJECTED = "rejected", "Rejected"


class TokenRequest(models.Model):
    """A User's request for tokens, with its answers and what was decided."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="token_requests")
    tokens = models.BigIntegerField()
    model_ids = models.JSONField(default=list)
    project = models.TextField()
    planned_usage = models.TextField()
    reckoning = models.TextField("how they got the number", blank=True)
    results = models.TextField(blank=True)
    links = models.TextField(blank=True)
    needed_when = models.TextField("when they need them", blank=True)
    sent_at = models.DateTimeField()
    status = models.CharField(max_length=16, choices=Decision, default=Decision.WAITING)
    granted = models.BigIntegerField("tokens granted", null=True)
    note = models.TextField(blank=True)
    decided_at = models.DateTimeField(null=True)
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["-sent_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["user"],
                condition=Q(status=Decision.WAITING),
                name="token_request_one_waits",
            ),
            models.CheckConstraint(condition=Q(tokens__gte=1), name="token_request_asks_for_some"),
            models.CheckConstraint(
                condition=Q(status=Decision.WAITING, decided_at__isnull=True, granted__isnull=True)
                | Q(status=Decision.REJECTED, decided_at__isnull=False, granted__isnull=True)
                | Q(status=Decision.APPROVED, decided_at__isnull=False, granted__gte=1),
                name="token_request_decided_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.status}"
