"""The runner: takes background work in hand and runs it, in an event loop of its own.

It looks for work when somebody rings, when work ends, and every `WORK_POLL_SECONDS`; after a
failure of the database with growing pauses, unless somebody rings. While it has work in hand it
looks at the rows, so that a cancel stops the work, and work that another process has by now is
dropped. Any number of runners may run.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError

from completions.database import in_database
from completions.endings import note_unpaid
from completions.failures import Failure
from completions.owner import owning
from completions.payer import NotYet
from inference.backends.router import Inference
from jobs import queue
from jobs.kinds import Kind
from jobs.models import Work
from jobs.outages import Outage
from jobs.records import Stop, WorkRecord
from jobs.states import WorkState

log = structlog.get_logger()

FULL_SECONDS = 0.5
"""How long work of a model without a free place is passed over."""
RETRY_SECONDS = 1.0
"""How long a runner waits after a server failed it."""
BARRED_AT_ONCE = 100
"""Pieces of work of a kind that one look ends because their payer was revoked or suspended."""
PUT_BACK_SECONDS = 3.0
"""How long a stopping runner tries to put its work back."""


@dataclass(eq=False)
class InHand:
    """One piece of work that this runner has in hand."""

    record: WorkRecord[Any]
    task: asyncio.Task[None]

    def stop(self, why: Stop) -> None:
        """Cancel the work, unless it was stopped before; what is lost is lost whatever it was."""
        if self.record.stop is None or (why is Stop.LOST and self.record.stop is not Stop.LOST):
            self.record.stop = why
            self.task.cancel()


@dataclass(eq=False)
class Desk:
    """What a runner has in hand of one kind."""

    kind: Kind[Any]
    in_hand: dict[InHand, None] = field(default_factory=dict)
    full_until: dict[str, float] = field(default_factory=dict)
    """Models without a free place, with the moment until which they count as full."""
    rest_until: float = 0.0
    outage: Outage = field(init=False)

    def __post_init__(self) -> None:
        self.outage = Outage("no look for work", "looks for work again", kind=self.kind.name)

    @property
    def room(self) -> int:
        """How much more may be taken now."""
        if time.monotonic() < self.rest_until:
            return 0
        return self.kind.most_here - len(self.in_hand)

    def full(self) -> list[str]:
        """Return the models that count as full now."""
        now = time.monotonic()
        self.full_until = {name: until for name, until in self.full_until.items() if until > now}
        return list(self.full_until)


class Runner:
    """Runs work of some kinds; it lives in the event loop that runs it."""

    def __init__(self, kinds: tuple[Kind[Any], ...]) -> None:
        self.looked_at = time.time()
        """Unix seconds of the last look for work."""
        self._desks = {kind.name: Desk(kind) for kind in kinds}
        self._client = Inference()
        self._wake = asyncio.Event()
        self._stopping = False
        self._over = False
        self._taking = asyncio.Lock()

    @property
    def running(self) -> int:
        """How many pieces of work are in hand."""
        return sum(len(desk.in_hand) for desk in self._desks.values())

    def ring(self) -> None:
        """Look for work soon."""
        self._wake.set()

    async def run(self) -> None:
        """Take and run work until `stop`."""
        await self._client.start()
        watching = asyncio.create_task(self._watch())
        try:
            # While it stops, the work in hand still ends in this loop.
            while not self._over:
                is_rung = self._wake.is_set()
                self._wake.clear()
                await self._look(is_rung=is_rung)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(settings.BASALT.work_poll_seconds):
                        await self._wake.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._client.close()

    async def stop(self, drain_s: float) -> None:
        """Take nothing more, give what runs some time to end, and put the rest back (C-605)."""
        async with self._taking:
            self._stopping = True
        tasks = [each.task for desk in self._desks.values() for each in desk.in_hand]
        if tasks:
            await asyncio.wait(tasks, timeout=drain_s)
        for desk in self._desks.values():
            for each in list(desk.in_hand):
                each.stop(Stop.PUT_BACK)
        if tasks:
            # A database that is away must not keep the process: the lease runs out then.
            await asyncio.wait(tasks, timeout=PUT_BACK_SECONDS)
        self._over = True
        self.ring()

    async def _look(self, *, is_rung: bool) -> None:
        """Put back what dead processes had, and take what there is room for.

        Who rings has just reached the database, so a kind that rests after a failure tries again.
        """
        for desk in self._desks.values():
            if desk.outage.pause and not is_rung:
                continue
            try:
                await in_database(self._tidy, desk.kind)
                async with self._taking:
                    if not self._stopping:
                        await self._take(desk)
            except DatabaseError as away:
                desk.outage.failed(away)
            else:
                desk.outage.over()
        self.looked_at = time.time()

    @classmethod
    def _tidy(cls, kind: Kind[Any]) -> None:
        """End what nobody will run: it takes no room."""
        cls._rescue(kind)
        cls._bar(kind)

    @staticmethod
    def _rescue(kind: Kind[Any]) -> None:
        """End the attempts of processes that are gone."""
        for work in queue.lost(kind.model):
            log.warning("work was lost by its process", kind=kind.name, work=str(work.id))
            kind.record(work).lose()

    @staticmethod
    def _bar(kind: Kind[Any]) -> None:
        """End what waits of payers who may not start anything any more."""

        def claim(owner: UUID) -> list[Work]:
            return queue.claim_barred(kind.model, owner=owner, most=BARRED_AT_ONCE)

        for work in owning(claim):
            record = kind.record(work)
            try:
                kind.check_payer(work)
                record.stop = Stop.PUT_BACK
            except (Failure, NotYet) as refused:
                record.note(refused)
                if kind.source is not None and isinstance(refused, Failure):
                    note_unpaid(kind.source, work.model, refused)
            record.end()
            log.info("work was barred", kind=kind.name, work=str(work.id))

    async def _take(self, desk: Desk) -> None:
        kind = desk.kind
        if desk.room < 1:
            return

        def claim(owner: UUID) -> list[Work]:
            return queue.claim(
                kind.model,
                owner=owner,
                room=desk.room,
                most=kind.most,
                by_turns=kind.by_turns,
                full=[*desk.full(), *kind.full()],
            )

        for work in await in_database(owning, claim):
            self._begin(desk, work)

    def _begin(self, desk: Desk, work: Work) -> None:
        record = desk.kind.record(work)
        task = asyncio.create_task(self._attempt(desk, record), name=f"{desk.kind.name} {work.id}")
        each = InHand(record, task)
        desk.in_hand[each] = None
        log.info("work taken", kind=desk.kind.name, work=str(work.id))

        def leave(_: asyncio.Task[None]) -> None:
            del desk.in_hand[each]
            self.ring()

        task.add_done_callback(leave)

    async def _attempt(self, desk: Desk, record: WorkRecord[Any]) -> None:
        """Run one piece of work, and see that its row is written, whatever happens."""
        try:
            await desk.kind.run(record, self._client)
        except NotYet as wait:
            record.note(wait)
            if wait.model is not None:
                desk.full_until[wait.model] = time.monotonic() + FULL_SECONDS
            else:
                desk.rest_until = time.monotonic() + RETRY_SECONDS
        except BaseException as error:  # noqa: BLE001 - it becomes the end of the row
            record.note(error)
            if isinstance(error, DatabaseError):
                desk.rest_until = time.monotonic() + RETRY_SECONDS
        else:
            record.done()
        await _to_its_end(self._end(desk.kind, record))

    @staticmethod
    async def _end(kind: Kind[Any], record: WorkRecord[Any]) -> None:
        """Wait until the row is written: with its Hold, or here when there was none."""
        while not record.is_over and not (record.is_held and record.stop is Stop.LOST):
            if not record.is_held:
                with contextlib.suppress(DatabaseError):
                    await in_database(record.end)
                    break
            await asyncio.sleep(RETRY_SECONDS / 4)
        log.info("work ended", kind=kind.name, work=str(record.work.id), stop=record.stop)

    async def _watch(self) -> None:
        """See which work in hand was cancelled, or is another process's by now."""
        while True:
            await asyncio.sleep(settings.BASALT.work_watch_seconds)
            for desk in self._desks.values():
                with contextlib.suppress(DatabaseError):
                    await self._look_at(desk)

    @staticmethod
    async def _look_at(desk: Desk) -> None:
        in_hand = list(desk.in_hand)
        if not in_hand:
            return
        ids = [each.record.work.id for each in in_hand]
        standing = await in_database(queue.standing, desk.kind.model, ids)
        for each in in_hand:
            attempt, state = standing.get(each.record.work.id, (None, ""))
            if each.record.is_over:
                continue
            if attempt != each.record.work.attempt:
                each.stop(Stop.LOST)
            elif state == WorkState.CANCELLED:
                each.stop(Stop.CANCELLED)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that goes on when this task is cancelled once more."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


class RunnerThread:
    """A runner in a thread of its own, for a process whose main thread does something else."""

    def __init__(
        self, kinds: tuple[Kind[Any], ...], on_broken: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare the thread; `on_broken` is called when the runner ends without being stopped."""
        self._kinds = kinds
        self._on_broken = on_broken
        self._stopped = False
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="runner", daemon=True)
        self.runner: Runner
        self.broke = False
        """Whether it ended by a fault of its own."""

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()
        self._ready.wait()

    def ring(self) -> None:
        """Look for work soon; from any thread."""
        self._loop.call_soon_threadsafe(self.runner.ring)

    def stop(self, drain_s: float) -> None:
        """Stop as `Runner.stop` does, and wait for it."""
        self._stopped = True
        if not self._thread.is_alive():
            return
        stopping = asyncio.run_coroutine_threadsafe(self.runner.stop(drain_s), self._loop)
        stopping.result()
        self._thread.join()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.runner = Runner(self._kinds)
        self._ready.set()
        try:
            self._loop.run_until_complete(self.runner.run())
        except Exception:
            log.exception("the runner broke")
            self.broke = True
        finally:
            self._loop.close()
            if not self._stopped:
                self._on_broken()
