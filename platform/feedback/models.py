"""Notes that people send, and their screenshots (A-377 to A-388, A-445, A-446)."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from accounts.models import ANSWER_LENGTH, User


class Kind(models.TextChoices):
    """What a note is about (A-378)."""

    BUG = "bug", "Bug"
    FEATURE = "feature", "Feature request"
    GENERAL = "general", "General"


class NoteQuerySet(models.QuerySet["Note"]):
    """Reads of notes."""

    def without_issue(self) -> "NoteQuerySet":
        """Return those that the tracker does not have yet (A-388)."""
        return self.filter(issue_id="", given_up_at=None)


class Note(models.Model):
    """What somebody wrote; an anonymous one names nobody and nothing of theirs (A-384, A-385).

    `errors` are those of the page, `[[when, what, request id], ...]`; they stay here (A-387). The
    note is also the outbox of its issue: `next_try_at` is the lease of the process that makes it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind)
    text = models.TextField(max_length=ANSWER_LENGTH)
    page = models.CharField(max_length=500, blank=True)
    user = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="feedback_notes"
    )
    browser = models.CharField(max_length=300, blank=True)
    errors = models.JSONField(default=list, blank=True)
    sent_at = models.DateTimeField(default=timezone.now)
    issue_id = models.CharField(max_length=100, blank=True)
    issue_url = models.CharField(max_length=500, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(default=timezone.now)
    given_up_at = models.DateTimeField(null=True)
    fault = models.CharField(max_length=300, blank=True)

    objects: ClassVar[models.Manager["Note"]] = NoteQuerySet.as_manager()

    class Meta:
        verbose_name = "feedback"
        verbose_name_plural = "feedback"
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False) | Q(browser="", errors=[]),
                name="note_anonymous_names_nobody",
            )
        ]
        indexes = [
            models.Index(fields=["-sent_at"], name="note_newest"),
            models.Index(
                fields=["next_try_at"],
                condition=Q(issue_id="", given_up_at=None),
                name="note_without_issue",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.sent_at:%Y-%m-%d}"


class Screenshot(models.Model):
    """An image of a note, as it was re-encoded by us (A-381, A-446)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    note = models.ForeignKey(Note, on_delete=models.CASCADE, related_name="screenshots")
    place = models.PositiveSmallIntegerField()
    format = models.CharField(max_length=8)
    width = models.PositiveIntegerField()
    height = models.PositiveIntegerField()
    file = models.FileField(upload_to="feedback/", max_length=200)
    """In the file storage, under a name of random letters (U-51)."""

    class Meta:
        ordering = ("place",)
        constraints = [
            models.UniqueConstraint(fields=["note", "place"], name="screenshot_place_once")
        ]

    def __str__(self) -> str:
        return f"{self.width} × {self.height} {self.format}"
