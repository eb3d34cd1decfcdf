"""Starts processes, prefixes their logs, starts again what dies, and ends all of it in order."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable
from dataclasses import dataclass

from operations.console import Console
from operations.places import ServerFailed
from operations.processes import Command, spawn

FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
SETTLED_SECONDS = 60.0
"""A process that lived so long is started again after `FIRST_DELAY`, whatever came before."""
TAIL_LINES = 40
CHUNK = 65536
DRAIN_CHUNKS = 64
LONGEST_LINE = 2**20


@dataclass(frozen=True)
class Outcome:
    """How a process that was expected to end has ended."""

    code: int
    output: str
    """Its standard output."""
    last_line: str
    """What it logged last."""


class Child:
    """A process that runs, or has run."""

    def __init__(
        self,
        command: Command,
        process: "subprocess.Popen[bytes]",
        log: int,
        show: Callable[[str, str], None],
    ) -> None:
        self.command = command
        self.process = process
        self.started = time.monotonic()
        self.exited = asyncio.Event()
        self.code = 0
        """Its exit status, once `exited` is set; negative for a signal."""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._show = show
        self._log = _Lines(log, self._take)

    def _take(self, line: str) -> None:
        self.tail.append(line)
        self._show(self.command.name, line)

    @property
    def lived(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started

    @property
    def last_line(self) -> str:
        """The last line that names a fatal fault, or else the last line that it logged."""
        lines = [line.strip() for line in reversed(self.tail) if line.strip()]
        return next((line for line in lines if "FATAL" in line), (lines or ["nothing"])[0])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it ended."""
        if not self.exited.is_set():
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it and whatever it started in its session."""
        if not self.exited.is_set():
            os.killpg(self.process.pid, signal.SIGKILL)

    def look(self) -> None:
        """Notice its end; whatever it started in its session ends with it."""
        if self.exited.is_set() or self.process.poll() is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._log.drain()
        self.code = self.process.returncode
        self.exited.set()


class Supervisor:
    """The children of this process; everything here runs in the main thread's event loop."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.stop_wanted = asyncio.Event()
        """Set by the first SIGINT, SIGTERM or SIGHUP."""
        self._hurry = asyncio.Event()
        self._children: list[Child] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_stop_signal, number)

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if not self.stop_wanted.is_set():
            self.console.line(f"{number.name}: stopping")
            self.stop_wanted.set()
        elif number is signal.SIGINT:
            self.console.line("killing what still runs")
            self._hurry.set()

    def _look(self) -> None:
        for child in self._children:
            child.look()
        self._children = [child for child in self._children if not child.exited.is_set()]

    def start(self, command: Command, stdout: int | None = None) -> Child:
        """Start a process whose output becomes log lines; raises `OSError`.

        Its standard output goes to the file descriptor `stdout` where one is given.
        """
        reading, writing = os.pipe()
        try:
            process = spawn(command, writing if stdout is None else stdout, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child = Child(command, process, reading, self.console.child_line)
        self._children.append(child)
        child.look()
        return child

    async def run(self, command: Command) -> Outcome:
        """Run a process to its end and return how it ended; raises `OSError`."""
        reading, writing = os.pipe()
        lines: list[str] = []
        try:
            child = self.start(command, stdout=writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        output = _Lines(reading, lines.append)
        await child.exited.wait()
        output.drain()
        return Outcome(child.code, "\n".join(lines), child.last_line)

    async def end(self, child: Child, seconds: float) -> None:
        """Ask a child to end; kill it after `seconds`, or at once on the second Ctrl+C."""
        child.signal(child.command.stop_signal)
        await first(child.exited.wait(), self._hurry.wait(), seconds=seconds)
        if not child.exited.is_set():
            self.console.line(f"killing {child.command.name}, which did not end")
            child.kill()
            await child.exited.wait()

    async def end_all(self, seconds: float, *, spare: Container[str] = ()) -> None:
        """End whatever still runs, but for the processes of the names in `spare`."""
        ending = [child for child in self._children if child.command.name not in spare]
        await asyncio.gather(*(self.end(child, seconds) for child in ending))


class Kept:
    """A process that is started again whenever it ends, until it is stopped."""

    def __init__(
        self, supervisor: Supervisor, name: str, prepare: Callable[[], Awaitable[Command]]
    ) -> None:
        self.name = name
        self._first_words = ""
        self._ended_once = asyncio.Event()
        self._supervisor = supervisor
        self._prepare = prepare
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=name)

    async def _keep(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            words, lived = await self._live()
            if self._stopping.is_set():
                return
            if lived > SETTLED_SECONDS:
                delay = FIRST_DELAY
            self._supervisor.console.line(f"{self.name} {words}; starting it in {delay:g} s")
            if not self._ended_once.is_set():
                self._first_words = words
                self._ended_once.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def _live(self) -> tuple[str, float]:
        """Start the process and wait for its end; returns what became of it, and its age."""
        try:
            command = await self._prepare()
            if self._stopping.is_set():
                return "", 0.0
            child = self._child = self._supervisor.start(command)
        except (OSError, ServerFailed) as failure:
            return f"cannot be started: {failure}", 0.0
        await child.exited.wait()
        return f"ended ({in_words(child.code)}) saying: {child.last_line}", child.lived

    async def stop(self, seconds: float) -> None:
        """End the process, and do not start it again."""
        self._stopping.set()
        if self._child is not None:
            await self._supervisor.end(self._child, seconds)
        await self._task
        # A process whose preparation was under way may have been started after all.
        if self._child is not None:
            await self._supervisor.end(self._child, seconds)

    async def until(self, condition: Coroutine[None, None, bool], seconds: float) -> str | None:
        """Wait for a condition; returns what went wrong, if that came first, or None."""
        if not await first(condition, self._ended_once.wait(), seconds=seconds):
            return f"did not answer in {seconds:g} s"
        return self._first_words if self._ended_once.is_set() else None


async def first(*conditions: Coroutine[None, None, bool], seconds: float | None = None) -> bool:
    """Wait until one condition came true; returns whether one did in `seconds`."""
    tasks = [asyncio.create_task(condition) for condition in conditions]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return bool(done)


async def stop_together(kept: Iterable[Kept], seconds: float) -> None:
    """End several kept processes at the same time."""
    await asyncio.gather(*(one.stop(seconds) for one in kept))


def in_words(code: int) -> str:
    """An exit status for people; negative ones are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class _Lines:
    """Reads a pipe to its end and hands on whole lines."""

    def __init__(self, descriptor: int, take: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._rest = b""
        self._open = True
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def drain(self) -> None:
        """Read what is there now, up to `DRAIN_CHUNKS`."""
        for _ in range(DRAIN_CHUNKS):
            if not (self._open and self._read()):
                return

    def _read(self) -> bool:
        """Take one chunk; returns whether there was one."""
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._rest and (not chunk or len(self._rest) > LONGEST_LINE):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._open = False
        return bool(chunk)
