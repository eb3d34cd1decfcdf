"""Holds, and the append-only lines that explain every total."""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from accounts.models import ApiKey, User
from billing.models.accounts import Owner
from billing.models.kinds import Bucket, Counted, EntryKind, HoldState, Source, UsageStatus

REQUEST_ID_LENGTH = 64
"""Characters of a request's id at most (C-022)."""

MODEL_ID_LENGTH = 200
"""Characters of a model's id at most."""


class HoldQuerySet(models.QuerySet["Hold"]):
    """Reads of Holds."""

    def open(self) -> "HoldQuerySet":
        """Return the Holds of running work."""
        return self.filter(state=HoldState.OPEN)

    def listed(self) -> "HoldQuerySet":
        """Return what the usage page lists: the running and the settled, newest first (C-355)."""
        return self.exclude(state=HoldState.RELEASED).order_by("-opened_at")


class Hold(models.Model):
    """Tokens set aside for one Completion or harvest, and in the end what it paid.

    Its id begins with the moment it was opened, so the table can be split by month later without
    another key. `bucket` is where the tokens came from; `key_budget` says that they were taken
    from the key's own Budget as well. `month` is the first day of the UTC month in which it began.
    While it is open it has an `owner`; when it ends the owner is taken off, so a process that lost
    its lease finds nothing of its own. `paid` is what the User's tokens paid in the end: less than
    `prompt_tokens + completion_tokens` only where nothing more was left (C-349) or where a harvest
    read more than it held (C-351).
    """

    id = models.UUIDField(primary_key=True, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="holds", db_index=False)
    key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.PROTECT, related_name="holds", db_index=False
    )
    owner = models.ForeignKey(
        Owner, null=True, on_delete=models.PROTECT, related_name="holds", db_index=False
    )
    request_id = models.CharField(max_length=REQUEST_ID_LENGTH)
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    source = models.CharField(max_length=16, choices=Source)
    tokens = models.BigIntegerField()
    bucket = models.CharField(max_length=16, choices=Bucket)
    month = models.DateField()
    key_budget = models.BooleanField()
    state = models.CharField(max_length=16, choices=HoldState, default=HoldState.OPEN)
    opened_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    paid = models.BigIntegerField(null=True)
    prompt_tokens = models.BigIntegerField(null=True)
    completion_tokens = models.BigIntegerField(null=True)
    status = models.CharField(max_length=16, choices=UsageStatus, blank=True)
    counted = models.CharField(max_length=16, choices=Counted, blank=True)

    objects: ClassVar[models.Manager["Hold"]] = HoldQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(tokens__gte=1), name="hold_at_least_1_token"),
            models.CheckConstraint(
                condition=Q(bucket__in=[Bucket.ALLOWANCE, Bucket.BUDGET]),
                name="hold_bucket",
            ),
            models.CheckConstraint(condition=Q(month__day=1), name="hold_month_first_day"),
            models.CheckConstraint(
                condition=Q(key_budget=False) | Q(key__isnull=False), name="hold_key_budget_has_key"
            ),
            models.CheckConstraint(
                condition=Q(state=HoldState.OPEN, owner__isnull=False, ended_at__isnull=True)
                | Q(
                    state__in=[HoldState.SETTLED, HoldState.RELEASED],
                    owner__isnull=True,
                    ended_at__isnull=False,
                ),
                name="hold_owned_while_open",
            ),
            models.CheckConstraint(
                condition=Q(
                    state=HoldState.SETTLED,
                    prompt_tokens__isnull=False,
                    prompt_tokens__gte=0,
                    completion_tokens__isnull=False,
                    completion_tokens__gte=0,
                    paid__isnull=False,
                    paid__gte=0,
                    paid__lte=F("prompt_tokens") + F("completion_tokens"),
                    status__in=UsageStatus.values,
                    counted__in=Counted.values,
                )
                | Q(
                    state__in=[HoldState.OPEN, HoldState.RELEASED],
                    prompt_tokens__isnull=True,
                    completion_tokens__isnull=True,
                    paid__isnull=True,
                    status="",
                    counted="",
                ),
                name="hold_paid_when_settled",
            ),
            models.CheckConstraint(
                condition=~Q(counted=Counted.HELD) | Q(paid=F("tokens")),
                name="hold_held_pays_all",
            ),
        ]
        indexes = [
            models.Index(
                fields=["owner"], condition=Q(owner__isnull=False), name="hold_open_by_owner"
            ),
            models.Index(
                fields=["user", "-opened_at"],
                condition=~Q(state=HoldState.RELEASED),
                name="hold_listed_by_user",
            ),
            models.Index(
                fields=["key", "-opened_at"],
                condition=Q(key__isnull=False) & ~Q(state=HoldState.RELEASED),
                name="hold_listed_by_key",
            ),
            models.Index(
                fields=["user", "model", "-opened_at"],
                condition=~Q(state=HoldState.RELEASED),
                name="hold_listed_by_model",
            ),
            models.Index(
                fields=["model", "-opened_at"],
                condition=~Q(state=HoldState.RELEASED),
                name="hold_listed_of_model",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tokens} tokens for {self.request_id}"


class Entry(models.Model):
    """One line of the ledger; never changed and never removed, which a trigger guards.

    `amount` is what the bucket gained (or lost, below 0). `total` is the sum of the bucket's lines
    up to this one: what a Budget has left, or minus what was used of an allowance's month.
    """

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    bucket = models.CharField(max_length=16, choices=Bucket)
    month = models.DateField(null=True)
    key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    kind = models.CharField(max_length=16, choices=EntryKind)
    amount = models.BigIntegerField()
    total = models.BigIntegerField()
    hold = models.ForeignKey(Hold, null=True, on_delete=models.PROTECT, related_name="entries")
    by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    bucket=Bucket.ALLOWANCE, month__isnull=False, key__isnull=True, total__lte=0
                )
                | Q(bucket=Bucket.BUDGET, month__isnull=True, key__isnull=True, total__gte=0)
                | Q(bucket=Bucket.KEY_BUDGET, month__isnull=True, key__isnull=False, total__gte=0),
                name="entry_names_its_bucket",
            ),
            models.CheckConstraint(
                condition=Q(
                    kind__in=[EntryKind.HOLD, EntryKind.OVERAGE], hold__isnull=False, amount__lt=0
                )
                | Q(
                    kind__in=[EntryKind.SETTLE, EntryKind.RELEASE], hold__isnull=False, amount__gt=0
                )
                | Q(kind__in=[EntryKind.GRANT, EntryKind.INVITE], hold__isnull=True, amount__gt=0)
                | Q(kind=EntryKind.SET, hold__isnull=True),
                name="entry_sign_of_its_kind",
            ),
        ]
        indexes = [
            models.Index(
                fields=["user", "-id"],
                condition=Q(hold__isnull=True),
                name="entry_budget_history",
            ),
            models.Index(
                fields=["-id"], condition=Q(hold__isnull=True), name="entry_newest_changes"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount:+d}"
