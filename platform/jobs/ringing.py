"""Who is woken when somebody rings in this process."""

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def listen(listener: Callable[[], None]) -> None:
    """Have the runner of this process woken by rings."""
    global _listener
    _listener = listener


def answer_ring() -> None:
    """Wake the runner of this process, if there is one."""
    if _listener is not None:
        _listener()
