"""The words of the ledger: where tokens come from, how a Hold ends, why a line was written."""

from django.db import models


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
