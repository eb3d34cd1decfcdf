"""Applications for access, and Invites."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from accounts.models import ANSWER_LENGTH, TAG_LENGTH, AddressField, User


class ApplicationStatus(models.TextChoices):
    """The one way of an Application: open, then approved or rejected."""

    OPEN = "open", "Open"
    APPROVED = "approved", "Approved"
    REJECTED = "rejected", "Rejected"


class Invite(models.Model):
    """A person asked to come, by a link that works once (A-014 to A-023).

    The link's token is a keyed hash of the row's id; `digest` is the hash of the token.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = AddressField()
    digest = models.CharField(max_length=64, unique=True, editable=False)
    tokens = models.BigIntegerField(default=0)
    tag = models.CharField(max_length=TAG_LENGTH, blank=True)
    sent_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    sent_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    user = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="invites")
    withdrawn_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(tokens__gte=0), name="invite_tokens_from_0"),
            models.CheckConstraint(
                condition=Q(used_at=None, user=None)
                | Q(used_at__isnull=False, user__isnull=False, withdrawn_at=None),
                name="invite_used_by_one",
            ),
            models.UniqueConstraint(
                fields=["email"],
                condition=Q(used_at=None, withdrawn_at=None),
                name="invite_open_once",
            ),
        ]
        indexes = [models.Index(fields=["-sent_at"], name="invite_newest")]

    def __str__(self) -> str:
        return str(self.email)

    @property
    def status(self) -> str:
        """Open, used, withdrawn or expired, in a word (A-402)."""
        if self.used_at is not None:
            return "Used"
        if self.withdrawn_at is not None:
            return "Withdrawn"
        return "Expired" if self.expires_at <= timezone.now() else "Open"


class ApplicationQuerySet(models.QuerySet["Application"]):
    """Reads of Applications."""

    def waiting(self) -> "ApplicationQuerySet":
        """Return those that nobody has decided (A-399)."""
        return self.filter(status=ApplicationStatus.OPEN)


class Application(models.Model):
    """What a person wrote to get access, and what was decided (A-011, A-028).

    `answers` are the optional questions as they stood then, `[[question, answer], ...]`: a changed
    form keeps old answers.
    """

    email = AddressField()
    name = models.CharField(max_length=150)
    organization = models.CharField(max_length=200)
    planned_usage = models.TextField(max_length=ANSWER_LENGTH)
    answers = models.JSONField(default=list, blank=True)
    rules_agreed_at = models.DateTimeField()
    submitted_at = models.DateTimeField(default=timezone.now)
    status = models.CharField(
        max_length=16, choices=ApplicationStatus, default=ApplicationStatus.OPEN
    )
    reviewed_at = models.DateTimeField(null=True)
    reviewed_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="applications")
    invite = models.ForeignKey(
        Invite, null=True, on_delete=models.PROTECT, related_name="applications"
    )

    objects: ClassVar[models.Manager["Application"]] = ApplicationQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["email"],
                condition=Q(status=ApplicationStatus.OPEN),
                name="application_open_once",
            ),
            models.CheckConstraint(
                condition=Q(status=ApplicationStatus.OPEN, reviewed_at=None, user=None)
                | Q(
                    status=ApplicationStatus.APPROVED, reviewed_at__isnull=False, user__isnull=False
                )
                | Q(status=ApplicationStatus.REJECTED, reviewed_at__isnull=False, user=None),
                name="application_decided_once",
            ),
        ]
        indexes = [
            models.Index(fields=["-submitted_at"], name="application_newest"),
            models.Index(fields=["user", "-submitted_at"], name="application_of_user"),
        ]

    def __str__(self) -> str:
        return f"{self.email} of {self.submitted_at:%Y-%m-%d}"
