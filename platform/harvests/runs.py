"""The run of a harvest: asked for by a runner, taken by a harvest worker, followed by its id.

All of it is rows. A doorbell only saves the worker a look, so a restart of the API, of a runner or
of Valkey loses nothing, and no run is started twice: to take one is one statement.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import structlog
from celery import current_app
from django.conf import settings
from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from completions.failures import Failure
from completions.kept_failures import restored, stored
from harvests.models import Harvest, HarvestRun, Stage
from inference.client import LOST
from inference.fleet import harvest_worker, queue_of
from inference.harvest.outcome import Outcome, Progress
from jobs.states import LIVE, WorkState

log = structlog.get_logger()

RING = "harvests.ring"
"""The Celery task that rings at a harvest worker."""

# A run starts only while its harvest holds tokens (C-675).
_TAKE = """
UPDATE harvests_harvestrun SET stage = 'started', worker = %(worker)s, attempts = attempts + 1,
    started_at = coalesce(started_at, now()), seen_at = now(),
    tokens_read = 0, tokens_total = 0, shards_written = 0
WHERE harvest_id = (
  SELECT r.harvest_id FROM harvests_harvestrun r
  JOIN harvests_harvest h ON h.id = r.harvest_id
  WHERE r.model = %(model)s AND r.stage = 'asked' AND h.state = 'running'
  ORDER BY h.created_at, h.id LIMIT 1 FOR UPDATE OF r SKIP LOCKED
) AND stage = 'asked' RETURNING harvest_id
"""
_BUSY = Q(stage=Stage.ASKED, harvest__state=WorkState.RUNNING) | Q(
    stage=Stage.STARTED, harvest__state__in=LIVE
)
"""A run counts from when a harvest that holds its tokens asked for it, and while a worker has it,
whoever follows it."""
_LOCKS = 0x68617276
"""The first number of the advisory locks of a model's runs."""
_CLOCKS = "SELECT now(), pg_postmaster_start_time()"


def ask(harvest: Harvest) -> bool:
    """Ask for the run of a harvest, once; one that began goes on and is only followed.

    False when other runs of the model, or older harvests about to ask, have all its workers: then
    nothing is asked. Until the transaction ends nobody else asks for a run of this model.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCKS, harvest.model])
    if HarvestRun.objects.filter(harvest_id=harvest.id).exclude(stage=Stage.ASKED).exists():
        return True
    others = _going_on(harvest.model).exclude(harvest_id=harvest.id).count()
    older = Q(created_at__lt=harvest.created_at) | Q(
        created_at=harvest.created_at, id__lt=harvest.id
    )
    before = Harvest.objects.filter(
        older, model=harvest.model, state=WorkState.QUEUED, owner__isnull=False
    ).count()
    if others + before >= settings.BASALT.harvest_runs_per_model:
        return False
    HarvestRun.objects.get_or_create(harvest_id=harvest.id, defaults={"model": harvest.model})
    return True


def full_models() -> list[str]:
    """Return the models whose workers are all busy, or about to be."""
    going_on = HarvestRun.objects.filter(_BUSY).values_list("model")
    counted = going_on.annotate(count=Count("harvest_id"))
    full = counted.filter(count__gte=settings.BASALT.harvest_runs_per_model)
    # A harvest whose own run goes on must be taken up again all the same.
    left = HarvestRun.objects.filter(
        harvest__state=WorkState.QUEUED, harvest__owner__isnull=True
    ).exclude(stage=Stage.ASKED)
    alone = set(left.values_list("model", flat=True))
    return [model for model, _ in full if model not in alone]


def _going_on(model_id: str) -> QuerySet[HarvestRun]:
    return HarvestRun.objects.filter(_BUSY, model=model_id)


def ring(model_id: str) -> None:
    """Wake the model's harvest workers; a lost ring is found by a look."""
    try:
        current_app.send_task(
            RING,
            queue=queue_of(harvest_worker(model_id)),
            expires=60,
            ignore_result=True,
            retry=False,
        )
    except LOST as lost:
        log.warning("a harvest worker was not woken", model=model_id, cause=str(lost))


