"""One loaded model with a thread that runs its loop."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
import torch

from inference.engine import compiling, kernels, loading
from inference.engine.core import Core
from inference.engine.limits import EngineLimits, LoadFigures
from inference.engine.loading import LoadStage
from inference.engine.messages import EngineRequest, Event, Failed, FailureCode
from inference.engine.thread import EngineThread

__all__ = ["Engine", "EngineLimits", "LoadFigures", "LoadStage"]

log = structlog.get_logger(__name__)

Emit = Callable[[Sequence[Event]], None]

DEAD = "The engine has stopped. Send the request again."


@dataclass(frozen=True)
class _Submit:
    request: EngineRequest
    worker_id: str


@dataclass(frozen=True)
class _Abort:
    request_id: str


class Engine:
    """Takes requests from any thread, and emits their events from its own.

    After a request's `Accepted` come its deltas and exactly one `Finished` or `Failed`, unless it
    is aborted. When the loop dies, every request fails with ENGINE_DEAD, later ones too; those
    are emitted from the thread that submits.
    """

    def __init__(self, core: Core, thread: EngineThread | None = None) -> None:
        """`thread` is where the model was loaded; without one it gets its own."""
        self._core = core
        self._thread = thread or EngineThread()
        self._mail: deque[_Submit | _Abort] = deque()
        self._lock = threading.Condition()
        self._emit: Emit | None = None
        self._loops: Future[None] | None = None
        self._deadline: float | None = None
        self._dead = False

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: Literal["float32", "bfloat16"],
        device: str,
        max_model_len: int,
        limits: EngineLimits,
        report: Callable[[LoadStage], None],
    ) -> "Engine":
        """Load the model in `folder`, with the kernels that were compiled beside it.

        Raises `loading.ModelUnsupported` for a model that cannot be served exactly, ValueError for
        limits under which it cannot run, and OSError for missing files.
        """

        def load() -> Core:
            if limits.threads is not None:
                torch.set_num_threads(limits.threads)
            found = kernels.find(folder.parent / compiling.FOLDER)
            loaded = loading.load(
                folder,
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                report=report,
                kernels=found,
            )
            log.info(
                "engine loaded",
                kernels=compiling.file_name() if loaded.kernels else "none",
                threads=torch.get_num_threads(),
            )
            return Core(loaded, limits)

        thread = EngineThread()
        return cls(thread.run(load).result(), thread)

    def start(self, emit: Emit) -> None:
        """Start the loop. `emit` gets all events of a step at once, from the loop's thread."""
        self._emit = emit
        self._loops = self._thread.run(self._loop)

    def submit(self, request: EngineRequest, worker_id: str) -> None:
        """Hand in a request and return at once."""
        with self._lock:
            if not self._dead and self._deadline is None:
                self._mail.append(_Submit(request, worker_id))
                self._lock.notify()
                return
        self._refuse([request.request_id])

    def abort(self, request_id: str) -> None:
        """Give up a request. It emits nothing more; unknown ids are ignored."""
        with self._lock:
            self._mail.append(_Abort(request_id))
            self._lock.notify()

    def stop(self, drain_s: float) -> None:
        """Take nothing more, let requests end for `drain_s` seconds, fail the rest, and join."""
        with self._lock:
            self._deadline = time.monotonic() + drain_s
            self._lock.notify()
        if self._loops is not None:
            self._loops.result()

    def load_figures(self) -> LoadFigures:
        """Return the load after the last step."""
        return self._core.figures

    @property
    def is_dead(self) -> bool:
        """The loop has ended: nothing will be answered any more."""
        return self._dead

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:
            log.exception("engine_died")
        finally:
            self._die()

    def _turn(self) -> bool:
        """Read the mail and run a step; returns whether to go on."""
        self._wait()
        with self._lock:
            mail, deadline = list(self._mail), self._deadline
            self._mail.clear()
        events: list[Event] = []
        for letter in mail:
            if isinstance(letter, _Abort):
                self._core.abort(letter.request_id)
                events = [event for event in events if event.request_id != letter.request_id]
            else:
                events.extend(self._core.accept(letter.request, letter.worker_id))
        self._send(events)
        if deadline is not None and (not self._core.busy or time.monotonic() >= deadline):
            return False
        if self._core.busy:
            self._send(self._core.step())
        return True

    def _wait(self) -> None:
        """Wait until there is something to do, and get the cache's memory ready meanwhile."""
        more = True
        while True:
            with self._lock:
                if self._mail or self._core.busy or self._deadline is not None:
                    return
                if not more:
                    self._lock.wait()
                    continue
            more = self._core.give_ahead()

    def _send(self, events: Sequence[Event]) -> None:
        if events and self._emit is not None:
            self._emit(events)

    def _die(self) -> None:
        """Fail whatever is left, and whatever comes."""
        with self._lock:
            self._dead = True
            left = [letter for letter in self._mail if isinstance(letter, _Submit)]
            self._mail.clear()
        try:
            self._send(self._core.fail_all(FailureCode.ENGINE_DEAD, DEAD))
            self._refuse([letter.request.request_id for letter in left])
        except Exception:
            log.exception("last_words_lost")

    def _refuse(self, names: Sequence[str]) -> None:
        self._send(
            [
                Failed(request_id=name, seq=0, code=FailureCode.ENGINE_DEAD, message=DEAD)
                for name in names
            ]
        )
