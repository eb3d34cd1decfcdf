"""What the GPUs cost: a count of containers each minute, its sums, and the pause at the amount.

The numbers are an estimate, not a provider's bill: containers that report, times the price of an
hour in the catalogue (C-618, A-480). A minute that was not counted adds nothing, so `Spend` says
how many were.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count, F, Max, Q, QuerySet, Sum
from django.db.models.functions import TruncDate

from accounts.mail import Button, Words, post_to_team
from accounts.models import MailKind
from billing import spend_stop
from inference import catalogue
from inference.catalogue import ModelEntry
from inference.fleet import Fleet, harvest_worker
from operations.models import SpendDay, SpendKind, SpendSample, SpendWarning
from operations.warm import keep_warm_now

log = structlog.get_logger()

DAY = timedelta(hours=24)
CENT = Decimal("0.01")
SPEND_PATH = "/admin/analytics/spend"
_COUNT = re.compile(r"(\d{1,3})\s*[x×]\s*\S")
"""The count of GPUs at the beginning of a `gpu_shape`."""


@dataclass(frozen=True)
class ModelSpend:
    """What one model cost in one environment."""

    model: str
    environment: str
    hours: Decimal
    """Hours of containers."""
    gpu_hours: Decimal | None
    """Hours of GPUs; None where a sample does not tell how many a container had."""
    dollars: Decimal


@dataclass(frozen=True)
class Standing:
    """Where the spend stands at one moment."""

    last_day: Decimal
    """US dollars of the last 24 hours."""
    counting: Decimal
    """US dollars that the pause counts: of the last 24 hours, since the last Clear (C-618)."""
    counted_at: datetime | None
    """The last minute that was counted."""
    minutes: int
    """Minutes of the last 24 hours that were counted."""
    stale: bool
    """Whether the last count is too old to rely on (A-492)."""


def sample(fleet: Fleet, now: datetime) -> int:
    """Count the containers of every model in this minute, once; return how many there are.

    A second call in the same minute changes nothing.

    Raises:
        redis.RedisError: while Valkey is away; the minute then is not counted.
    """
    minute = now.replace(second=0, microsecond=0)
    env = settings.BASALT
    rows = [
        SpendSample(
            minute=minute,
            model=model.id,
            environment=env.site_environment,
            kind=kind,
            containers=containers,
            gpus=gpus_of(model),
            price_per_hour=model.price_per_hour,
        )
        for model in catalogue.current().enabled
        for kind, containers in (
            (SpendKind.SERVING, fleet.containers(model)),
            (SpendKind.HARVEST, len(fleet.workers(harvest_worker(model.id)))),
        )
        if containers or kind is SpendKind.SERVING
    ]
    SpendSample.objects.bulk_create(rows, ignore_conflicts=True)
    return sum(row.containers for row in rows)


def gpus_of(model: ModelEntry) -> int:
    """Return the GPUs of a model's container: 8 for `8xH200`, 1 for `L40S`, 0 for `cpu`."""
    if model.gpu_shape.lower() == "cpu":
        return 0
    count = _COUNT.match(model.gpu_shape)
    return int(count[1]) if count else 1


def judge(now: datetime) -> Standing:
    """Pause new GPU work, or warn the team, where the spend has reached the amount (C-617, A-484).

    Harmless at any time: a stop that is on stays, and a crossing is told once.
    """
    stands = standing(now)
    env = settings.BASALT
    if stands.counting >= env.spend_stop_dollars and not spend_stop.is_on():
        with transaction.atomic():
            stop = spend_stop.pause_for_amount(spend=stands.counting)
            if stop.spend == stands.counting:
                _tell("pause", f"New GPU work is paused: {_words(stands.counting)}.")
            transaction.on_commit(keep_warm_now)
        log.warning("new GPU work is paused", dollars=str(stands.counting))
    _warn(stands.last_day, now)
    return stands


def _warn(dollars: Decimal, now: datetime) -> None:
    """Tell the team when the spend passes the amount that warns, once for each crossing (U-25)."""
    above = dollars >= settings.BASALT.spend_warning_dollars
    if not above:
        SpendWarning.objects.filter(ended_at=None).update(ended_at=now)
        return
    if SpendWarning.objects.filter(ended_at=None).exists():
        return
    try:
        with transaction.atomic():
            SpendWarning.objects.create(started_at=now, spend=dollars)
            _tell("warning", f"{_words(dollars)[0].upper()}{_words(dollars)[1:]}.")
    except IntegrityError:
        return


def _words(dollars: Decimal) -> str:
    return f"the GPUs cost about ${dollars:,.2f} within 24 hours"


def _tell(what: str, sentence: str) -> None:
    post_to_team(
        kind=MailKind.SPEND,
        words=Words(
            subject=f"GPU spend: {what}",
            paragraphs=[sentence, "It is an estimate from a count of containers each minute."],
            button=Button("Open Spend", SPEND_PATH),
        ),
    )


