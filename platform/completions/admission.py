"""Admission: the one way from a checked request to a running Completion.

The steps stand in the contract's order (U-33); everything that can be refused is refused before
the Hold is taken. What differs between surfaces is a `Policy`. Background work passes twice: it is
checked when it is submitted, and admitted when it starts.
"""

import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.db import transaction

from billing import ledger, spend_stop
from billing.allowance import BudgetExceeded, tokens_left
from billing.models import Source
from completions import caps, reads
from completions.breaker import breakers
from completions.counting import CountedRequest, check_ids, count
from completions.database import in_database, or_undone
from completions.endings import note_unpaid
from completions.failures import (
    budget_exceeded,
    model_busy,
    model_not_found,
    spend_cap,
    unreachable,
)
from completions.generation import Generation, Record, release
from completions.owner import owning
from completions.payer import NotYet, Payer, check_background, check_live
from completions.places import ModelFull, OwnPlaces, places
from completions.request import CompletionRequest
from completions.results import result_bytes, results
from inference import catalogue
from inference.backends.router import Inference
from inference.catalogue import ModelEntry
from inference.client import LOST, Patience
from inference.engine.messages import EngineRequest, Stopping

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What differs between the surfaces that run Completions."""

    source: Source
    clamps: bool = False
    """Lower `max_tokens` to what the tokens left can hold (C-311)."""
    has_deadline: bool = False
    """Without a stream, the answer must come in time (C-298, U-09)."""
    stands_in_line: bool = False
    """Take one of the key's places, waiting in its line (C-374)."""
    in_background: bool = True
    """No client waits. The work was checked when it was submitted and claimed while no spend stop
    was on; it waits for a place of the model instead of being refused (C-616), and longer for
    Inference (C-222)."""

    @property
    def patience(self) -> Patience:
        """How long to wait for Inference (C-221, C-222, C-669)."""
        env = settings.BASALT
        start = env.background_answer_timeout if self.in_background else env.answer_timeout
        return Patience(start=start, gap=env.answer_timeout)


LIVE = Policy(
    source=Source.API, clamps=True, has_deadline=True, stands_in_line=True, in_background=False
)
"""`POST /v1/completions`."""


async def check(
    request: CompletionRequest, *, has_deadline: bool
) -> tuple[CountedRequest, caps.Output]:
    """Check everything about a request that does not depend on the moment, and count its tokens.

    Raises:
        Failure: the 400 of a field, a cap, the model or the context.
    """
    model = find_model(request.model)
    reads.check_one_choice(request)
    reads.check_layers(request, model)
    caps.check_choices(request)
    caps.check_output(request)
    counted = await count(request, model)
    caps.check_prompt_logprobs(request, model, counted.counts)
    asked = caps.asked_output(request, model, counted.counts).max_tokens
    reads.check_capture(request, model, counted.counts, asked)
    reads.check_reach(request, counted.counts, asked)
    output = caps.settle_output(request, model, counted.counts, has_deadline=has_deadline)
    check_ids(counted)
    return counted, output


async def check_submission(
    request: CompletionRequest, *, payer: Payer, policy: Policy
) -> CountedRequest:
    """Refuse a request that background work could not run now (C-361, C-412); nothing is held.

    Raises:
        Failure: as `check`, 429 `spend_cap`, or 429 `budget_exceeded` when all the tokens left
            could not hold it.
    """
    counted, output = await check(request, has_deadline=policy.has_deadline)
    tokens = caps.tokens_to_hold(request, counted.counts, output.max_tokens)
    await in_database(check_moment, payer, tokens)
    return counted


def check_moment(payer: Payer, tokens: int) -> None:
    """Refuse what the spend stop or the tokens left do not allow at this moment."""
    if spend_stop.is_on():
        raise spend_cap()
    left = tokens_left(user_id=payer.user_id, key_id=payer.key_id)
    try:
        left.bucket_for(tokens)
    except BudgetExceeded as short:
        raise budget_exceeded(short, tokens) from None


