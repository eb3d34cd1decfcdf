"""One request under way, from its caller to a worker and back."""

import asyncio
from dataclasses import dataclass, field
from typing import BinaryIO

from django.conf import settings

from inference.engine.messages import Accepted, EngineRequest, Failed, FailureCode, Finished
from inference.failure_texts import CUT_MESSAGE
from inference.large import Large
from inference.mailbox import Arrival, Mailbox


@dataclass(eq=False)
class Call:
    """One request under way."""

    request: EngineRequest
    model_id: str
    mailbox: Mailbox = field(default_factory=lambda: Mailbox(settings.BASALT.send_buffer_bytes))
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    worker_id: str | None = None
    next_seq: int = 0
    fetched: dict[int, asyncio.Task[BinaryIO]] = field(default_factory=dict)
    """The files of large events that nobody has read yet, by their number."""
    rung: bool = False
    """Whether a worker may have it."""
    ended: bool = False
    over: bool = False
    """Whether the engine itself ended it, so that there is nothing to abort."""

    def deliver(self, event: Arrival) -> bool:
        """Put an event into the mailbox, unless the call has ended or the event is a repeat."""
        if self.ended or event.seq < self.next_seq:
            return False
        if event.seq > self.next_seq:
            self.fail(FailureCode.INCOMPLETE, CUT_MESSAGE)
            return False
        self.next_seq += 1
        if isinstance(event, Accepted):
            self.worker_id = event.worker_id
            self.taken.set()
        ends = event.ends if isinstance(event, Large) else isinstance(event, Finished | Failed)
        self.ended = self.over = ends
        self.mailbox.put(event)
        return True

    def fail(self, code: FailureCode, message: str) -> None:
        """End the call by a failure of our own."""
        if self.ended:
            return
        self.ended = True
        self.taken.set()
        self.mailbox.put(
            Failed(
                request_id=self.request.request_id, seq=self.next_seq, code=code, message=message
            )
        )
