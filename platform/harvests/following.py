"""Following a harvest: the Hold, the run by its id, and the one charge at its end.

This is background work of the runner. A runner that stops or dies puts the harvest back to pending
and releases its Hold, while the run goes on; whoever takes the harvest up next holds its tokens
anew and follows the same run (C-515, C-610, C-675).
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import ClassVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from billing import ledger
from billing.allowance import BudgetExceeded
from billing.models import Counted, Source, UsageStatus
from completions.database import in_database, or_undone, to_its_end
from completions.failures import Failure, budget_exceeded
from completions.generation import RecordLost
from completions.owner import owning
from completions.payer import NotYet, check_background
from harvests import files, runs
from harvests.models import Harvest, HarvestInput, HarvestRun, Stage
from harvests.refusals import not_started, result_lost, timed_out
from harvests.submission import KIND
from inference import catalogue, valkey
from inference.backends.router import Inference
from inference.client import LOST
from inference.fleet import Fleet, harvest_worker
from jobs.kinds import Kind
from jobs.models import Work
from jobs.outages import Outage
from jobs.records import Stop, WorkRecord
from jobs.states import LIVE, WorkState

log = structlog.get_logger()


class HarvestRecord(WorkRecord[Harvest]):
    """One attempt at following a harvest."""

    def __init__(self, work: Harvest) -> None:
        super().__init__(work)
        self.charge = 0
        """Tokens that the end pays."""

    def columns(self, state: WorkState) -> Mapping[str, object]:
        """Keep the charge with the end, and let go of what is not needed any more."""
        if state is WorkState.QUEUED:
            return {}
        HarvestInput.objects.filter(harvest_id=self.work.id).delete()
        if state is not WorkState.DONE:
            run = HarvestRun.objects.filter(harvest_id=self.work.id, stage=Stage.DONE).first()
            if run is not None:
                transaction.on_commit(partial(files.discard, run.folder))
        return {"tokens": self.charge}


@dataclass(frozen=True)
class Held:
    """The Hold of an attempt."""

    hold_id: UUID
    owner: UUID


class HarvestKind(Kind[HarvestRecord]):
    """Harvests: oldest first, so many at once as there are workers for their model (C-514)."""

    name: ClassVar[str] = KIND
    model = Harvest

    @property
    def most(self) -> int | None:
        """No bound over all models."""
        return None

    @property
    def most_here(self) -> int:
        """As for all work."""
        return settings.BASALT.max_work_in_runner

    def full(self) -> Collection[str]:
        """Return the models whose harvest workers are busy."""
        return runs.full_models()

    def check_payer(self, work: Work) -> None:
        """Refuse with a harvest's own code."""
        check_payer(work)

    def record(self, work: Harvest) -> HarvestRecord:
        """Return the record of an attempt."""
        return HarvestRecord(work)

    async def run(self, record: HarvestRecord, client: Inference) -> None:
        """Hold the tokens, follow the run to its end, and charge for it once."""
        held = await or_undone(in_database(begin, record), partial(_undo, record))
        run: HarvestRun | None = None
        try:
            run = await _follow(record.work)
        except BaseException as error:
            record.note(_named(error))
            raise
        finally:
            await to_its_end(_close(record, held, run))


def check_payer(harvest: Work) -> None:
    """Refuse a harvest of a revoked key or a suspended User.

    Raises:
        Failure: code `unauthenticated` (C-512, C-613).
        NotYet: the key is paused.
    """
    try:
        check_background(harvest)
    except Failure as refused:
        raise replace(refused, code="unauthenticated") from None


def begin(record: HarvestRecord) -> Held:
    """Take the Hold of a harvest and ask for its run, in one transaction.

    Raises:
        Failure: the key was revoked, the User suspended, or the tokens fall short (C-512).
        NotYet: the key is paused, or the model's harvest workers are busy.
    """
    harvest = record.work
    check_payer(harvest)
    try:
        return owning(partial(_hold, record))
    except BudgetExceeded as short:
        poor = budget_exceeded(short, harvest.reserved_tokens)
        raise replace(poor, code="insufficient_quota") from None


def _hold(record: HarvestRecord, owner: UUID) -> Held:
    harvest = record.work
    with transaction.atomic():
        hold = ledger.take_hold(
            user_id=harvest.user_id,
            key_id=harvest.key_id,
            tokens=harvest.reserved_tokens,
            request_id=f"req_harvest_{harvest.id.hex}",
            model=harvest.model,
            source=Source.HARVEST,
            owner=owner,
        )
        record.held()
        if not runs.ask(harvest):
            raise NotYet(f"{harvest.model} runs another harvest", model=harvest.model)
    return Held(hold.id, owner)


async def _undo(record: HarvestRecord, held: Held) -> None:
    """End a Hold that was taken as the runner let go of the harvest."""
    await _close(record, held, None)


