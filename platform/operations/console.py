"""The lines of many processes on one terminal."""

import contextlib
import json
from datetime import UTC, datetime
from itertools import cycle
from typing import TextIO

COLOURS = cycle(("36", "32", "35", "33", "34", "96", "92", "95"))
FIRST_WIDTH = 10
LARGEST_WIDTH = 32


class Console:
    """Writes each line behind the name of the process that it comes from.

    With `as_json` the lines of children pass unchanged, being JSON themselves, and the
    supervisor's own are made JSON.
    """

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json
        self._coloured = stream.isatty() and not as_json
        self._colours: dict[str, str] = {}
        self._width = FIRST_WIDTH

    def child_line(self, name: str, text: str) -> None:
        """Write a line that a child wrote."""
        self._write(text if self._as_json else f"{self._column(name)} {text}")

    def line(self, text: str) -> None:
        """Write a line of the supervisor's own."""
        if self._as_json:
            now = datetime.now(UTC).isoformat()
            self._write(json.dumps({"timestamp": now, "logger": "up", "event": text}))
        else:
            self._write(f"{self._column('up')} {text}")

    def _column(self, name: str) -> str:
        self._width = max(self._width, min(len(name), LARGEST_WIDTH))
        column = f"{name:<{self._width}} |"
        if not self._coloured:
            return column
        colour = self._colours.setdefault(name, next(COLOURS))
        return f"\x1b[{colour}m{column}\x1b[0m"

    def _write(self, text: str) -> None:
        # A terminal that went away must not take the processes with it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()