def standing(now: datetime) -> Standing:
    """Return where the spend stands; reads the samples of 24 hours."""
    cleared = spend_stop.last_cleared_at()
    since = now - DAY
    samples = _between(since, now)
    counted_at = SpendSample.objects.aggregate(last=Max("minute"))["last"]
    stale = settings.BASALT.spend_stale_seconds
    return Standing(
        last_day=_dollars(samples),
        counting=_dollars(_between(max(since, cleared or since), now)),
        counted_at=counted_at,
        minutes=samples.order_by().values("minute").distinct().count(),
        stale=counted_at is None or (now - counted_at).total_seconds() > stale,
    )


def by_model(now: datetime, length: timedelta = DAY) -> list[ModelSpend]:
    """Return what each model cost in each environment lately, the dearest first (A-486)."""
    rows = (
        _between(now - length, now)
        .values("model", "environment")
        .annotate(
            minutes=Sum("containers"),
            gpu_minutes=Sum(F("containers") * F("gpus")),
            unknown=Count("id", filter=Q(gpus=None, containers__gt=0)),
            dollar_minutes=Sum(F("containers") * F("price_per_hour")),
        )
    )
    found = [
        ModelSpend(
            row["model"],
            row["environment"],
            Decimal(row["minutes"]) / 60,
            None if row["unknown"] else Decimal(row["gpu_minutes"] or 0) / 60,
            row["dollar_minutes"] / 60,
        )
        for row in rows
    ]
    return sorted(found, key=lambda row: (-row.dollars, row.model, row.environment))


def by_day(first: date, last: date, now: datetime) -> dict[tuple[date, str], Decimal]:
    """Return US dollars of each day and model (A-487).

    Of days that are over from their sums; of today and yesterday from the samples, up to the last
    count, since a day is summed once an hour.
    """
    today = now.astimezone(UTC).date()
    yesterday = today - timedelta(days=1)
    found: dict[tuple[date, str], Decimal] = defaultdict(Decimal)
    summed = SpendDay.objects.filter(day__range=(first, last))
    rows = summed.exclude(day__range=(yesterday, today)).order_by()
    for day, model, minutes in rows.values_list("day", "model").annotate(
        minutes=Sum("dollar_minutes")
    ):
        found[day, model] = minutes / 60
    lately = max(first, yesterday), min(last, today)
    for row in _sums(*lately) if lately[0] <= lately[1] else []:
        found[row.day, row.model] += row.dollar_minutes / 60
    return dict(found)


def roll_up(now: datetime, *, everything: bool = False) -> int:
    """Make the sums of UTC days anew from their samples; return how many rows there are.

    From yesterday or the last day that was summed, whichever is earlier, so that a clock that
    stood still for days leaves no day half summed; with `everything`, of every day whose samples
    are kept whole. Samples past their time are removed.
    """
    today = now.astimezone(UTC).date()
    oldest = today - timedelta(days=settings.BASALT.spend_sample_days - 1)
    summed = SpendDay.objects.aggregate(last=Max("day"))["last"] or oldest
    first = oldest if everything else max(oldest, min(summed, today - timedelta(days=1)))
    rows = _sums(first, today)
    with transaction.atomic():
        SpendDay.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["day", "model", "environment", "kind"],
            update_fields=["container_minutes", "dollar_minutes"],
        )
    SpendSample.objects.filter(minute__lt=_start(oldest)).delete()
    return len(rows)


def _start(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time(), UTC)


def _sums(first: date, last: date) -> list[SpendDay]:
    rows = (
        SpendSample.objects.filter(
            minute__gte=_start(first), minute__lt=_start(last + timedelta(days=1))
        )
        .order_by()
        .annotate(day=TruncDate("minute", tzinfo=UTC))
        .values("day", "model", "environment", "kind")
        .annotate(
            container_minutes=Sum("containers"),
            dollar_minutes=Sum(F("containers") * F("price_per_hour")),
        )
    )
    return [SpendDay(**row) for row in rows]


def _between(since: datetime, now: datetime) -> QuerySet[SpendSample]:
    """Return the samples of minutes that began after `since` and up to `now`."""
    return SpendSample.objects.filter(minute__gt=since, minute__lte=now)


def _dollars(samples: QuerySet[SpendSample]) -> Decimal:
    total = samples.aggregate(sum=Sum(F("containers") * F("price_per_hour")))["sum"]
    return ((total or Decimal(0)) / 60).quantize(CENT)


def shares(total: Decimal, tokens: Sequence[int]) -> list[Decimal]:
    """Return each one's part of `total` by its tokens, to the cent; the parts add up (A-488)."""
    whole = sum(tokens)
    if not whole:
        return [Decimal(0) for _ in tokens]
    parts: list[Decimal] = []
    reached, given = 0, Decimal(0)
    for each in tokens:
        reached += each
        upto = (total * reached / whole).quantize(CENT)
        parts.append(upto - given)
        given = upto
    return parts
