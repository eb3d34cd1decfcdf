"""A worker process whose engine says one token of every running choice each tick.

After the first token of each it waits for a line on its input. It answers with as many tokens as
were asked for, with log probabilities and residuals of the full size where they were asked for,
made by a formula that tests know.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from inference.engine.messages import (  # noqa: E402
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Finished,
    Given,
    PackedLogprobs,
    Residuals,
)


def word(number: int) -> str:
    """The text of a choice's token."""
    return f" w{number}"


def whole_vocabulary(prompt: Sequence[int], vocabulary: int) -> PackedLogprobs:
    """Log probabilities of every token at every position of the prompt but the first."""
    rows = len(prompt) - 1
    ids = np.empty((rows, vocabulary), "<i4")
    logprobs = np.empty((rows, vocabulary), "<f4")
    ranks = np.empty((rows, vocabulary), "<i4")
    generator = np.random.default_rng(7)
    for row, own in enumerate(prompt[1:]):
        order = generator.permutation(vocabulary).astype("<i4")
        descending = -np.sort(generator.random(vocabulary, dtype=np.float32) * 30)
        place = int(np.flatnonzero(order == own)[0])
        for array, values in (
            (ids, order),
            (logprobs, descending),
            (ranks, np.arange(1, vocabulary + 1)),
        ):
            array[row, 0] = values[place]
            array[row, 1:] = np.delete(values, place)
    return PackedLogprobs(
        rows=rows,
        width=vocabulary,
        ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        ranks=ranks.tobytes(),
    )


def residual_stream(layers: int, tokens: int, hidden: int) -> np.ndarray:
    """The residual stream of a read, float32."""
    generator = np.random.default_rng(11)
    return generator.standard_normal((layers, tokens, hidden), dtype=np.float32)


@dataclass
class Running:
    """A request that the engine has."""

    request: EngineRequest
    seq: int = 1
    said: int = 0
    prompt_logprobs: PackedLogprobs | None = None
    residuals: Residuals | None = None
    events: list[Event] = field(default_factory=list)

    def tick(self) -> list[Event]:
        """The events of one more token of each choice, and of the end."""
        events: list[Event] = []
        last = self.said + 1 >= self.request.max_tokens
        given = Given(id=f"cmpl-{self.request.request_id}", created=int(time.time()))
        for index in range(len(self.request.prompts) * self.request.n):
            events.append(
                Delta(
                    request_id=self.request.request_id,
                    seq=self._next(),
                    index=index,
                    text=word(self.said),
                    token_ids=(7,),
                    given=None if self.said or index else given,
                    prompt_logprobs=None if self.said else self.prompt_logprobs,
                    finish_reason="length" if last else None,
                )
            )
        self.said += 1
        if last:
            events.append(
                Finished(
                    request_id=self.request.request_id,
                    seq=self._next(),
                    prompt_tokens=sum(map(len, self.request.prompts)),
                    completion_tokens=self.said * len(self.request.prompts) * self.request.n,
                    residuals=self.residuals,
                )
            )
        return events

    def _next(self) -> int:
        self.seq += 1
        return self.seq - 1


class Figures(msgspec.Struct):
    running: int
    waiting: int = 0


class TickingEngine:
    """The engine's interface."""

    is_dead = False

    def __init__(self, tick_s: float, vocabulary: int, hidden: int) -> None:
        self.goes_on = threading.Event()
        """Without it every choice stops after its first token."""
        self._tick_s, self._vocabulary, self._hidden = tick_s, vocabulary, hidden
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    def start(self, emit) -> None:
        self._emit = emit
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: EngineRequest, worker_id: str) -> None:
        self._emit([Accepted(request_id=request.request_id, seq=0, worker_id=worker_id)])
        if request.prompt_logprobs == -1 or request.read_layers:
            threading.Thread(target=self._prepare, args=(request,), daemon=True).start()
            return
        with self._lock:
            self._running[request.request_id] = Running(request)

    def abort(self, request_id: str) -> None:
        with self._lock:
            self._running.pop(request_id, None)

    def stop(self, drain_s: float) -> None:
        pass

    def load_figures(self) -> Figures:
        return Figures(len(self._running))

    def _prepare(self, request: EngineRequest) -> None:
        running = Running(request)
        if request.prompt_logprobs == -1:
            running.prompt_logprobs = whole_vocabulary(request.prompts[0], self._vocabulary)
        if request.read_layers:
            tokens = len(request.prompts[0]) + request.max_tokens - 1
            array = residual_stream(len(request.read_layers), tokens, self._hidden)
            running.residuals = Residuals(
                shape=array.shape, dtype="float32", data=memoryview(array).cast("B")
            )
        with self._lock:
            self._running[request.request_id] = running

    def _run(self) -> None:
        while True:
            time.sleep(self._tick_s)
            with self._lock:
                goes_on = self.goes_on.is_set()
                speaking = [each for each in self._running.values() if goes_on or not each.said]
                events = [event for each in speaking for event in each.tick()]
                for event in events:
                    if isinstance(event, Finished):
                        del self._running[event.request_id]
            if events:
                self._emit(events)


def main(model_id: str, tick_s: float) -> None:
    """Serve a model until SIGTERM."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from celery import current_app

    from inference import catalogue
    from inference.worker import EngineWorker
    from operations.hosting import CeleryHost

    model = catalogue.current().find(model_id)
    assert model is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    engine = TickingEngine(tick_s, model.vocab_size, model.hidden_size)
    worker = EngineWorker(model, lambda report: engine)
    worker.start()

    ready = threading.Event()

    def on_ready() -> None:
        worker.announce_serving()
        ready.set()

    host = CeleryHost(current_app, f"engine.{model.id}", on_ready)
    threading.Thread(target=host.run, args=(worker.announce_stop,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    engine.goes_on.set()
    signal.sigwait({signal.SIGTERM})
    worker.stop(0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
