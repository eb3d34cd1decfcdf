"""Follows Looms that grow, for any number of watchers: one reader for each Loom of a process.

A reader looks at the rows when a notice says that there is something new, at most every 250 ms, and
now and then without one. What it finds is written once and handed to all watchers. Notices only
say where to look, so losing them costs a moment and no word.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db.models import Q

from completions.database import in_database
from inference import valkey
from inference.client import LOST
from looms.notices import CHANNEL
from looms.reads import NodeRow, in_read_order, loom_of, node_rows, node_shape, written
from looms.tree import GROWING

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Between two looks without a notice."""
BLIND_LOOK_SECONDS = 0.5
"""The same while no notice can come."""


def event(row: NodeRow) -> bytes:
    """Return one Node as an event of the stream (C-556)."""
    return b"data: " + written(node_shape(row)) + b"\n\n"


@dataclass(frozen=True)
class Snapshot:
    """All Nodes of a Loom at one moment, as events in read order."""

    loom_revision: int
    """At least what the Loom's revision was when it was read."""
    revision: int
    """The newest change among its Nodes."""
    events: bytes
    grows: bool


def read_snapshot(loom_id: UUID, loom_revision: int) -> Snapshot:
    """Read a Loom's Nodes."""
    rows = node_rows(loom_id)
    return Snapshot(
        loom_revision=loom_revision,
        revision=max((row.changed for row in rows), default=0),
        events=b"".join(event(row) for row in in_read_order(rows)),
        grows=any(row.status in GROWING for row in rows),
    )


@dataclass(frozen=True)
class News:
    """What changed in a Loom."""

    changed: Sequence[tuple[str, int, bytes]]
    """Of each Node: its id, the revision of its change, and its event."""
    grows: bool
    revision: int
    """The newest change that it knows of."""


def read_news(loom_id: UUID, after: int) -> News:
    """Read the Nodes that changed after a revision, and whether any grows: one query."""
    rows = node_rows(loom_id, where=Q(changed__gt=after) | Q(status__in=list(GROWING)))
    changed = sorted((row for row in rows if row.changed > after), key=lambda row: row.changed)
    return News(
        changed=[(row.id, row.changed, event(row)) for row in changed],
        grows=any(row.status in GROWING for row in rows),
        revision=max([after, *(row.changed for row in changed)]),
    )