@dataclass(frozen=True)
class Taken:
    """A run in the hands of a worker."""

    harvest_id: UUID
    worker: UUID


def take(model_id: str) -> Taken | None:
    """Take the oldest run that waits for a worker of this model; None when there is none."""
    worker = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"worker": worker, "model": model_id})
        row = cursor.fetchone()
    return Taken(row[0], worker) if row else None


def goes_on(taken: Taken, progress: Progress | None) -> bool:
    """Say that the worker lives and how far it is; False when the run must stop.

    That is so when the harvest was cancelled or has failed, and when the run is another worker's.
    """
    changes: dict[str, object] = {"seen_at": Now()}
    if progress is not None:
        changes |= {
            "tokens_read": progress.tokens_read,
            "tokens_total": progress.tokens_total,
            "shards_written": progress.shards_written,
        }
    wanted = Harvest.objects.filter(id=OuterRef("harvest_id"), state__in=LIVE)
    return _own(taken).filter(Exists(wanted)).update(**changes) > 0


def finish(taken: Taken, outcome: Outcome, *, folder: str, load_s: float) -> bool:
    """Keep what the run wrote; False when it is not this worker's any more."""
    ended = _own(taken).update(
        stage=Stage.DONE,
        seen_at=Now(),
        folder=folder,
        tokens=outcome.tokens,
        tokens_read=outcome.tokens,
        tokens_total=outcome.tokens,
        shards_written=outcome.n_shards,
        n_shards=outcome.n_shards,
        bytes_written=outcome.bytes_written,
        load_s=load_s,
        forward_s=outcome.forward_s,
        save_s=outcome.save_s,
        upload_s=outcome.upload_s,
    )
    return ended > 0


def fail(taken: Taken, failure: Failure) -> bool:
    """Keep why the run failed; False when it is not this worker's any more."""
    return _own(taken).update(stage=Stage.FAILED, seen_at=Now(), error=stored(failure)) > 0


def give_back(taken: Taken) -> bool:
    """Let another worker take the run, because this one stops as planned; it begins anew."""
    changes = {"stage": Stage.ASKED, "worker": None, "attempts": F("attempts") - 1}
    return _own(taken).update(**changes) > 0


def _own(taken: Taken) -> QuerySet[HarvestRun]:
    return HarvestRun.objects.filter(
        harvest_id=taken.harvest_id, worker=taken.worker, stage=Stage.STARTED
    )


@dataclass(frozen=True)
class Sight:
    """What a follower sees of a run at one moment; None for one that is not there."""

    run: HarvestRun
    now: datetime
    """The database's clock."""
    up_since: datetime

    @property
    def is_silent(self) -> bool:
        """Whether its worker did not write for a lease, although the database was there."""
        if self.run.stage != Stage.STARTED or self.run.seen_at is None:
            return False
        length = timedelta(seconds=settings.BASALT.lease_seconds)
        return self.now - max(self.run.seen_at, self.up_since) > length

    @property
    def age(self) -> timedelta:
        """Time since the run started; 0 before."""
        return self.now - (self.run.started_at or self.now)

    @property
    def failure(self) -> Failure | None:
        """Why it failed."""
        return restored(self.run.error) if self.run.stage == Stage.FAILED else None


def look(harvest_id: UUID) -> Sight | None:
    """Look at a run."""
    run = HarvestRun.objects.filter(harvest_id=harvest_id).first()
    if run is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(_CLOCKS)
        now, up_since = cursor.fetchone()
    return Sight(run, now, up_since)


def lose(run: HarvestRun) -> bool:
    """Let another worker begin a run anew whose worker is silent; False when it wrote meanwhile."""
    silent = HarvestRun.objects.filter(
        harvest_id=run.harvest_id, worker=run.worker, seen_at=run.seen_at, stage=Stage.STARTED
    )
    return silent.update(stage=Stage.ASKED, worker=None) > 0
