"""Starts a model's workers when work waits for them, and stops them when they were idle.

A model has an engine worker and, where it is harvested, a harvest worker; each has a seat.

A floor, which warm windows make, starts a worker without a request and keeps it while it is idle.

On a bare machine this is part of `manage.py up`. On servers it is `manage.py launcher`, whose
command may start the worker anywhere, as long as it runs for as long as the worker does and ends
it on SIGTERM.
"""

import asyncio
import contextlib
import shlex
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import redis

from inference.catalogue import ModelEntry
from inference.fleet import HARVESTS, Fleet, WorkerReport, harvest_worker, queue_of
from operations.processes import Command
from operations.supervisor import FIRST_DELAY, LONGEST_DELAY, Child, Supervisor, in_words

POLL_SECONDS = 0.25
EARLY_SECONDS = 10.0
"""A worker that ends by itself before this age is started again only after a delay."""
SILENT_SECONDS = 30.0
"""A worker that reported and then is silent for so long is killed: it hangs."""
END_GRACE_SECONDS = 5.0
"""What a worker gets to end beyond the time for its running requests."""


@dataclass(frozen=True)
class Sight:
    """What Valkey says of one model at one moment."""

    demand: bool
    workers: tuple[WorkerReport, ...]
    floor: bool = False
    """Whether a worker is to be kept without requests."""


class Move(Enum):
    """What to do about a model's worker now."""

    NOTHING = auto()
    START = auto()
    STOP = auto()
    """It was idle for the model's idle time."""
    KILL = auto()
    """It hangs."""


@dataclass
class Seat:
    """What the launcher remembers of one model's worker; times are of the monotonic clock.

    Idle times are measured here, from when a report first showed the worker idle, because the
    clocks of two hosts may differ.
    """

    idle_seconds: float
    running: bool = False
    stopping: bool = False
    may_start: float = 0.0
    delay: float = FIRST_DELAY
    idle_marks: tuple[float | None, ...] = ()
    idle_from: float = 0.0
    heard: float | None = None

    def decide(self, sight: Sight, now: float) -> Move:
        """The next move, from what is seen at `now`."""
        self._note(sight, now)
        if not self.running:
            wanted = (sight.demand or sight.floor) and not sight.workers
            return Move.START if wanted and now >= self.may_start else Move.NOTHING
        if self.stopping:
            return Move.NOTHING
        if self.heard is not None and now - self.heard >= SILENT_SECONDS:
            return Move.KILL
        idle = bool(self.idle_marks) and None not in self.idle_marks
        kept = sight.demand or sight.floor
        if idle and not kept and now - self.idle_from >= self.idle_seconds:
            return Move.STOP
        return Move.NOTHING

    def _note(self, sight: Sight, now: float) -> None:
        marks = tuple(worker.idle_since for worker in sight.workers)
        if marks != self.idle_marks:
            self.idle_marks, self.idle_from = marks, now
        if sight.workers:
            self.heard = now

    def started(self) -> None:
        """Note that a worker was started."""
        self.running, self.stopping, self.heard = True, False, None

    def ended(self, lived: float, now: float) -> float:
        """Note that the worker ended; returns the seconds to wait before the next start."""
        early = lived < EARLY_SECONDS and not self.stopping
        wait = self.delay if early else 0.0
        self.delay = min(2 * self.delay, LONGEST_DELAY) if early else FIRST_DELAY
        self.running, self.stopping, self.may_start = False, False, now + wait
        return wait


