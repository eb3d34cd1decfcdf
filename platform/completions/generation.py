"""A Completion that holds its tokens and runs: its events, and the end of its Hold.

Whatever happens between entering and leaving the context, the Hold ends in exactly one settle or
release, by the table of section 12.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

import structlog
from django.db import DatabaseError, transaction

from billing import ledger
from billing.models import Counted, UsageStatus
from completions.breaker import breakers, counts_as_failure
from completions.caps import Output
from completions.database import in_database
from completions.failures import ClientLeft, Failure, of_engine
from completions.request import CompletionRequest
from inference.backends.router import Inference
from inference.catalogue import ModelEntry
from inference.client import Patience
from inference.engine.messages import Accepted, Delta, EngineRequest, Failed, Finished

log = structlog.get_logger()

LATE_SETTLE_SECONDS = 1.0
"""How long a settle that found the database busy waits before it tries again (C-354)."""

_late: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Usage:
    """Tokens of the whole request (C-200)."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """The sum."""
        return self.prompt_tokens + self.completion_tokens


class RecordLost(Exception):
    """What was kept of a request is another run's by now, so this one must not be paid."""


class Record(Protocol):
    """What is kept of a request beside its Hold: it begins and ends in the Hold's transactions."""

    def held(self) -> None:
        """The Hold was taken.

        Raises:
            RecordLost: undoes the Hold, and the request does not run.
        """

    def paid(self) -> None:
        """The Hold was settled.

        Raises:
            RecordLost: undoes the settle; the Hold is released then.
        """

    def released(self) -> None:
        """The Hold was released."""


@dataclass(frozen=True)
class _End:
    """How a Hold ends; None for `usage` releases it."""

    usage: Usage | None
    status: UsageStatus = UsageStatus.COMPLETED
    counted: Counted = Counted.REPORTED


class Generation:
    """One admitted Completion, from its Hold to the end of it."""

    def __init__(
        self,
        *,
        hold_id: UUID,
        owner: UUID,
        request: CompletionRequest,
        model: ModelEntry,
        output: Output,
        prompt_tokens: int,
        engine_request: EngineRequest,
        client: Inference,
        patience: Patience,
        breaker_period: int,
        record: Record | None = None,
    ) -> None:
        self.request = request
        self.model = model
        self.output = output
        self.engine_request = engine_request
        self.finished: Finished | None = None
        self.client_left = False
        """Set by the surface when the client is gone, so that a stop of our own reads apart."""
        self.runs_again = False
        """Set by background work that runs again later, so that this run pays nothing (C-346)."""
        self.paid = False
        """Whether its Hold ended in a settle; known once its context has been left."""
        self._hold_id = hold_id
        self._owner = owner
        self._prompt_tokens = prompt_tokens
        self._client = client
        self._patience = patience
        self._breaker_period = breaker_period
        self._record = record
        self._reached = False
        self._sent = 0
        self._sent_any = False
        self._fitting = True

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, as the Hold counts them."""
        return self._prompt_tokens

    def sent(self, tokens: int) -> None:
        """Note that so many more generated tokens went out to the client (C-337, U-63)."""
        self._sent += tokens
        self._sent_any = self._sent_any or tokens > 0

    def does_not_fit(self) -> None:
        """Note that the engine's answer does not fit the request, so it costs nothing (C-347)."""
        self._fitting = False

    async def events(self) -> AsyncGenerator[Delta | Finished, None]:
        """Run the request and yield what the choices gain, then the end.

        Raises:
            Failure: when Inference refuses or fails.
        """
        run = self._client.complete(self.model, self.engine_request, self._patience)
        async with run as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise of_engine(event)
                if isinstance(event, Accepted):
                    self._reached = True
                    continue
                if isinstance(event, Finished):
                    self.finished = event
                yield event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = self._ending(error)
        self.paid = end.usage is not None
        ending = asyncio.gather(self._end(end), self._judge(error))
        await asyncio.shield(ending)

    async def _judge(self, error: BaseException | None) -> None:
        """Tell the model's breaker how Inference did, where this ending says so (U-34)."""
        if counts_as_failure(error):
            await breakers().note_failure(self.model.id, self._breaker_period)
        elif self.finished:
            await breakers().note_success(self.model.id, self._breaker_period)

    def _ending(self, error: BaseException | None) -> _End:
        """Choose the row of the table of section 12."""
        if self.runs_again:
            return _End(None)
        if isinstance(error, Exception) and not isinstance(error, Failure | ClientLeft):
            return _End(None)  # A fault of the API itself costs nothing (C-345).
        if self.finished and self._fitting:
            return _End(Usage(self.finished.prompt_tokens, self.finished.completion_tokens))
        stopped = not isinstance(error, Failure)
        if self.request.stream and self._sent_any:
            status = UsageStatus.STOPPED if stopped else UsageStatus.FAILED
            return _End(Usage(self._prompt_tokens, self._sent), status, Counted.PARTIAL)
        if stopped and not self.request.stream and self._reached and self.client_left:
            return _End(self._held(), UsageStatus.STOPPED, Counted.HELD)
        return _End(None)

    def _held(self) -> Usage:
        completion = self.request.choices * max(self.output.max_tokens, 1)
        return Usage(self._prompt_tokens, completion)

    async def _end(self, end: _End) -> None:
        try:
            await in_database(self._write, end)
        except DatabaseError as busy:
            log.warning("a Hold ends later", hold=str(self._hold_id), cause=str(busy))
            task = asyncio.create_task(self._end_later(end))
            _late.add(task)
            task.add_done_callback(_late.discard)

    async def _end_later(self, end: _End) -> None:
        """Try until the database answers; the owner's lease bounds how long that can matter."""
        while True:
            await asyncio.sleep(LATE_SETTLE_SECONDS)
            with contextlib.suppress(DatabaseError):
                await in_database(self._write, end)
                return

    def _write(self, end: _End) -> None:
        if end.usage is None:
            release(hold_id=self._hold_id, owner=self._owner, record=self._record)
            return
        try:
            self._settle(end.usage, end)
        except RecordLost as lost:
            log.warning("a late answer is not paid", hold=str(self._hold_id), cause=str(lost))
            ledger.release(hold_id=self._hold_id, owner=self._owner)

    def _settle(self, usage: Usage, end: _End) -> None:
        with transaction.atomic():
            ended = ledger.settle(
                hold_id=self._hold_id,
                owner=self._owner,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                status=end.status,
                counted=end.counted,
            )
            if ended and self._record is not None:
                self._record.paid()


def release(*, hold_id: UUID, owner: UUID, record: Record | None) -> None:
    """Release a Hold together with what is kept of its request, in one transaction."""
    with transaction.atomic():
        ended = ledger.release(hold_id=hold_id, owner=owner)
        if ended and record is not None:
            record.released()


def late_ends() -> int:
    """Return how many Holds still wait for the database to end them."""
    return len(_late)
