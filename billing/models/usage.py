"""What was used: sums of days and hours, and the requests that paid nothing."""

from django.db import models
from django.db.models import Q

from accounts.models import ApiKey, User
from billing.models.kinds import Source
from billing.models.ledger import MODEL_ID_LENGTH


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


class WeeklyUsage(models.Model):
    """Sums of a User's settled Completions of one model that began in one week, Monday first.

    Written with the settle, as `DailyUsage` is: for reports of many weeks that tell Users apart.
    """

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    week = models.DateField()
    """Its Monday, in UTC."""
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    completions = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    hours = models.IntegerField(default=0)
    """Bit `n` is set where one began in the hour `n` of UTC of any of its days."""

    class Meta:
        verbose_name_plural = "weekly usage"
        constraints = [
            models.UniqueConstraint(fields=["user", "week", "model"], name="weekly_usage_once")
        ]
        indexes = [models.Index(fields=["week"], name="weekly_usage_by_week")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.week} {self.model}"


SLOTS = 16
"""Rows that share the sums of a day, model and source, so that settles seldom wait for another."""


class SiteUsage(models.Model):
    """What was settled of everybody's Completions that began on one UTC day.

    Written with the settle, as `DailyUsage` is, and never larger than days times models times
    sources: for reports that do not tell Users apart.
    """

    day = models.DateField()
    slot = models.SmallIntegerField()
    """The lowest four bits of the User's id; the sums of a day are those of all its slots."""
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    source = models.CharField(max_length=16, choices=Source)
    completions = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    stopped = models.BigIntegerField(default=0)
    users = models.BigIntegerField(default=0)
    """Users whose first Completion of the day to settle was one of these: a day's sum counts each
    User once."""

    class Meta:
        verbose_name_plural = "site usage"
        constraints = [
            models.UniqueConstraint(
                fields=["day", "slot", "model", "source"], name="site_usage_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.model} {self.source}, slot {self.slot}"


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