@contextlib.asynccontextmanager
async def admitted(
    request: CompletionRequest,
    *,
    payer: Payer,
    request_id: str,
    policy: Policy,
    client: Inference,
    written: contextlib.AsyncExitStack,
    spend_stopped: bool,
    record: Record | None = None,
) -> AsyncIterator[Generation]:
    """Admit a request and run it; its Hold has ended when the context is left.

    `spend_stopped` says that a spend stop was on when the request came; what runs in the
    background was claimed while none was. `written` is left by the caller once the answer has
    been written, and gives the room of a large result back. `record` is what is kept of the
    request; it begins and ends with the Hold.

    Raises:
        Failure: the contract's refusal; nothing is held then.
        NotYet: background work has to wait; nothing is held then.
    """
    generation: Generation | None = None
    try:
        async with _admitted(
            request,
            payer=payer,
            request_id=request_id,
            policy=policy,
            client=client,
            written=written,
            record=record,
            spend_stopped=spend_stopped,
        ) as generation:
            yield generation
    except NotYet:
        raise
    except BaseException as error:
        if generation is None or not (generation.paid or generation.runs_again):
            note_unpaid(policy.source, request.model, error)
        raise


@contextlib.asynccontextmanager
async def _admitted(
    request: CompletionRequest,
    *,
    payer: Payer,
    request_id: str,
    policy: Policy,
    client: Inference,
    written: contextlib.AsyncExitStack,
    record: Record | None,
    spend_stopped: bool,
) -> AsyncIterator[Generation]:
    counted, output = await check(request, has_deadline=policy.has_deadline)
    model = counted.model
    if spend_stopped:
        raise spend_cap()
    async with contextlib.AsyncExitStack() as held:
        work_id = uuid4().hex
        room = results().room(result_bytes(request, model, counted.counts, output.max_tokens))
        own = await held.enter_async_context(places().of_request(work_id))
        if policy.stands_in_line:
            await stand_in_line(own, payer=payer)
        await written.enter_async_context(room)
        period = await take_place(own, model=model, policy=policy)
        hold_id, owner, output = await take_hold(
            counted, output, payer=payer, request_id=request_id, policy=policy, record=record
        )
        generation = Generation(
            hold_id=hold_id,
            owner=owner,
            request=request,
            model=model,
            output=output,
            prompt_tokens=sum(counted.counts),
            engine_request=engine_request(counted, output, work_id, payer.user_id),
            client=client,
            patience=policy.patience,
            breaker_period=period,
            record=record,
        )
        yield await held.enter_async_context(generation)


async def stand_in_line(own: OwnPlaces, *, payer: Payer) -> None:
    """Wait in the key's line for one of its places.

    Raises:
        Failure: `queue_full`, or `upstream_unreachable` while Valkey is away.
    """
    try:
        await own.of_key(str(payer.key_id))
    except LOST as lost:
        log.warning("Valkey cannot be reached", cause=str(lost))
        raise unreachable() from None


async def take_place(own: OwnPlaces, *, model: ModelEntry, policy: Policy) -> int:
    """Pass the breaker and take one of the model's places.

    Returns the breaker's period.

    Raises:
        Failure: `circuit_open`, or `upstream_unreachable` while Valkey is away.
        NotYet: background work finds no place, or no Valkey (C-375, C-450).
    """
    try:
        return await own.of_model(model.id, partial(breakers().enter, model.id))
    except ModelFull:
        if policy.in_background:
            raise NotYet(f"{model.id} has no place free", model=model.id) from None
        raise model_busy(model.id, settings.BASALT.max_inflight_per_model) from None
    except LOST as lost:
        if policy.in_background:
            raise NotYet(f"Valkey cannot be reached: {lost}") from None
        log.warning("Valkey cannot be reached", cause=str(lost))
        raise unreachable() from None


