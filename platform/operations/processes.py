"""Child processes that never outlive the process that started them."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Account:
    """A user of the operating system, under which a child runs."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    """What to start, and how it is told to end."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    account: Account | None = None
    """The user to run as; the caller's when None. Only root may name one."""
    stop_signal: signal.Signals = signal.SIGTERM
    """Asks for a clean end."""
    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel when the starting thread dies, however it dies."""
    keep_open: tuple[int, ...] = ()
    """File descriptors that the child inherits under the same numbers."""


def tie(death_signal: signal.Signals) -> Callable[[], None]:
    """A hook for the child that makes the kernel signal it when its parent's thread dies.

    It has to run after a change of user, which clears the setting; `subprocess` calls it then.
    Systems without the setting (other than Linux) get a hook that does nothing.
    """
    parent = os.getpid()
    prctl = getattr(LIBC, "prctl", None)

    def hook() -> None:
        if prctl is None:
            return
        prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return hook


def spawn(command: Command, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, its output going to two file descriptors.

    The session keeps the terminal's Ctrl+C from it, so that whoever started it decides the order
    of ends. Call this from a thread that lives as long as the child should. Raises `OSError` when
    the program cannot be started.
    """
    return subprocess.Popen(
        command.arguments,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=dict(command.environment),
        pass_fds=command.keep_open,
        start_new_session=True,
        user=command.account.uid if command.account else None,
        group=command.account.gid if command.account else None,
        extra_groups=[] if command.account else None,
        preexec_fn=tie(command.death_signal),
        cwd="/" if command.account else None,
    )


def end(process: subprocess.Popen[bytes], command: Command, seconds: float) -> int:
    """Ask a child to end, kill its whole session after `seconds`, and return its exit status."""
    if process.poll() is None:
        process.send_signal(command.stop_signal)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
