"""One Completion in the background: the same admission and Generation as a live one."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from completions.admission import Policy, admitted
from completions.generation import Generation
from completions.request import CompletionRequest
from inference.backends.router import Inference
from jobs.records import Stop, WorkRecord


@contextlib.asynccontextmanager
async def completion(
    request: CompletionRequest,
    *,
    record: WorkRecord[Any],
    request_id: str,
    policy: Policy,
    client: Inference,
) -> AsyncIterator[Generation]:
    """Admit and run one Completion of work in hand.

    The body reads `generation.events()`, says what was shown of a stream by `generation.sent`, and
    gives the record what it keeps. When the context is left the Hold has ended and the row is
    written, both in one transaction: `done` after a body that came to its end, else as
    `record.note` reads the exception.

    Raises:
        Failure: of admission or Inference; the record has noted it.
        NotYet: the work has to wait; nothing was held.
    """
    async with contextlib.AsyncExitStack() as written:
        try:
            async with admitted(
                request,
                payer=record.work,
                request_id=request_id,
                policy=policy,
                client=client,
                written=written,
                record=record,
                spend_stopped=False,  # what is claimed was claimed while none was on
            ) as generation:
                try:
                    yield generation
                except BaseException as error:
                    record.note(error)
                    generation.client_left = record.stop is Stop.CANCELLED
                    generation.runs_again = record.is_put_back
                    raise
                record.done()
        except BaseException as error:
            record.note(error)
            raise
