"""Which workers run, in what stage, and which models are asked for.

A worker is the contract's "container". Its report is a key that expires after six missed
reports, by Valkey's own clock, so that a killed worker is gone three seconds later whatever the
clocks of the hosts say. A model counts as warm only while a report is fresh, which ends after three
missed ones: showing a model cold for a moment harms nobody, failing its requests would.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import msgspec
import redis
from django.conf import settings

from inference import valkey
from inference.catalogue import ModelEntry

DEMAND_SECONDS = 5.0
"""A demand that nobody repeats for so long is gone."""
FLOOR_SECONDS = 60.0
"""A floor that nobody repeats for so long is gone."""
MISSED_REPORTS = 6
MISSED_WHILE_FRESH = 3
"""Reports that a serving worker may miss before its model is not shown as warm any more."""
MISSED_WHILE_STARTING = 40
"""Reports that a starting worker may miss: libraries that it loads may hold it up for seconds."""


class Stage(StrEnum):
    """Where a worker is in its life; the first four are the contract's (C-130, C-659)."""

    WAITING_FOR_GPU = "waiting_for_gpu"
    CONTAINER_STARTED = "container_started"
    WEIGHTS_LOADING = "weights_loading"
    WEIGHTS_LOADED = "weights_loaded"
    SERVING = "serving"
    DRAINING = "draining"

    @property
    def label(self) -> str:
        """Words for people (C-130, U-67)."""
        return _LABELS[self]


_LABELS = {
    Stage.WAITING_FOR_GPU: "Waiting for a GPU",
    Stage.CONTAINER_STARTED: "Container started",
    Stage.WEIGHTS_LOADING: "Loading model weights",
    Stage.WEIGHTS_LOADED: "Weights loaded",
    Stage.SERVING: "Serving",
    Stage.DRAINING: "Stopping",
}
_STARTING = (Stage.CONTAINER_STARTED, Stage.WEIGHTS_LOADING, Stage.WEIGHTS_LOADED)


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself, twice a second."""

    worker_id: str
    model_id: str
    stage: Stage
    started_at: float
    """Unix seconds of its start."""
    idle_since: float | None
    """Unix seconds since when it has nothing to do; None while it works or loads."""
    host: str
    pid: int
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Boot:
    """A start that is under way (C-129, C-131)."""

    stage: Stage
    since: float
    """Unix seconds: for `waiting_for_gpu` of the waiting request or the warm window, else of the
    worker's start."""


@dataclass(frozen=True)
class ModelState:
    """Whether a model is warm, and the start that is under way, if any (C-132, C-133)."""

    warm: bool
    boot: Boot | None


HARVESTS = "harvest/"
"""No id of a model has a slash, so no model is mistaken for a harvest worker."""


def harvest_worker(model_id: str) -> str:
    """Return the name under which a model's harvest workers report and are asked for."""
    return f"{HARVESTS}{model_id}"


def queue_of(name: str) -> str:
    """Return the Celery queue of a model's engine workers, or of its harvest workers by name."""
    if name.startswith(HARVESTS):
        return f"harvest.{name.removeprefix(HARVESTS)}"
    return f"engine.{name}"


_answered_here: dict[str, float] = {}
"""When this process last saw a model answer, by its own clock."""