@dataclass
class _Model:
    id: str
    seat: Seat
    child: Child | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Launcher:
    """Looks at demand and workers four times a second, and moves."""

    def __init__(
        self,
        supervisor: Supervisor,
        fleet: Fleet,
        models: Sequence[ModelEntry],
        command: Callable[[str], Command],
        drain_seconds: float,
        harvest_idle_seconds: float | None = None,
    ) -> None:
        """Prepare the seats; without `harvest_idle_seconds` there are none for harvests.

        `command` takes the name under which a worker reports, see `fleet.queue_of`.
        """
        self._supervisor = supervisor
        self._fleet = fleet
        self._command = command
        self._end_seconds = drain_seconds + END_GRACE_SECONDS
        self._models = [
            _Model(model.id, Seat(model.idle_seconds))
            for model in models
            if model.backend.kind == "worker"
        ]
        if harvest_idle_seconds is not None:
            self._models += [
                _Model(harvest_worker(model.id), Seat(harvest_idle_seconds))
                for model in models
                if model.backend.kind == "worker" and model.harvest.enabled
            ]
        self._blind = False

    async def run(self) -> bool:
        """Look and move until cancelled; workers that run then go on running."""
        while True:
            sights = await asyncio.to_thread(self._look)
            if sights is not None:
                for model, sight in zip(self._models, sights, strict=True):
                    self._move(model, model.seat.decide(sight, time.monotonic()))
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """End every worker that was started here."""
        await asyncio.gather(
            *(self._end(model) for model in self._models if model.child is not None)
        )

    def _look(self) -> list[Sight] | None:
        try:
            sights = [
                Sight(
                    self._fleet.demand(model.id) is not None,
                    tuple(self._fleet.workers(model.id)),
                    self._fleet.floor(model.id) is not None,
                )
                for model in self._models
            ]
        except redis.RedisError as failure:
            if not self._blind:
                self._supervisor.console.line(f"launcher: Valkey does not answer ({failure})")
            self._blind = True
            return None
        self._blind = False
        return sights

    def _move(self, model: _Model, move: Move) -> None:
        if move is Move.START:
            self._start(model)
        elif move is Move.STOP:
            self._supervisor.console.line(
                f"stopping {model.id}, which was idle for {model.seat.idle_seconds:g} s"
            )
            model.seat.stopping = True
            self._spawn(model, self._end(model))
        elif move is Move.KILL and model.child is not None:
            self._supervisor.console.line(f"killing {model.id}, which does not report any more")
            model.child.kill()

    def _start(self, model: _Model) -> None:
        try:
            model.child = self._supervisor.start(self._command(model.id))
        except OSError as failure:
            wait = model.seat.ended(0.0, time.monotonic())
            self._supervisor.console.line(
                f"{model.id} cannot be started: {failure}; next try in {wait:g} s"
            )
            return
        model.seat.started()
        self._supervisor.console.line(f"starting {model.id}, which is wanted")
        self._spawn(model, self._watch(model, model.child))

    async def _watch(self, model: _Model, child: Child) -> None:
        await child.exited.wait()
        stopped = model.seat.stopping
        model.child = None
        await asyncio.to_thread(self._retire, model.id, child.process.pid)
        wait = model.seat.ended(child.lived, time.monotonic())
        if not stopped:
            self._supervisor.console.line(
                f"{model.id} ended ({in_words(child.code)}) saying: {child.last_line}"
                + (f"; no new start for {wait:g} s" if wait else "")
            )

    def _retire(self, model_id: str, pid: int) -> None:
        """Take a dead worker's report away, which would stand for some seconds more."""
        with contextlib.suppress(redis.RedisError):
            for report in self._fleet.workers(model_id):
                if report.pid == pid and report.host == socket.gethostname():
                    self._fleet.retire(report)

    async def _end(self, model: _Model) -> None:
        if model.child is not None:
            model.seat.stopping = True
            await self._supervisor.end(model.child, self._end_seconds)

    def _spawn(self, model: _Model, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        model.tasks.add(task)
        task.add_done_callback(model.tasks.discard)


def templated(template: str, name: str) -> tuple[str, ...]:
    """The arguments of a command template, with `{model}` and `{queue}` replaced for a worker."""
    model_id = name.removeprefix(HARVESTS)
    return tuple(
        part.replace("{model}", model_id).replace("{queue}", queue_of(name))
        for part in shlex.split(template)
    )
