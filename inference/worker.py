"""An engine worker: one model, its engine, and the threads that tie it to the wire.

Reports, control messages and publishing each have a thread of their own, because one step of the
engine can take seconds. Who runs the Celery consumer and who stops the process is decided above
(`operations.hosting`); this module has no signal handling.
"""

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast
from uuid import uuid4

import structlog
from django.conf import settings

from inference import valkey, wire
from inference.catalogue import ModelEntry
from inference.client import LOST
from inference.engine.messages import EngineRequest, Event, Failed, Finished
from inference.fleet import Fleet, Stage, WorkerReport

log = structlog.get_logger()

CONSUMER_PATIENCE = 5.0
"""Seconds without a consumer's mark after which its requests are aborted."""
STEPS_AT_ONCE = 64
"""Steps of the engine whose events may go out together, when the wire is slower than it."""
PUBLISH_PATIENCE = 5.0
"""Seconds for which unsent events are kept while Valkey cannot be reached."""

Emit = Callable[[Sequence[Event]], None]
Report = Callable[[Stage], None]


class Load(Protocol):
    """How much an engine has to do."""

    @property
    def running(self) -> int:
        """Choices that run."""

    @property
    def waiting(self) -> int:
        """Choices that wait for room."""


class RunningEngine(Protocol):
    """What a worker needs of an engine; `inference.engine.loop.Engine` is the real one."""

    def start(self, emit: Emit) -> None:
        """Begin the loop; `emit` takes each step's events."""

    def submit(self, request: EngineRequest, worker_id: str) -> None:
        """Take a request; its events follow."""

    def abort(self, request_id: str) -> None:
        """Forget a request; it emits nothing more."""

    def stop(self, drain_s: float) -> None:
        """End, after at most so many seconds."""

    def load_figures(self) -> Load:
        """Say how much there is to do."""

    @property
    def is_dead(self) -> bool:
        """Whether the loop has broken."""


def load_engine(model: ModelEntry, folder: Path, report: Report) -> RunningEngine:
    """Load a prepared model into the torch engine, telling each stage.

    Raises:
        ModelUnsupported: when the weights cannot be served.
    """
    from inference.engine.limits import EngineLimits
    from inference.engine.loop import Engine

    env = settings.BASALT
    return Engine.load(
        folder,
        dtype=model.dtype,
        device=model.device,
        max_model_len=model.max_model_len,
        limits=EngineLimits(
            cache_bytes=int(env.engine_memory_gib * 2**30),
            threads=env.engine_threads or os.cpu_count() or 1,
        ),
        report=lambda stage: report(Stage(stage.value)),
    )


_current: "EngineWorker | None" = None


def current_worker() -> "EngineWorker":
    """Return the worker of this process."""
    if _current is None:
        raise RuntimeError("this process runs no engine")
    return _current


