"""Follows Runs as they grow: one reader of the database for all followers of a process.

A follower names the piece that it saw last, so after a break it goes on without a lost or a
doubled character. Pieces belong to an attempt: a Run that begins anew is told as such.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from django.conf import settings
from django.db import connection

from completions.database import in_database
from jobs.models import Run
from jobs.states import LIVE, WorkState

PIECES_AT_ONCE = 200


@dataclass(frozen=True)
class Place:
    """The piece that a follower saw last: `attempt.position`, as an event's id."""

    attempt: UUID | None = None
    position: int = 0

    @classmethod
    def read(cls, text: str) -> "Place":
        """Return the place that an event's id names; one that names none is the beginning."""
        attempt, _, position = text.partition(".")
        try:
            return cls(UUID(attempt), int(position))
        except ValueError:
            return cls()

    def __str__(self) -> str:
        return f"{self.attempt}.{self.position}" if self.attempt else ""


@dataclass(frozen=True)
class News:
    """What happened to a Run since a place."""

    place: Place
    """Where the follower is with these news."""
    state: WorkState
    anew: bool
    """What the follower has belongs to another attempt: it begins from nothing."""
    pieces: tuple[bytes, ...] = ()
    """JSON lists of gains (`jobs.run_output.Gain`), in order."""
    ended: bool = False
    """The Run has ended and its output is kept: it stands whole in the Run, with its last words."""


@dataclass(eq=False)
class _Asking:
    run_id: UUID
    place: Place
    state: WorkState | None
    answer: asyncio.Future[News | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Followers:
    """Who waits for news in one event loop."""

    def __init__(self) -> None:
        self._asking: set[_Asking] = set()
        self._reading: asyncio.Task[None] | None = None

    async def news(self, run_id: UUID, place: Place, state: WorkState | None) -> News | None:
        """Wait until a Run has something that a follower at `place` does not know.

        None when there is no such Run any more.
        """
        asking = _Asking(run_id, place, state)
        self._asking.add(asking)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            return await asking.answer
        finally:
            self._asking.discard(asking)

    async def _read(self) -> None:
        """Read for all who wait, every moment, while anybody waits."""
        while self._asking:
            asking = list(self._asking)
            try:
                found = await in_database(_look, asking)
            except Exception as error:  # noqa: BLE001 - it is the followers' error
                for each in asking:
                    if not each.answer.done():
                        each.answer.set_exception(error)
                return
            for each, news in zip(asking, found, strict=True):
                if news is not NOTHING and not each.answer.done():
                    each.answer.set_result(news if isinstance(news, News) else None)
            await asyncio.sleep(settings.BASALT.run_stream_seconds)


NOTHING = object()

_PIECES = """
SELECT asked.place, p.position, p.gains
FROM unnest(%s::int[], %s::uuid[], %s::uuid[], %s::int[]) AS asked(place, run, attempt, position)
CROSS JOIN LATERAL (
  SELECT position, gains FROM jobs_runpiece
  WHERE run_id = asked.run AND attempt = asked.attempt AND position > asked.position
  ORDER BY position LIMIT %s
) p ORDER BY asked.place, p.position
"""


def _look(asking: list[_Asking]) -> list[object]:
    """Return the news of each follower, `NOTHING`, or None for a Run that is gone."""
    runs = {
        run_id: (attempt, WorkState(state), owner)
        for run_id, attempt, state, owner in Run.objects.filter(
            id__in={each.run_id for each in asking}, deleted_at__isnull=True
        ).values_list("id", "attempt", "state", "owner")
    }
    pieces = _pieces(asking, runs)
    found: list[object] = []
    for number, each in enumerate(asking):
        if each.run_id not in runs:
            found.append(None)
            continue
        attempt, state, owner = runs[each.run_id]
        found.append(_news(each, attempt, state, owner is not None, pieces.get(number, [])))
    return found


def _pieces(
    asking: list[_Asking], runs: dict[UUID, tuple[UUID | None, WorkState, UUID | None]]
) -> dict[int, list[tuple[int, bytes]]]:
    """Return the pieces that followers of running Runs do not have, by follower."""
    rows = [
        (number, each.run_id, runs[each.run_id][0], _known(each, runs[each.run_id][0]))
        for number, each in enumerate(asking)
        if each.run_id in runs and runs[each.run_id][0] is not None
    ]
    if not rows:
        return {}
    found: dict[int, list[tuple[int, bytes]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_PIECES, [*map(list, zip(*rows, strict=True)), PIECES_AT_ONCE])
        for number, position, gains in cursor.fetchall():
            found.setdefault(number, []).append((position, bytes(gains)))
    return found


def _known(asking: _Asking, attempt: UUID | None) -> int:
    """Return the position up to which a follower knows an attempt."""
    return asking.place.position if asking.place.attempt == attempt else 0


def _news(
    asking: _Asking,
    attempt: UUID | None,
    state: WorkState,
    in_hand: bool,
    pieces: list[tuple[int, bytes]],
) -> object:
    if state not in LIVE and not in_hand:
        return News(asking.place, state, anew=False, ended=True)
    anew = asking.place.position > 0 and asking.place.attempt != attempt
    if not pieces and not anew and state == asking.state:
        return NOTHING
    position = pieces[-1][0] if pieces else _known(asking, attempt)
    return News(Place(attempt, position), state, anew, tuple(gains for _, gains in pieces))


_followers: Followers | None = None
_loop: asyncio.AbstractEventLoop | None = None


def followers() -> Followers:
    """Return the followers of this event loop."""
    global _followers, _loop
    loop = asyncio.get_running_loop()
    if _followers is None or _loop is not loop:
        _followers, _loop = Followers(), loop
    return _followers


async def follow(run_id: UUID, after: str = "") -> AsyncIterator[News]:
    """Yield what happens to a Run after the event `after`, the end last.

    The caller has checked that the Run is its User's. Ends without an end when it is deleted.
    """
    place, state = Place.read(after), None
    while True:
        news = await followers().news(run_id, place, state)
        if news is None:
            return
        yield news
        if news.ended:
            return
        place, state = news.place, news.state