class Fleet:
    """Reports and demands in Valkey."""

    def __init__(self, connection: redis.Redis) -> None:
        self._valkey = connection

    def report(self, report: WorkerReport) -> None:
        """Write a worker's report; it stands for six intervals, and longer while it starts."""
        life_ms = _life_ms(report.stage)
        with self._valkey.pipeline(transaction=False) as pipe:
            pipe.set(
                valkey.worker_report(report.worker_id), msgspec.msgpack.encode(report), px=life_ms
            )
            pipe.sadd(valkey.worker_set(report.model_id), report.worker_id)
            pipe.execute()

    def retire(self, report: WorkerReport) -> None:
        """Take a worker's report away at once: that it is gone is known then, not guessed."""
        with self._valkey.pipeline(transaction=False) as pipe:
            pipe.delete(valkey.worker_report(report.worker_id))
            pipe.srem(valkey.worker_set(report.model_id), report.worker_id)
            pipe.execute()

    def workers(self, model_id: str) -> list[WorkerReport]:
        """Return the reports of a model's living workers, oldest first."""
        return [report for report, _ in self._reports(model_id)]

    def _reports(self, model_id: str) -> list[tuple[WorkerReport, bool]]:
        """Return the same, and of each whether it is fresh."""
        members = cast("set[bytes]", self._valkey.smembers(valkey.worker_set(model_id)))
        ids = sorted(member.decode() for member in members)
        if not ids:
            return []
        names = [valkey.worker_report(i) for i in ids]
        with self._valkey.pipeline(transaction=True) as pipe:
            pipe.mget(names)
            for name in names:
                pipe.pttl(name)
            raw, *left = cast("tuple[list[bytes | None], *tuple[int, ...]]", tuple(pipe.execute()))
        gone = [i for i, value in zip(ids, raw, strict=True) if value is None]
        if gone:
            self._valkey.srem(valkey.worker_set(model_id), *gone)
        reports = [
            _with_freshness(value, left_ms)
            for value, left_ms in zip(raw, left, strict=True)
            if value is not None
        ]
        return sorted(reports, key=lambda pair: pair[0].started_at)

    def ask(self, model_id: str) -> None:
        """Say that a request waits for the model; repeat it while the request waits."""
        name, life_ms = valkey.demand(model_id), int(DEMAND_SECONDS * 1000)
        with self._valkey.pipeline(transaction=False) as pipe:
            pipe.set(name, repr(time.time()), px=life_ms, nx=True)
            pipe.pexpire(name, life_ms)
            pipe.execute()

    def demand(self, model_id: str) -> float | None:
        """Return the Unix seconds since when a request waits for the model, or None."""
        raw = cast("bytes | None", self._valkey.get(valkey.demand(model_id)))
        return float(raw) if raw else None

    def keep_warm(self, model_id: str, since: float, seconds: float) -> None:
        """Have one container of the model kept for `seconds`, with or without requests (C-627).

        `since` is the Unix time at which that began. The floor ends by itself unless it is
        repeated, and after `FLOOR_SECONDS` at the latest.
        """
        life_ms = max(1, int(min(seconds, FLOOR_SECONDS) * 1000))
        self._valkey.set(valkey.floor(model_id), repr(since), px=life_ms)

    def let_cool(self, model_id: str) -> None:
        """End the floor of a model; a container that is idle then stops as usual."""
        self._valkey.delete(valkey.floor(model_id))

    def floor(self, model_id: str) -> float | None:
        """Return the Unix seconds since when the model is to be kept warm, or None."""
        raw = cast("bytes | None", self._valkey.get(valkey.floor(model_id)))
        return float(raw) if raw else None

    def containers(self, model: ModelEntry) -> int:
        """Return how many containers of a model cost money now, whatever their stage.

        A model on a server of the operator's has no reports: it counts as one container while it
        answered within the last minutes (C-134).
        """
        if model.backend.kind == "worker":
            return len(self.workers(model.id))
        return int(self._answered_lately(model.id))

    def note_answer(self, model_id: str) -> None:
        """Note that the model answered, for the time when no report tells of it (C-134)."""
        _answered_here[model_id] = time.monotonic()
        life_ms = int(settings.BASALT.warm_after_answer_seconds * 1000)
        self._valkey.set(valkey.answered(model_id), b"1", px=life_ms)

    def state(self, model: ModelEntry) -> ModelState:
        """Return a model's state from the reports and the demand alone (C-135).

        A model without a report is cold where workers report, whatever it answered before: the
        report of one that was killed ran out. A server of the operator's has no reports, so its
        answers of the last minutes are its sign of life (C-134); and while Valkey is away, those
        are that this process saw.
        """
        try:
            wanted = [self.demand(model.id), self.floor(model.id)]
            since = min((at for at in wanted if at is not None), default=None)
            if model.backend.kind == "worker":
                return state_of(self._reports(model.id), since)
            boot = None if since is None else Boot(Stage.WAITING_FOR_GPU, since)
            return ModelState(self._answered_lately(model.id), boot)
        except (redis.exceptions.RedisError, OSError):
            seen = _answered_here.get(model.id, -math.inf)
            lately = time.monotonic() - seen < settings.BASALT.warm_after_answer_seconds
            return ModelState(warm=lately, boot=None)

    def _answered_lately(self, model_id: str) -> bool:
        return bool(self._valkey.exists(valkey.answered(model_id)))


def state_of(workers: Iterable[tuple[WorkerReport, bool]], wanted: float | None) -> ModelState:
    """Return the state that these reports mean, of each whether it is fresh.

    `wanted` is the Unix time since when a container is wanted.
    """
    reports = list(workers)
    starting = [report for report, _ in reports if report.stage in _STARTING]
    if starting:
        furthest = max(starting, key=lambda report: _STARTING.index(report.stage))
        boot = Boot(furthest.stage, furthest.started_at)
    elif wanted is not None and not reports:
        boot = Boot(Stage.WAITING_FOR_GPU, wanted)
    else:
        boot = None
    serves = any(is_fresh and report.stage is Stage.SERVING for report, is_fresh in reports)
    return ModelState(warm=serves, boot=boot)


def _life_ms(stage: Stage) -> int:
    """Return how long a report of this stage stands."""
    missed = MISSED_WHILE_STARTING if stage in _STARTING else MISSED_REPORTS
    return int(missed * settings.BASALT.worker_report_seconds * 1000)


def _with_freshness(raw: bytes, left_ms: int) -> tuple[WorkerReport, bool]:
    """Read a report, and whether it is fresh, by what is left of its life."""
    report = msgspec.msgpack.decode(raw, type=WorkerReport)
    fresh_ms = MISSED_WHILE_FRESH * settings.BASALT.worker_report_seconds * 1000
    return report, _life_ms(report.stage) - left_ms <= fresh_ms
