"""What is kept of a harvest: the row that people see, its input, and its run."""

from typing import ClassVar
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from accounts.models import User
from jobs.models import Work
from jobs.states import LIVE


class Size(models.TextChoices):
    """Which cap counts a harvest (C-474 to C-476)."""

    SMALL = "small"
    LARGE = "large"


class HarvestQuerySet(models.QuerySet["Harvest"]):
    """Reads of harvests."""

    def of(self, user_id: UUID) -> "HarvestQuerySet":
        """Return the harvests of a User (C-015)."""
        return self.filter(user_id=user_id)

    def live(self) -> "HarvestQuerySet":
        """Return the harvests that are pending or running."""
        return self.filter(state__in=LIVE)


class Harvest(Work):
    """A harvest as its User sees it; `pending` in the contract's words is `queued` here.

    Its id is also that of its run (U-52).
    """

    size = models.CharField(max_length=8, choices=Size)
    n_prompts = models.PositiveIntegerField()
    reserved_tokens = models.BigIntegerField()
    """The Hold: bytes of the prompts and their start tokens (C-334)."""
    layers = ArrayField(models.PositiveSmallIntegerField())
    projects = models.BooleanField()
    """Whether its files hold projections (C-505)."""
    tokens = models.BigIntegerField(null=True)
    """What it paid, written with its end (C-483)."""

    objects: ClassVar[models.Manager["Harvest"]] = HarvestQuerySet.as_manager()

    class Meta(Work.Meta):
        constraints = [
            *Work.Meta.constraints,
            models.CheckConstraint(
                condition=Q(reserved_tokens__gt=0, n_prompts__gt=0), name="harvest_reserves"
            ),
            models.CheckConstraint(
                condition=Q(tokens__isnull=True)
                | Q(tokens__range=(0, models.F("reserved_tokens"))),
                name="harvest_pays_at_most_its_reserve",
            ),
            models.CheckConstraint(
                condition=Q(tokens__isnull=True) | ~Q(state__in=LIVE),
                name="harvest_pays_at_its_end",
            ),
        ]
        indexes = [
            *Work.Meta.indexes,
            models.Index(fields=["key", "created_at"], name="harvest_by_key"),
            models.Index(fields=["size"], condition=Q(state__in=LIVE), name="harvest_live_by_size"),
        ]


class HarvestInput(models.Model):
    """What a harvest reads; it goes when the harvest ends: the manifest has the prompts."""

    harvest = models.OneToOneField(
        Harvest, primary_key=True, on_delete=models.CASCADE, related_name="input"
    )
    data = models.BinaryField()
    """See `harvests.asked`."""

    def __str__(self) -> str:
        return f"input of {self.harvest_id}"


class Stage(models.TextChoices):
    """Where a run is."""

    ASKED = "asked"
    """It waits for a harvest worker."""
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


class HarvestRun(models.Model):
    """The run of a harvest in a harvest worker; it goes on whoever follows it.

    Only `harvests.runs` changes it. `worker` is the fence: every write of a worker names the token
    under which it took the run, so one that was thought dead writes nothing.
    """

    harvest = models.OneToOneField(
        Harvest, primary_key=True, on_delete=models.CASCADE, related_name="run"
    )
    model = models.CharField(max_length=64)
    stage = models.CharField(max_length=8, choices=Stage, default=Stage.ASKED)
    started_at = models.DateTimeField(null=True)
    """When a worker first took it (C-484); a worker that was lost does not undo it."""
    worker = models.UUIDField(null=True)
    seen_at = models.DateTimeField(null=True)
    """When its worker last wrote."""
    attempts = models.PositiveSmallIntegerField(default=0)
    """Workers that took it."""
    tokens_read = models.BigIntegerField(default=0)
    tokens_total = models.BigIntegerField(default=0)
    """0 until the prompts are encoded."""
    shards_written = models.PositiveIntegerField(default=0)
    error = models.JSONField(null=True)
    """`code` and `text` of a run that failed."""
    folder = models.CharField(max_length=200, default="")
    """Where the files of a run that is done lie in the storage."""
    tokens = models.BigIntegerField(null=True)
    n_shards = models.PositiveIntegerField(null=True)
    bytes_written = models.BigIntegerField(null=True)
    load_s = models.FloatField(null=True)
    forward_s = models.FloatField(null=True)
    save_s = models.FloatField(null=True)
    upload_s = models.FloatField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(stage=Stage.ASKED, worker__isnull=True)
                | Q(
                    stage=Stage.STARTED,
                    worker__isnull=False,
                    started_at__isnull=False,
                    seen_at__isnull=False,
                )
                | Q(stage=Stage.DONE, started_at__isnull=False, tokens__isnull=False)
                | Q(stage=Stage.FAILED, error__isnull=False),
                name="harvest_run_stage",
            )
        ]
        indexes = [
            models.Index(
                fields=["model"],
                condition=Q(stage__in=[Stage.ASKED, Stage.STARTED]),
                name="harvest_run_going_on",
            )
        ]

    def __str__(self) -> str:
        return f"{self.stage} run of {self.harvest_id}"


class HarvestQuota(models.Model):
    """Another number of harvests a month for the keys of one User (C-472, A-442)."""

    user = models.OneToOneField(
        User, primary_key=True, on_delete=models.CASCADE, related_name="harvest_quota"
    )
    per_month = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.per_month} harvests a month"
