"""A scripted engine: it answers what a test tells it, when the test tells it.

It takes the engine's place in a real worker in this process, so that everything from the wire to
the client is the real thing, and a test decides what Inference does.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from celery import current_app

from inference.catalogue import ModelEntry
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    Given,
    Residuals,
)
from inference.worker import Emit, EngineWorker
from operations.hosting import CeleryHost


@dataclass(frozen=True)
class Figures:
    running: int = 0
    waiting: int = 0


class Asked:
    """A request that the scripted engine has: the test says what becomes of it."""

    def __init__(self, engine: "ScriptedEngine", request: EngineRequest) -> None:
        self.request = request
        self.aborted = threading.Event()
        self._engine = engine
        self.given = Given(id=f"cmpl-{request.request_id}", created=int(time.time()))
        self._seq = 1
        self._generated = 0

    def say(self, text: str, *, index: int = 0, finish: str | None = None, **fields) -> None:
        """One token of a choice, with its text."""
        self._generated += 1
        self._emit(
            Delta(
                request_id=self.request.request_id,
                seq=self._next(),
                index=index,
                text=text,
                token_ids=fields.pop("token_ids", (7,)),
                given=self.given if self._generated == 1 else None,
                finish_reason=finish,
                **fields,
            )
        )

    def finish(
        self, *, completion_tokens: int | None = None, residuals: Residuals | None = None
    ) -> None:
        """The end of the request."""
        self._emit(
            Finished(
                request_id=self.request.request_id,
                seq=self._next(),
                prompt_tokens=sum(map(len, self.request.prompts)),
                completion_tokens=self._generated
                if completion_tokens is None
                else completion_tokens,
                residuals=residuals,
            )
        )
        self._engine.forget(self)

    def answer(self, *texts: str) -> None:
        """Say these tokens for every choice, and end."""
        for index in range(len(self.request.prompts) * self.request.n):
            for place, text in enumerate(texts):
                last = place == len(texts) - 1
                self.say(text, index=index, finish="length" if last else None)
        self.finish()

    def fail(self, code: FailureCode, message: str = "it broke", param: str | None = None) -> None:
        """The failure of the request."""
        self._emit(
            Failed(
                request_id=self.request.request_id,
                seq=self._next(),
                code=code,
                message=message,
                param=param,
            )
        )
        self._engine.forget(self)

    def skip_event(self) -> None:
        """Lose one event, as a broken wire would."""
        self._seq += 1

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1

    def _emit(self, event: Event) -> None:
        self._engine.emit([event])


class ScriptedEngine:
    """The engine's interface, moved by hand."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Asked] = queue.Queue()
        self.running: dict[str, Asked] = {}
        self.is_dead = False
        self.answers: tuple[str, ...] | None = None
        """Texts with which every request is answered at once, when set."""
        self.policy: Callable[[Asked], None] | None = None
        """What becomes of every request at once, when set."""
        self._emit: Emit | None = None

    def start(self, emit: Emit) -> None:
        self._emit = emit

    def emit(self, events: Sequence[Event]) -> None:
        assert self._emit is not None
        self._emit(events)

    def submit(self, request: EngineRequest, worker_id: str) -> None:
        asked = Asked(self, request)
        self.running[request.request_id] = asked
        self.emit([Accepted(request_id=request.request_id, seq=0, worker_id=worker_id)])
        if self.policy is not None:
            self.policy(asked)
        elif self.answers is not None:
            asked.answer(*self.answers)
        else:
            self.asked.put(asked)

    def abort(self, request_id: str) -> None:
        asked = self.running.pop(request_id, None)
        if asked is not None:
            asked.aborted.set()

    def forget(self, asked: Asked) -> None:
        self.running.pop(asked.request.request_id, None)

    def stop(self, drain_s: float) -> None:
        self.is_dead = True

    def load_figures(self) -> Figures:
        return Figures(running=len(self.running))

    def next(self, seconds: float = 10) -> Asked:
        """Wait for the next request."""
        return self.asked.get(timeout=seconds)


@contextmanager
def scripted_worker(model: ModelEntry) -> Iterator[ScriptedEngine]:
    """A worker of this process that serves `model` by a script; it listens once this yields."""
    listens = threading.Event()
    engine = ScriptedEngine()
    worker = EngineWorker(model, lambda report: engine)
    worker.start()

    def on_ready() -> None:
        worker.announce_serving()
        listens.set()

    host = CeleryHost(current_app, f"engine.{model.id}", on_ready)
    thread = threading.Thread(target=host.run, args=(worker.announce_stop,), daemon=True)
    thread.start()
    try:
        assert listens.wait(60), "the Celery consumer did not start"
        yield engine
    finally:
        host.stop()
        thread.join(10)
        worker.stop(0)