def find_model(name: str | None) -> ModelEntry:
    """Return the served model of this id or served name; None is the default (C-143, U-06).

    Raises:
        Failure: `model_not_found`.
    """
    served = catalogue.current()
    model = served.default if name is None else served.find(name)
    if model is None or not model.enabled:
        raise model_not_found(name or "", [entry.id for entry in served.enabled])
    return model


async def take_hold(
    counted: CountedRequest,
    output: caps.Output,
    *,
    payer: Payer,
    request_id: str,
    policy: Policy,
    record: Record | None,
) -> tuple[UUID, UUID, caps.Output]:
    """Take the Hold, with `max_tokens` lowered when the policy allows and the tokens demand it.

    Raises:
        Failure: `budget_exceeded` (C-306 to C-310, C-356 to C-360), or the 400 of a steered
            position that the lowered `max_tokens` does not reach (U-24).
    """
    size = partial(caps.tokens_to_hold, counted.request, counted.counts)
    take = partial(
        _take,
        payer=payer,
        request_id=request_id,
        model=counted.model.id,
        policy=policy,
        record=record,
    )
    asked = size(output.max_tokens)
    try:
        return *await _held(in_database(take, tokens=asked), record), output
    except BudgetExceeded as short:
        cause = short
    if not policy.clamps:
        raise budget_exceeded(cause, asked)
    left = await in_database(tokens_left, user_id=payer.user_id, key_id=payer.key_id)
    room = (left.largest_hold - sum(counted.counts)) // counted.request.choices
    if room < 1 or room >= output.max_tokens:
        raise budget_exceeded(cause, asked)
    reads.check_reach(counted.request, counted.counts, room)
    lowered = output.lowered_to(room)
    try:
        return *await _held(in_database(take, tokens=size(room)), record), lowered
    except BudgetExceeded as lost_race:
        raise budget_exceeded(lost_race, size(room)) from None


async def _held(
    taking: Coroutine[object, object, tuple[UUID, UUID]], record: Record | None
) -> tuple[UUID, UUID]:
    """Await the Hold; when the client leaves meanwhile, it is released (C-344)."""

    async def undo(hold: tuple[UUID, UUID]) -> None:
        await in_database(release, hold_id=hold[0], owner=hold[1], record=record)

    return await or_undone(taking, undo)


def _take(
    *,
    payer: Payer,
    tokens: int,
    request_id: str,
    model: str,
    policy: Policy,
    record: Record | None,
) -> tuple[UUID, UUID]:
    """Take a Hold under this process's lease; returns the Hold's id and the lease's token.

    A key that was revoked or paused while its request waited is refused, or waits on (C-008,
    C-612, C-613).
    """
    if policy.in_background:
        check_background(payer)
    elif policy.stands_in_line:
        check_live(payer)

    def take(owner: UUID) -> tuple[UUID, UUID]:
        with transaction.atomic():
            hold = ledger.take_hold(
                user_id=payer.user_id,
                key_id=payer.key_id,
                tokens=tokens,
                request_id=request_id,
                model=model,
                source=policy.source,
                owner=owner,
            )
            if record is not None:
                record.held()
        return hold.id, owner

    return owning(take)


def engine_request(
    counted: CountedRequest, output: caps.Output, work_id: str, user_id: UUID
) -> EngineRequest:
    """Return the engine's form of an admitted request; prefixes are shared within a User."""
    request = counted.request
    return EngineRequest(
        request_id=work_id,
        cache_scope=str(user_id),
        prompts=tuple(prompt.ids or () for prompt in counted.prompts),
        max_tokens=output.max_tokens,
        n=request.n,
        sampling=request.sampling,
        stopping=Stopping(texts=request.stop),
        echo=request.echo,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        priority=request.priority,
        read_layers=reads.layers_read(request, counted.model),
        steering=request.steering,
        user=request.user,
    )