class EngineWorker:
    """The engine of one model in this process."""

    def __init__(self, model: ModelEntry, load: Callable[[Report], RunningEngine]) -> None:
        self.model = model
        self.worker_id = f"{model.id}-{uuid4().hex[:12]}"
        self._load = load
        self._stage = Stage.CONTAINER_STARTED
        self._started_at = time.time()
        self._idle_since: float | None = None
        self._engine: RunningEngine | None = None
        self._fleet = Fleet(valkey.connection())
        self._consumers: dict[str, str] = {}
        self._missed: dict[str, float] = {}
        self._outbox: queue.SimpleQueue[Sequence[Event] | None] = queue.SimpleQueue()
        self._entries = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Load the model; reports go out from the first moment."""
        global _current
        _current = self
        self._enter(Stage.CONTAINER_STARTED)
        self._spawn(self._report_forever, "worker-reports")
        self._engine = self._load(self._enter)
        self._engine.start(self._outbox.put)
        self._spawn(self._publish_forever, "worker-publisher")
        self._spawn(self._control_forever, "worker-control")

    def announce_serving(self) -> None:
        """Say that requests may be rung for, once this process hears the bell."""
        if self._stage is Stage.DRAINING:
            return
        if not self._consumers:
            self._idle_since = self._idle_since or time.time()
        self._enter(Stage.SERVING)

    def take_all(self, request_ids: Sequence[str]) -> None:
        """Take submitted requests; what is wrong with one keeps no other from being taken."""
        for request_id in request_ids:
            try:
                self.take(request_id)
            except Exception:
                log.exception("a request was not taken", request_id=request_id)

    def take(self, request_id: str) -> None:
        """Take a submitted request into the engine; does nothing when somebody else has it."""
        submission = wire.take_submission(valkey.connection(), request_id)
        if submission is None or self._engine is None:
            return
        # Known before the mark is read, so that an abort is seen by one of the two ways.
        self._consumers[request_id] = submission.consumer_id
        if wire.is_aborted(valkey.connection(), request_id):
            self._consumers.pop(request_id, None)
            return
        self._idle_since = None
        self._engine.submit(submission.request, self.worker_id)

    def announce_stop(self) -> None:
        """Say that nobody should ring here any more."""
        self._enter(Stage.DRAINING)

    def stop(self, drain_s: float) -> None:
        """Let running requests end for `drain_s` seconds, fail the rest, and end the threads."""
        if self._engine:
            self._engine.stop(drain_s)
        self._outbox.put(None)
        for thread in self._threads:
            if thread.name == "worker-publisher":
                thread.join(PUBLISH_PATIENCE)
        self._stopping.set()
        with contextlib.suppress(*LOST):
            self._fleet.retire(self._report())

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _enter(self, stage: Stage) -> None:
        log.info("worker stage", worker=self.worker_id, stage=stage.value)
        self._stage = stage
        with contextlib.suppress(*LOST):
            self._fleet.report(self._report())

    def _report(self) -> WorkerReport:
        figures = self._engine.load_figures() if self._engine else None
        return WorkerReport(
            worker_id=self.worker_id,
            model_id=self.model.id,
            stage=self._stage,
            started_at=self._started_at,
            idle_since=self._idle_since,
            host=socket.gethostname(),
            pid=os.getpid(),
            running=figures.running if figures else 0,
            waiting=figures.waiting if figures else 0,
        )

    def _report_forever(self) -> None:
        while not self._stopping.wait(settings.BASALT.worker_report_seconds):
            if self._stage is Stage.SERVING and self._engine and self._engine.is_dead:
                log.error("the engine died: the worker ends", worker=self.worker_id)
                with contextlib.suppress(*LOST):
                    self._fleet.retire(self._report())
                os._exit(1)
            if self._stage is Stage.SERVING and self._idle_since is None and not self._consumers:
                self._idle_since = time.time()
            with contextlib.suppress(*LOST):
                self._fleet.report(self._report())
                self._abort_orphans()

    def _abort_orphans(self) -> None:
        """Abort the requests of consumers that have not been heard of for a while."""
        consumers = sorted(set(self._consumers.values()))
        marks = (
            cast(
                "list[bytes | None]",
                valkey.connection().mget([valkey.consumer_alive(c) for c in consumers]),
            )
            if consumers
            else []
        )
        now = time.monotonic()
        alive = {c for c, mark in zip(consumers, marks, strict=True) if mark}
        self._missed = {c: self._missed.get(c, now) for c in consumers if c not in alive}
        lost = {c for c, since in self._missed.items() if now - since > CONSUMER_PATIENCE}
        for request_id, consumer_id in list(self._consumers.items()):
            if consumer_id in lost:
                self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        if self._consumers.pop(request_id, None) and self._engine:
            self._engine.abort(request_id)

    def _control_forever(self) -> None:
        """Read aborts; entries from before this worker name requests that it does not have."""
        last = b"0"
        while not self._stopping.is_set():
            try:
                answer = valkey.connection().xread(
                    {valkey.control(self.model.id): last}, block=1000, count=256
                )
                for _, entries in cast("wire.StreamAnswer", answer):
                    for entry_id, fields in entries:
                        last = entry_id
                        self._abort(fields[b"abort"].decode())
            except LOST:
                time.sleep(0.2)

    def _publish_forever(self) -> None:
        """Send what the engine emits: all that waits, as one entry for each consumer."""
        while (events := self._outbox.get()) is not None:
            batches: dict[str, list[Event]] = {}
            self._sort(events, batches)
            last = False
            for _ in range(STEPS_AT_ONCE):
                try:
                    more = self._outbox.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                self._sort(more, batches)
            if batches:
                self._send(batches)
            if last:
                return

    def _sort(self, events: Sequence[Event], batches: dict[str, list[Event]]) -> None:
        for event in events:
            consumer_id = self._consumers.get(event.request_id)
            if consumer_id is None:
                continue
            batches.setdefault(consumer_id, []).append(event)
            if isinstance(event, Finished | Failed):
                self._consumers.pop(event.request_id, None)

    def _send(self, batches: dict[str, list[Event]]) -> None:
        """Send, again for a while when Valkey cannot be reached; a repeat is harmless."""
        named = []
        for consumer_id, events in batches.items():
            self._entries += 1
            named.append((consumer_id, f"{self.worker_id}:{self._entries}", events))
        deadline = time.monotonic() + PUBLISH_PATIENCE
        while True:
            try:
                wire.publish(valkey.connection(), named)
                return
            except LOST as lost:
                if time.monotonic() > deadline:
                    log.warning("events dropped: Valkey cannot be reached", cause=str(lost))
                    return
                time.sleep(0.1)
