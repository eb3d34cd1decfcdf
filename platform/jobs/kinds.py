"""The kinds of background work that the runner knows; each registers where it lives."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, Generic, TypeVar

from billing.models import Source
from completions.payer import check_background
from inference.backends.router import Inference
from jobs.models import Work
from jobs.records import WorkRecord

R = TypeVar("R", bound=WorkRecord[Any])


class Kind(ABC, Generic[R]):
    """One kind of background work: how much of it runs at once, and how one piece runs."""

    name: ClassVar[str]
    """What rings name, and logs."""
    model: ClassVar[type[Work]]
    by_turns: ClassVar[bool] = False
    """A User with none in hand comes before the others (C-446)."""
    source: ClassVar[Source | None] = None
    """What work counts under that its payer's standing ends before it began; None counts none."""

    @property
    @abstractmethod
    def most(self) -> int | None:
        """How much all runners have in hand together; None is no bound."""

    @property
    @abstractmethod
    def most_here(self) -> int:
        """How much one runner has in hand."""

    def full(self) -> Collection[str]:
        """Return models whose work is passed over now; it may use the database."""
        return ()

    def check_payer(self, work: Work) -> None:
        """Refuse work whose key was revoked or whose User was suspended; it uses the database.

        Raises:
            Failure: what the work ends with (C-613, C-614).
            NotYet: its key is paused (C-612).
        """
        check_background(work)

    @abstractmethod
    def record(self, work: Any) -> R:
        """Return the record of an attempt that begins."""

    @abstractmethod
    async def run(self, record: R, client: Inference) -> None:
        """Run the work of a record to its end.

        It is cancelled when the runner stops, when the User cancels it, and when another process
        has it; `record.stop` says which. Exceptions are noted on the record by the runner.
        """


_kinds: dict[str, Kind[Any]] = {}


def register(kind: Kind[Any]) -> None:
    """Make a kind known; an application does so when it is ready."""
    _kinds[kind.name] = kind


def kinds() -> tuple[Kind[Any], ...]:
    """Return every kind that is registered."""
    return tuple(_kinds.values())
