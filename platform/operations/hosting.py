"""Runs a Celery consumer in a process whose life is ours.

Celery would answer SIGTERM in its own way; here the host of the work does: it stops intake, lets
running work end, and only then ends the process.
"""

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import structlog
from celery import Celery
from celery.worker import WorkController, state
from celery.worker.consumer import Consumer
from kombu.asynchronous.timer import Entry

log = structlog.get_logger()

EXIT_OK = 0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CeleryHost:
    """One solo Celery consumer of one queue, in a thread, ended by SIGTERM or SIGINT."""

    def __init__(
        self,
        app: Celery,
        queue: str,
        on_ready: Callable[[], None],
        poll: tuple[float, Callable[[], None]] | None = None,
    ) -> None:
        """Prepare the consumer.

        `on_ready` is called when it takes messages; `poll` is seconds, and what is called every so
        many seconds by the loop that takes them.
        """
        self._queue = queue
        self._poll = poll
        self._on_ready = on_ready
        self._stop = threading.Event()
        self._broke = False
        self._polling: Entry | None = None
        self._worker: WorkController = app.WorkController(
            app=app,
            hostname=f"{queue}@{socket.gethostname()}",
            pool_cls="solo",
            concurrency=1,
            queues=[queue],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            ready_callback=self._ready,
        )

    def watch_signals(self) -> None:
        """Take SIGTERM and SIGINT as the wish to end; call it in the main thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def stop(self) -> None:
        """Ask for the end, as a signal does."""
        self._stop.set()

    def run(self, before_stop: Callable[[], None]) -> int:
        """Consume until a signal comes or the consumer breaks; returns the exit code.

        `before_stop` runs after the signal and before the consumer is stopped: intake has ended
        elsewhere by then, and messages that were already sent are still taken.
        """
        consumer = threading.Thread(target=self._consume, name="celery-consumer", daemon=True)
        consumer.start()
        while not self._stop.wait(0.5):
            pass
        before_stop()
        state.should_stop = EXIT_OK  # type: ignore[assignment]
        consumer.join(5)
        state.should_stop = None
        return 1 if self._broke else 0

    def _ready(self, consumer: Consumer) -> None:
        """Called at the start, and again whenever the broker was lost and found."""
        log.info("consuming", queue=self._queue)
        if self._poll is not None:
            if self._polling is not None:
                self._polling.cancel()
            self._polling = consumer.timer.call_repeatedly(*self._poll)
        self._on_ready()

    def _consume(self) -> None:
        try:
            self._worker.start()
        except BaseException:
            log.exception("the consumer broke", queue=self._queue)
            self._broke = True
        finally:
            self._broke = self._broke or not self._stop.is_set()
            self._stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        log.info("stopping", signal=signal.Signals(number).name, queue=self._queue)
        self._stop.set()