async def _follow(harvest: Harvest) -> HarvestRun:
    """Wait for the end of the run, and return it when it is done.

    Raises:
        Failure: it failed, timed out, was never started, or its workers died (C-512, C-513).
    """
    begun = time.monotonic()
    patience = settings.BASALT.background_answer_timeout
    rung = False
    while True:
        sight = await in_database(runs.look, harvest.id)
        if sight is None:
            raise result_lost()
        if sight.run.stage == Stage.DONE:
            return sight.run
        if sight.failure is not None:
            raise sight.failure
        minutes = _minutes(harvest.model)
        if sight.age > timedelta(minutes=minutes):
            raise timed_out(minutes)
        if sight.run.stage == Stage.ASKED:
            if time.monotonic() - begun > patience:
                raise not_started(patience)
            await asyncio.to_thread(_ask_for_a_worker, harvest.model, not rung)
            rung = True
        elif sight.is_silent:
            if sight.run.attempts >= settings.BASALT.harvest_attempts:
                raise result_lost()
            if await in_database(runs.lose, sight.run):
                log.warning("a harvest worker was lost", harvest=str(harvest.id))
                rung, begun = False, time.monotonic()
        await asyncio.sleep(settings.BASALT.work_watch_seconds)


def _minutes(model_id: str) -> int:
    """Return the model's limit, also of one that the catalogue has no more."""
    entry = catalogue.current().entry(model_id)
    return entry.harvest.minutes if entry is not None else 60


def _ask_for_a_worker(model_id: str, rings: bool) -> None:
    with contextlib.suppress(*LOST):
        Fleet(valkey.connection()).ask(harvest_worker(model_id))
    if rings:
        runs.ring(model_id)


def _named(error: BaseException) -> BaseException:
    """Let Valkey's absence not end a harvest: only rows decide."""
    return asyncio.CancelledError() if isinstance(error, LOST) else error


async def _close(record: HarvestRecord, held: Held, run: HarvestRun | None) -> None:
    """End the Hold with the row, however long the database is away."""
    name = str(record.work.id)
    outage = Outage("a harvest ends later", "a harvest ends after all", harvest=name)
    while True:
        try:
            await in_database(end, record, held, run)
        except DatabaseError as away:
            outage.failed(away)
            await asyncio.sleep(outage.pause)
        else:
            outage.over()
            return


class _Cancelled(Exception):
    """The harvest was cancelled as its run ended: that is what its User was told."""


def end(record: HarvestRecord, held: Held, run: HarvestRun | None) -> None:
    """Settle or release the Hold by the contract's table, and write the row with it.

    A harvest that is done pays what was read, at most its Hold; one that was cancelled after its
    run had started pays the whole Hold; any other pays nothing (C-351 to C-353, C-511).
    """
    if run is not None and run.tokens is not None:
        with contextlib.suppress(_Cancelled, RecordLost):
            _settle_done(record, held, run.tokens)
            return
    owes = _was_cancelled(record) and _has_started(record)
    if owes and _settle(record, held, record.work.reserved_tokens, Counted.HELD):
        return
    with transaction.atomic():
        record.charge = 0
        if ledger.release(hold_id=held.hold_id, owner=held.owner):
            record.released()
        else:
            record.stop = Stop.LOST


def _settle_done(record: HarvestRecord, held: Held, tokens: int) -> None:
    with transaction.atomic():
        ended = _pay(record, held, tokens, UsageStatus.COMPLETED, Counted.REPORTED)
        rows = Harvest.objects.filter(id=record.work.id, attempt=record.work.attempt)
        state = rows.select_for_update().values_list("state", flat=True).first()
        if state == WorkState.CANCELLED:
            raise _Cancelled
        if not ended or state not in LIVE:
            record.stop = Stop.LOST
            raise RecordLost(f"{record.work.id} is not this attempt's any more")
        record.done()
        record.paid()


def _settle(record: HarvestRecord, held: Held, tokens: int, counted: Counted) -> bool:
    try:
        with transaction.atomic():
            if not _pay(record, held, tokens, UsageStatus.STOPPED, counted):
                record.stop = Stop.LOST
                return True
            record.paid()
            return True
    except RecordLost:
        return False


def _pay(
    record: HarvestRecord, held: Held, tokens: int, status: UsageStatus, counted: Counted
) -> bool:
    record.charge = min(tokens, record.work.reserved_tokens)
    return ledger.settle(
        hold_id=held.hold_id,
        owner=held.owner,
        prompt_tokens=tokens,
        completion_tokens=0,
        status=status,
        counted=counted,
    )


def _was_cancelled(record: HarvestRecord) -> bool:
    return Harvest.objects.filter(
        id=record.work.id, attempt=record.work.attempt, state=WorkState.CANCELLED
    ).exists()


def _has_started(record: HarvestRecord) -> bool:
    return HarvestRun.objects.filter(harvest_id=record.work.id, started_at__isnull=False).exists()
