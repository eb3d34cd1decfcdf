"""The one error that preparation ends with."""

from __future__ import annotations


class PreparationError(Exception):
    """A model could not be prepared; the message is one line: the cause, then what to do."""

    def __init__(self, cause: str, remedy: str) -> None:
        line = f"{cause}: {remedy}" if remedy else cause
        super().__init__(" ".join(line.split()))
