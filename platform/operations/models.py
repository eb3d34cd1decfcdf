"""Rows that only those who run an instance make: what the GPUs cost, and warm windows.

They are kept here, above the API and the pages, because nothing below asks for them: requests meet
the spend stop, which is of `billing`, and the floor, which lies in Valkey.
"""

from django.db import models
from django.db.models import F, Q

from accounts.models import User
from billing.models import MODEL_ID_LENGTH

ENVIRONMENT_LENGTH = 40


class SpendKind(models.TextChoices):
    """What a container was for."""

    SERVING = "serving", "Completions"
    HARVEST = "harvest", "Harvests"


class SpendSample(models.Model):
    """How many containers of a model ran in one minute, and what an hour of one cost then (C-618).

    A model without a container has a row too, so that a minute that was not counted shows. Kept for
    `spend_sample_days`; what they add up to stays in `SpendDay`.
    """

    minute = models.DateTimeField()
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    environment = models.CharField(max_length=ENVIRONMENT_LENGTH)
    kind = models.CharField(max_length=16, choices=SpendKind)
    containers = models.PositiveIntegerField()
    gpus = models.PositiveSmallIntegerField(null=True)
    """GPUs of one container then; None in a sample from before they were kept."""
    price_per_hour = models.DecimalField(max_digits=12, decimal_places=4)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["minute", "model", "environment", "kind"], name="spend_sample_once"
            ),
            models.CheckConstraint(
                condition=Q(price_per_hour__gte=0), name="spend_sample_price_not_below_0"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.containers} of {self.model} at {self.minute:%Y-%m-%d %H:%M}"


class SpendDay(models.Model):
    """What the samples of one UTC day add up to; made anew from them by `roll_up`.

    `container_minutes` and `dollar_minutes` (containers times the price of an hour, summed over the
    minutes) are exact; a sixtieth of them are hours and US dollars.
    """

    day = models.DateField()
    model = models.CharField(max_length=MODEL_ID_LENGTH)
    environment = models.CharField(max_length=ENVIRONMENT_LENGTH)
    kind = models.CharField(max_length=16, choices=SpendKind)
    container_minutes = models.BigIntegerField()
    dollar_minutes = models.DecimalField(max_digits=18, decimal_places=4)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "model", "environment", "kind"], name="spend_day_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} on {self.day}"


class SpendWarning(models.Model):
    """One time in which the spend of 24 hours was above the amount that warns the team.

    At most one is open, so that the team is told once for each crossing (U-25).
    """

    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    spend = models.DecimalField(max_digits=14, decimal_places=2)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                models.Value(1),
                condition=Q(ended_at__isnull=True),
                name="spend_warning_one_at_a_time",
            )
        ]

    def __str__(self) -> str:
        return f"${self.spend} at {self.started_at:%Y-%m-%d %H:%M}"


class WarmWindowQuerySet(models.QuerySet["WarmWindow"]):
    """Reads of warm windows."""

    def kept(self) -> "WarmWindowQuerySet":
        """Return the windows that nobody removed."""
        return self.filter(removed_at=None)


class WarmWindow(models.Model):
    """A time in which a model is kept warm without requests: weekly, or once (C-627, A-448).

    Weekly: `days` is a sum of 1 for Monday, 2 for Tuesday, up to 64 for Sunday; `opens` and
    `closes` are times of the clock in `time_zone`, and a window that closes at or before it opens
    ends on the next day. Once ("Warm now"): from `starts_at` to `ends_at`.
    """

    model = models.CharField(max_length=MODEL_ID_LENGTH)
    days = models.PositiveSmallIntegerField(default=0)
    opens = models.TimeField(null=True)
    closes = models.TimeField(null=True)
    time_zone = models.CharField(max_length=64, blank=True)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    made_at = models.DateTimeField()
    made_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    removed_at = models.DateTimeField(null=True)
    removed_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    objects = WarmWindowQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    days__gte=1,
                    days__lte=127,
                    opens__isnull=False,
                    closes__isnull=False,
                    starts_at__isnull=True,
                    ends_at__isnull=True,
                )
                & ~Q(time_zone="")
                | Q(
                    days=0,
                    opens__isnull=True,
                    closes__isnull=True,
                    time_zone="",
                    starts_at__isnull=False,
                    ends_at__gt=F("starts_at"),
                ),
                name="warm_window_weekly_or_once",
            )
        ]
        indexes = [
            models.Index(
                fields=["model"], condition=Q(removed_at__isnull=True), name="warm_window_kept"
            )
        ]

    def __str__(self) -> str:
        return f"{self.model}: {'weekly' if self.days else 'once'}"

    @property
    def is_weekly(self) -> bool:
        """Whether it comes every week."""
        return self.days > 0
