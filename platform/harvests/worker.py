"""A harvest worker: one model, one run at a time, in a process that steps back for Completions.

Runs are rows, and the worker takes the oldest that is asked for; a ring only saves it a look. The
model stays loaded between runs. While a run goes on, a thread writes how far it is and learns in
half a second that it must stop.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from completions.failures import Failure
from harvests import files, runs
from harvests.asked import HarvestAsked, Resolved
from harvests.models import Harvest, HarvestInput
from harvests.refusals import refused_value, run_failed, weights_not_confirmed
from harvests.runs import Taken
from inference import harvesting, valkey
from inference.catalogue import ModelEntry
from inference.client import LOST
from inference.engine.loading import LoadedModel, LoadStage, ModelUnsupported
from inference.fleet import Fleet, Stage, WorkerReport, harvest_worker
from inference.harvest.outcome import Outcome, Progress
from inference.harvest.request import HarvestInvalid
from inference.harvest.run import HarvestLimits, NotFinite, harvest
from jobs.outages import Outage

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often an idle worker looks for a run without being rung."""
BEAT_SECONDS = 0.5
"""How often a run says that it goes on, and asks whether it should."""


class StopRun(Exception):
    """Raised in the middle of a run: it is not wanted any more, or the process ends."""


class HarvestWorker:
    """Runs the harvests of one model."""

    def __init__(self, entry: ModelEntry) -> None:
        self.entry = entry
        self.worker_id = f"harvest-{entry.id}-{uuid4().hex[:12]}"
        self._fleet = Fleet(valkey.connection())
        self._started_at = time.time()
        self._idle_since: float | None = time.time()
        self._stage = Stage.CONTAINER_STARTED
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._loaded: tuple[LoadedModel, str] | None = None
        self._thread = threading.Thread(target=self._work_forever, name="harvests", daemon=True)
        self._run: _Run | None = None

    def start(self) -> None:
        """Begin to report and to take runs."""
        threading.Thread(target=self._report_forever, name="worker-reports", daemon=True).start()
        self._thread.start()

    def announce_serving(self) -> None:
        """Say that this process hears rings."""
        self._enter(Stage.SERVING)

    def ring(self) -> None:
        """Look for a run now."""
        self._wake.set()

    def stop(self, drain_s: float) -> None:
        """Let a run end for `drain_s` seconds, then give it back for another worker."""
        self._enter(Stage.DRAINING)
        self._stopping.set()
        self._wake.set()
        self._thread.join(drain_s)
        run = self._run
        if run is not None:
            run.give_back.set()
            self._thread.join()
        self._ended.set()
        with contextlib.suppress(*LOST):
            self._fleet.retire(self._report())

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        with contextlib.suppress(*LOST):
            self._fleet.report(self._report())

    def _report(self) -> WorkerReport:
        return WorkerReport(
            worker_id=self.worker_id,
            model_id=harvest_worker(self.entry.id),
            stage=self._stage,
            started_at=self._started_at,
            idle_since=self._idle_since,
            host=socket.gethostname(),
            pid=os.getpid(),
            running=0 if self._run is None else 1,
        )

    def _report_forever(self) -> None:
        while not self._ended.wait(settings.BASALT.worker_report_seconds):
            with contextlib.suppress(*LOST):
                self._fleet.report(self._report())

    def _work_forever(self) -> None:
        outage = Outage("no look for harvests", "looks for harvests again", model=self.entry.id)
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                taken = runs.take(self.entry.id)
            except DatabaseError as away:
                outage.failed(away)
                taken = None
            else:
                outage.over()
            finally:
                _put_connection_back()
            if taken is None:
                self._wake.wait(max(LOOK_SECONDS, outage.pause))
                continue
            self._idle_since = None
            try:
                self._run = _Run(taken, self.entry, self._load)
                self._run.go()
            finally:
                self._run = None
                self._idle_since = time.time()
                _put_connection_back()

    def _load(self) -> tuple[LoadedModel, str]:
        """Return the model and its identity, loaded once for the life of the process."""
        if self._loaded is None:
            found = harvesting.confirmed(self.entry)
            self._enter(Stage.WEIGHTS_LOADING)
            loaded = harvesting.load(self.entry, found, lambda stage: self._note(stage))
            self._loaded = loaded, harvesting.identity_of(found)
            self._enter(Stage.DRAINING if self._stopping.is_set() else Stage.SERVING)
        return self._loaded

    def _note(self, stage: LoadStage) -> None:
        self._enter(Stage(stage.value))


