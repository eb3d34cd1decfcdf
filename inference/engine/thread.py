"""The one thread on which a model is loaded and runs.

OpenMP keeps a team of threads for each thread that runs kernels. Once the teams have more threads
than the processor has cores, all of them sleep where they would wait awake, and each of a step's
hundreds of kernels begins with waking them: that makes a step half as slow again. So one thread
runs everything.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class EngineThread:
    """Runs what it is given, one after the other, always on the same thread.

    A process that ends does not wait for it.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def run(self, function: Callable[[], T]) -> "Future[T]":
        """Call a function on the thread; what it returns or raises is the future's."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is for whoever waits
                future.set_exception(error)

        self._calls.put(call)
        return future

    def _run(self) -> None:
        while True:
            self._calls.get()()
