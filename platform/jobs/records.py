"""What becomes of a piece of work in hand: written once, in the transaction that ends its Hold."""

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import ClassVar, Generic, TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from completions.failures import Failure
from completions.generation import RecordLost
from completions.kept_failures import stored
from completions.payer import NotYet
from jobs.models import Work
from jobs.refusals import job_failed
from jobs.states import LIVE, WorkState, before

log = structlog.get_logger()

W = TypeVar("W", bound=Work)

PASSING = ("vllm_engine_dead", "upstream_unreachable")
"""Codes of failures of a running request that say nothing about it: a process died under it."""


class Stop(Enum):
    """Why the runner stops work that it has in hand."""

    CANCELLED = auto()
    """Its User wants it so; the row says it already."""
    PUT_BACK = auto()
    """It runs again later."""
    LOST = auto()
    """Another process has it by now, or its row is gone."""


class WorkRecord(Generic[W]):
    """One attempt at a piece of work: a `completions.generation.Record`.

    Whoever runs the work lets `done` be noted, or an exception reach `note`; the row is written
    with the end of the Hold, or by the runner where no Hold was taken. A subclass says in `columns`
    what else the row keeps.
    """

    runs_again: ClassVar[bool] = True
    """Whether work whose process or engine died goes back to the queue; else it fails (C-609)."""

    def __init__(self, work: W) -> None:
        self.work = work
        self.stop: Stop | None = None
        self.is_held = False
        """A Hold was taken, so that its end writes the row."""
        self.is_over = False
        """The row was written."""
        self._is_done = False
        self._failure: Failure | None = None
        self._was_lost = False

    @property
    def attempt(self) -> UUID:
        """The attempt, which every write of its own names."""
        assert self.work.attempt is not None
        return self.work.attempt

    def columns(self, state: WorkState) -> Mapping[str, object]:
        """Return what the row keeps beside its state, once it has come to `state`.

        Called in the transaction that writes the row, so it may write other rows as well. For
        `queued` it takes back what this attempt wrote (C-607).
        """
        return {}

    def done(self) -> None:
        """Note that the work succeeded; a stop that comes too late does not undo it."""
        self._is_done = self._failure is None and self.stop is not Stop.LOST

    def note(self, error: BaseException) -> None:
        """Note why the work ended without success; what was noted first counts."""
        if self._is_done or self.stop or self._failure:
            return
        if isinstance(error, RecordLost):
            self.stop = Stop.LOST
        elif isinstance(error, asyncio.CancelledError | NotYet) or (
            isinstance(error, DatabaseError) and (self.runs_again or not self.is_held)
        ):
            self.stop = Stop.PUT_BACK
        elif isinstance(error, Failure):
            if self.is_held and error.code in PASSING and self.may_run_again:
                self._was_lost, self.stop = True, Stop.PUT_BACK
            else:
                self._failure = error
        else:
            log.exception("background work failed", work=str(self.work.id), exc_info=error)
            self._failure = job_failed()

    @property
    def may_run_again(self) -> bool:
        """Whether the work goes back to the queue when a process dies under it."""
        return self.runs_again and self.work.losses < settings.BASALT.max_losses

    @property
    def is_put_back(self) -> bool:
        """Whether this attempt must pay nothing, because the work runs again (C-346)."""
        return not self._is_done and self.stop in (Stop.PUT_BACK, Stop.LOST)

    def held(self) -> None:
        """Let the row run, in the transaction that takes its Hold."""
        changes = {"state": WorkState.RUNNING, "started_at": Coalesce("started_at", Now())}
        if not self._write(WorkState.RUNNING, changes, before(WorkState.RUNNING)):
            raise RecordLost(f"{self.work.id} is not this attempt's any more")
        transaction.on_commit(self._note_held)

    def paid(self) -> None:
        """Write the row, in the transaction that settles its Hold."""
        if not self.end():
            raise RecordLost(f"{self.work.id} is not this attempt's any more")

    def released(self) -> None:
        """Write the row, in the transaction that releases its Hold."""
        self.end()

    def end(self) -> bool:
        """Write the row as it was noted; False when it is not this attempt's any more."""
        with transaction.atomic():
            # Work that was cancelled before it could hold its tokens is lost too, and still ours.
            ended = (self.stop is not Stop.LOST and self._end()) or self._end_cancelled()
        if not ended:
            self.stop = Stop.LOST
        transaction.on_commit(self._note_over)
        return ended

    def lose(self) -> None:
        """Write the row of work whose process died: put back, or failed.

        What was only prepared had not begun, so it waits again, whatever its kind.
        """
        is_new = self.work.state == WorkState.QUEUED
        if (self.runs_again or is_new) and self.work.losses < settings.BASALT.max_losses:
            self._was_lost, self.stop = True, Stop.PUT_BACK
        else:
            self._failure = job_failed()
        self.end()

    def _end(self) -> bool:
        if self._is_done:
            return self._finish(WorkState.DONE, {})
        if self.stop is Stop.PUT_BACK:
            changes: dict[str, object] = {"state": WorkState.QUEUED, "owner": None}
            if self._was_lost:
                changes["losses"] = F("losses") + 1
            return self._write(WorkState.QUEUED, changes, LIVE)
        failure = self._failure or job_failed()
        return self._finish(WorkState.FAILED, {"error": stored(failure)})

    def _finish(self, state: WorkState, more: dict[str, object]) -> bool:
        changes = {"state": state, "owner": None, "finished_at": Now(), **more}
        return self._write(state, changes, before(state))

    def _end_cancelled(self) -> bool:
        """Write the last words of cancelled work."""
        return self._write(WorkState.CANCELLED, {"owner": None}, [WorkState.CANCELLED])

    def _write(
        self, state: WorkState, changes: Mapping[str, object], states: Sequence[WorkState]
    ) -> bool:
        """Write to the row, now in one of `states`, if it is still this attempt's."""
        rows = type(self.work)._default_manager.filter(
            id=self.work.id, attempt=self.attempt, owner__isnull=False, state__in=states
        )
        if rows.select_for_update().values_list("id", flat=True).first() is None:
            return False
        more = {} if state is WorkState.RUNNING else self.columns(state)
        return rows.update(**changes, **more) > 0

    def _note_held(self) -> None:
        self.is_held = True

    def _note_over(self) -> None:
        self.is_over = True