class _Run:
    """One run in the hands of this process."""

    def __init__(
        self,
        taken: Taken,
        entry: ModelEntry,
        load: Callable[[], tuple[LoadedModel, str]],
    ) -> None:
        self.give_back = threading.Event()
        """Set when the process ends and another worker shall have the run."""
        self._taken = taken
        self._entry = entry
        self._load = load
        self._target = files.target_of(taken.harvest_id, taken.worker)
        self._progress: Progress | None = None
        self._unwanted = threading.Event()
        self._over = threading.Event()

    def go(self) -> None:
        """Run it, and keep its end."""
        log.info("harvest started", harvest=str(self._taken.harvest_id))
        try:
            with self._beating():
                outcome, load_s = self._harvest()
            kept = _surely(
                lambda: runs.finish(self._taken, outcome, folder=self._target, load_s=load_s)
            )
        except StopRun:
            kept = False
            if self.give_back.is_set():
                _surely(lambda: runs.give_back(self._taken))
        except Exception as error:  # noqa: BLE001 - it becomes the end of the run
            kept = False
            failure = _failure_of(error)
            log.warning("harvest failed", harvest=str(self._taken.harvest_id), cause=str(error))
            _surely(lambda: runs.fail(self._taken, failure))
        if not kept:
            files.discard(self._target)
        log.info("harvest ended", harvest=str(self._taken.harvest_id), done=kept)

    def _harvest(self) -> tuple[Outcome, float]:
        resolved = self._asked()
        begun = time.monotonic()
        loaded, identity = self._load()
        load_s = time.monotonic() - begun
        with files.scratch(self._target) as sink:
            outcome = harvest(
                loaded,
                resolved.request(str(self._taken.harvest_id), identity),
                sink,
                check=self._check,
                report=self._note,
                limits=HarvestLimits(batch_tokens=settings.BASALT.harvest_batch_tokens),
            )
        # A model that was there already is looked up in no time (C-494).
        return outcome, load_s if load_s > 0.01 else 0.0

    def _asked(self) -> Resolved:
        """Read what is asked for; one that ended meanwhile has no input any more."""
        try:
            row = HarvestInput.objects.get(harvest_id=self._taken.harvest_id)
            layers = Harvest.objects.values_list("layers", flat=True).get(id=row.harvest_id)
        except (HarvestInput.DoesNotExist, Harvest.DoesNotExist):
            raise StopRun from None
        finally:
            _put_connection_back()
        return Resolved(HarvestAsked.unpack(bytes(row.data)), self._entry, tuple(layers))

    def _check(self) -> None:
        if self._unwanted.is_set() or self.give_back.is_set():
            raise StopRun

    def _note(self, progress: Progress) -> None:
        self._progress = progress

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        thread = threading.Thread(target=self._beat_forever, name="harvest-beats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _beat_forever(self) -> None:
        """Say that the run goes on; while the database is away, it does so unheard."""
        name = str(self._taken.harvest_id)
        outage = Outage("a harvest is not heard", "a harvest is heard again", harvest=name)
        while not self._over.wait(BEAT_SECONDS):
            try:
                if not runs.goes_on(self._taken, self._progress):
                    self._unwanted.set()
                    return
            except DatabaseError as away:
                outage.failed(away)
            else:
                outage.over()
            finally:
                _put_connection_back()


def _failure_of(error: Exception) -> Failure:
    """Return what the User reads (C-512)."""
    if isinstance(error, harvesting.WeightsNotConfirmed):
        return weights_not_confirmed()
    if isinstance(error, HarvestInvalid):
        return refused_value(str(error))
    if isinstance(error, NotFinite | ModelUnsupported):
        return run_failed(str(error))
    if isinstance(error, OSError):
        return run_failed(f"its files could not be written ({error.strerror or error}).")
    if isinstance(error, MemoryError):
        return run_failed("there was not enough memory.")
    log.exception("a harvest met a fault", exc_info=error)
    return run_failed("the harvest worker met a fault of its own.")


def _surely(write: Callable[[], bool]) -> bool:
    """Write to the database, however long it is away."""
    outage = Outage("the end of a harvest is kept later", "the end of a harvest is kept")
    while True:
        try:
            kept = write()
        except DatabaseError as away:
            outage.failed(away)
            time.sleep(outage.pause)
        else:
            outage.over()
            return kept
        finally:
            _put_connection_back()


def _put_connection_back() -> None:
    # Inside a test's transaction the connection is the test's own.
    if not connection.in_atomic_block:
        connection.close()


_current: HarvestWorker | None = None


def work_here(worker: HarvestWorker) -> None:
    """Say which worker the rings of this process are for."""
    global _current
    _current = worker


def answer_ring() -> None:
    """Have this process's worker look."""
    if _current is not None:
        _current.ring()