class Watcher:
    """One stream's view of a Loom: what it has not been given yet, each Node once."""

    def __init__(self) -> None:
        self.since = -1
        """The revision that it was given; before it has its snapshot, everything is kept."""
        self._events: dict[str, tuple[int, bytes]] = {}
        self._still_at = -1
        """The newest revision at which nothing grew."""
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    def give(self, news: News) -> None:
        """Add what changed; of a Node that changed twice, the later counts."""
        for node_id, revision, data in news.changed:
            self._events.pop(node_id, None)
            self._events[node_id] = (revision, data)
        if not news.grows:
            self._still_at = news.revision
        self._news.set()

    def fail(self, failure: Exception) -> None:
        """End by a read that failed."""
        self._failure = failure
        self._news.set()

    async def batches(self) -> AsyncGenerator[bytes, None]:
        """Yield events until nothing grows any more.

        Raises whatever the reader's read raised.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            events, self._events = self._events, {}
            ended, failure = self._still_at >= self.since, self._failure
            data = b"".join(data for revision, data in events.values() if revision > self.since)
            if data:
                yield data
            if failure is not None:
                raise failure
            if ended:
                return


class Reader:
    """The one reader of a Loom in this process."""

    def __init__(self, loom_id: UUID) -> None:
        self.loom_id = loom_id
        self.watchers: set[Watcher] = set()
        self.reads = 0
        """How often it has read the rows."""
        self._revision = -1
        self._snapshot: Snapshot | None = None
        self._reading = asyncio.Lock()
        self._notice = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hint(self) -> None:
        """There may be something new."""
        self._notice.set()

    async def snapshot(self, loom_revision: int) -> Snapshot:
        """Return the Nodes as they are at this revision of the Loom or later; read once for all."""
        async with self._reading:
            kept = self._snapshot
            if kept is None or kept.loom_revision < loom_revision:
                self.reads += 1
                kept = await in_database(read_snapshot, self.loom_id, loom_revision)
                self._snapshot = kept
            return kept

    def follow(self, snapshot: Snapshot, is_heard: "Hearing") -> None:
        """Read on from a snapshot, unless the reader does so already."""
        if self._task is None or self._task.done():
            self._revision = snapshot.revision
            self._task = asyncio.create_task(self._run(is_heard))

    def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, hearing: "Hearing") -> None:
        read_at = time.monotonic()
        while self.watchers:
            patience = LOOK_SECONDS if hearing.hears else BLIND_LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._notice.wait()
            every = settings.BASALT.loom_stream_seconds
            await asyncio.sleep(max(0.0, read_at + every - time.monotonic()))
            self._notice.clear()
            read_at = time.monotonic()
            self.reads += 1
            try:
                news = await in_database(read_news, self.loom_id, self._revision)
            except Exception as failure:  # noqa: BLE001 - each watcher tells its client (C-559)
                for watcher in self.watchers:
                    watcher.fail(failure)
                return
            self._revision = news.revision
            if news.changed:
                self._snapshot = None
            if news.changed or not news.grows:
                for watcher in self.watchers:
                    watcher.give(news)


class Hearing:
    """Hears the notices of all Looms for this process's readers."""

    def __init__(self) -> None:
        self.readers: dict[UUID, Reader] = {}
        self.pages: dict[UUID, set[asyncio.Event]] = {}
        """Who waits for a hint of a Loom without a reader."""
        self.hears = False
        self._task: asyncio.Task[None] | None = None

    def reader(self, loom_id: UUID) -> Reader:
        """Return the reader of a Loom, the one that there is or a new one."""
        self._listen()
        return self.readers.setdefault(loom_id, Reader(loom_id))

    @contextlib.contextmanager
    def page(self, loom_id: UUID) -> Iterator[asyncio.Event]:
        """Give an event that is set whenever a Loom may have something new."""
        hint = asyncio.Event()
        self.pages.setdefault(loom_id, set()).add(hint)
        self._listen()
        try:
            yield hint
        finally:
            self.pages[loom_id].discard(hint)
            if not self.pages[loom_id]:
                del self.pages[loom_id]

    def _listen(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    @property
    def _is_needed(self) -> bool:
        return bool(self.readers or self.pages)

    def leave(self, reader: Reader) -> None:
        """Stop a reader that has no watcher any more."""
        if not reader.watchers and self.readers.get(reader.loom_id) is reader:
            reader.close()
            del self.readers[reader.loom_id]

    async def _run(self) -> None:
        while self._is_needed:
            connection = valkey.reader()
            try:
                await self._hear(connection)
            except LOST as lost:
                log.warning("notices of Looms are not heard", cause=str(lost))
                await asyncio.sleep(BLIND_LOOK_SECONDS)
            finally:
                self.hears = False
                with contextlib.suppress(*LOST):
                    await connection.aclose()

    async def _hear(self, connection: redis.asyncio.Redis) -> None:
        async with connection.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(CHANNEL)
            self.hears = True
            for loom_id in {*self.readers, *self.pages}:
                self._hint(loom_id)  # Notices may have been lost until now.
            while self._is_needed:
                message = await pubsub.get_message(timeout=LOOK_SECONDS)
                if message is not None:
                    self._hint(UUID(bytes=message["data"]))

    def _hint(self, loom_id: UUID) -> None:
        reader = self.readers.get(loom_id)
        if reader is not None:
            reader.hint()
        for page in self.pages.get(loom_id, ()):
            page.set()


_hearings: dict[asyncio.AbstractEventLoop, Hearing] = {}


def hearing() -> Hearing:
    """Return the one of the running event loop; a process has one loop that serves."""
    loop = asyncio.get_running_loop()
    if loop not in _hearings:
        _hearings.clear()
        _hearings[loop] = Hearing()
    return _hearings[loop]


async def follow(user_id: UUID, loom_id: UUID) -> AsyncGenerator[bytes, None]:
    """Yield the events of a Loom: all Nodes, then those that change until nothing grows (C-556).

    Raises:
        LoomMissing: before the first event.
    """
    here = hearing()
    # It is a watcher before it looks, so what changes meanwhile reaches it.
    reader, watcher = here.reader(loom_id), Watcher()
    reader.watchers.add(watcher)
    try:
        loom = await in_database(loom_of, user_id, loom_id)
        snapshot = await reader.snapshot(loom.revision)
        watcher.since = snapshot.revision
        if snapshot.grows:
            reader.follow(snapshot, here)
        yield snapshot.events
        if snapshot.grows:
            async with contextlib.aclosing(watcher.batches()) as batches:
                async for batch in batches:
                    yield batch
    finally:
        reader.watchers.discard(watcher)
        here.leave(reader)


async def hints(loom_id: UUID, every: float) -> AsyncGenerator[bool, None]:
    """Yield whenever a Loom may have something new, at most every 250 ms; True is a hint, and False
    that there was none for `every` seconds."""
    with hearing().page(loom_id) as hint:
        yield True
        while True:
            await asyncio.sleep(settings.BASALT.loom_stream_seconds)
            is_news = True
            try:
                async with asyncio.timeout(every):
                    await hint.wait()
            except TimeoutError:
                is_news = False
            hint.clear()
            yield is_news
