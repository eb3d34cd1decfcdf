"""What tokens are kept as: running totals, Holds, and the ledger's lines that explain both.

Rows of this module are written by `billing.ledger`, `billing.usage` and `billing.owners` alone.
Every number is a whole number of tokens. What must never be is refused by the database itself.
"""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from accounts.models import ApiKey, User

REQUEST_ID_LENGTH = 64
"""Characters of a request's id at most (C-022)."""

MODEL_ID_LENGTH = 200
"""Characters of a model's id at most."""


class Source(models.TextChoices):
    """Where a Completion comes from, as the usage page splits it (A-193)."""

    API = "api", "API"
    PLAYGROUND = "playground", "Playground"
    LOOM = "loom", "Loom"
    JOB = "job", "Jobs"
    HARVEST = "harvest", "Harvests"


class HoldState(models.TextChoices):
    """The one way of a Hold: open, then settled or released, then nothing more (C-350)."""

    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


class UsageStatus(models.TextChoices):
    """How a settled Completion ended (C-355)."""

    COMPLETED = "completed", "Completed"
    FAILED = "failed", "Failed"
    STOPPED = "stopped", "Stopped"


class Counted(models.TextChoices):
    """What the count of a settled Completion rests on (C-355, A-199).

    Reported: Inference's own numbers. Partial: the tokens of a stream before it was cut. Held: the
    whole Hold.
    """

    REPORTED = "reported", "Reported"
    PARTIAL = "partial", "Partial"
    HELD = "held", "Held"


class Bucket(models.TextChoices):
    """What a line of the ledger adds to or takes from."""

    ALLOWANCE = "allowance", "Monthly allowance"
    BUDGET = "budget", "Budget"
    KEY_BUDGET = "key_budget", "API key's Budget"


class EntryKind(models.TextChoices):
    """Why a line of the ledger was written."""

    GRANT = "grant"
    INVITE = "invite"
    SET = "set"
    HOLD = "hold"
    SETTLE = "settle"
    RELEASE = "release"
    OVERAGE = "overage"


class OwnerKind(models.TextChoices):
    """Processes that take Holds."""

    WEB = "web"
    RUNNER = "runner"


class Owner(models.Model):
    """A living process, known by the random token of its lease.

    An open Hold refers to its Owner, so the database itself refuses both a Hold of a process whose
    row is gone and the end of a row that still has open Holds. `expires_at` is written and judged
    by the database's clock, because processes may run on hosts whose clocks differ.
    """

    token = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=16, choices=OwnerKind)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.kind} {self.pid} on {self.host}"


class Account(models.Model):
    """The running totals of a User, and the row that every write for that User locks first.

    `budget_left` is what the Budget has left, open Holds already taken off. `allowance` is the
    User's own monthly allowance; the deployment's `monthly_allowance` holds when it is null, and 0
    is a User without any.
    """

    user = models.OneToOneField(
        User, primary_key=True, on_delete=models.PROTECT, related_name="account"
    )
    budget_left = models.BigIntegerField(default=0)
    allowance = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(budget_left__gte=0), name="account_budget_from_0"),
            models.CheckConstraint(
                condition=Q(allowance__isnull=True) | Q(allowance__gte=0),
                name="account_allowance_not_below_0",
            ),
        ]

    def __str__(self) -> str:
        return str(self.user_id)


class AllowanceMonth(models.Model):
    """What a User used of one UTC month's allowance, open Holds included (C-322, C-323)."""

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="months")
    month = models.DateField()
    used = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "month"], name="allowance_month_once"),
            models.CheckConstraint(condition=Q(used__gte=0), name="allowance_month_not_below_0"),
            models.CheckConstraint(condition=Q(month__day=1), name="allowance_month_first_day"),
        ]

    def __str__(self) -> str:
        return f"{self.account_id} {self.month:%Y-%m}"


class KeyBudget(models.Model):
    """What an API key's own Budget has left, open Holds taken off; most keys have none (C-321)."""

    key = models.OneToOneField(
        ApiKey, primary_key=True, on_delete=models.PROTECT, related_name="budget"
    )
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="key_budgets")
    left = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(left__gte=0), name="key_budget_not_below_0")
        ]

    def __str__(self) -> str:
        return str(self.key_id)


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


class DailyUsage(models.Model):
    """What was settled of the Completions that began on one UTC day, for charts and lists.

    Made from settled Holds alone: written in the transaction that settles, and made anew by
    `manage.py rebuild_usage`.
    """

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    source = models.CharField(max_length=16, choices=Source)
    day = models.DateField()
    completions = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    paid = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    stopped = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "daily usage"
        constraints = [
            models.UniqueConstraint(
                fields=["user", "day", "key", "model", "source"],
                nulls_distinct=False,
                name="daily_usage_once",
            )
        ]
        indexes = [
            models.Index(
                fields=["key", "day"], condition=Q(key__isnull=False), name="daily_usage_by_key"
            ),
            models.Index(fields=["day"], name="daily_usage_by_day"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.day} {self.model}"


class HourlyUsage(models.Model):
    """Sums of a User's settled Completions of one model that began in one UTC hour.

    Written with the settle, as `DailyUsage` is: who used a model lately, and at which hours.
    """

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    hour = models.DateTimeField()
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    completions = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "hourly usage"
        constraints = [
            models.UniqueConstraint(fields=["user", "hour", "model"], name="hourly_usage_once")
        ]
        indexes = [models.Index(fields=["hour"], name="hourly_usage_by_hour")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.hour:%Y-%m-%d %H} {self.model}"


class Ending(models.TextChoices):
    """How a request ended that paid nothing."""

    CLIENT_ERROR = "client_error", "Client error"
    BUDGET = "budget", "Budget exceeded"
    RATE_LIMITED = "rate_limited", "Rate limited"
    SPEND_CAP = "spend_cap", "Spend stop"
    SERVER_ERROR = "server_error", "Server error"
    TIMEOUT = "timeout", "Timeout"
    LEFT = "left", "Stopped before its first token"


class UnpaidRequests(models.Model):
    """How many requests of a UTC day ended in one way without paying.

    Those that pay are in `DailyUsage`. Counted by each process and written every few seconds
    (`billing.endings`), so a process that is killed loses its last ones.
    """

    day = models.DateField()
    source = models.CharField(max_length=16, choices=Source)
    model = models.CharField(max_length=MODEL_ID_LENGTH, blank=True)
    ending = models.CharField(max_length=16, choices=Ending)
    requests = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "unpaid requests"
        constraints = [
            models.UniqueConstraint(
                fields=["day", "source", "model", "ending"], name="unpaid_requests_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.requests} {self.ending} on {self.day}"


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
