"""The routes of harvests (section 16)."""

import asyncio
import contextlib
import re
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs
from uuid import UUID, uuid4

import msgspec
import structlog
from django.conf import settings

from accounts.keys import KeyState
from api.app import PARAMETERS
from api.edge import answer_body
from api.errors import Headers
from api.harvest_bodies import harvest_asked
from api.harvest_schemas import HarvestJob, HarvestProgress, HarvestResult, HarvestTimings
from api.idempotency import Attempt, StoredAnswer
from api.json_body import read_json
from api.keyed import JSON_HEADERS, checked, free_key, take_key
from api.path_ids import path_id
from api.schemas import Shape
from api.stream import StreamConsumer
from api.times import iso, iso_or_none
from completions.database import in_database
from completions.failures import invalid, running_elsewhere
from completions.generation import RecordLost
from completions.places import places
from harvests.asked import Resolved
from harvests.cancelling import cancel
from harvests.reads import Standing, standing
from harvests.submission import resolve, submit
from inference.client import LOST
from jobs.states import WorkState

log = structlog.get_logger()

LOOK_SECONDS = 0.25
"""How often a read that waits looks; there are few of them (C-490)."""
SETTLE_SECONDS = 2.0
"""How long a cancel waits for the runner to write what the harvest paid."""
Header = tuple[bytes, bytes]
DECLINED: Headers = [(b"x-acs-longpoll", b"declined"), (b"retry-after", b"3")]
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def shape_of(seen: Standing) -> HarvestJob:
    """Return a harvest as the API shows it (C-480 to C-484)."""
    harvest = seen.harvest
    shape = HarvestJob(
        job_id=str(harvest.id),
        run_id=str(harvest.id),
        status=seen.status,
        model=harvest.model,
        n_prompts=harvest.n_prompts,
        reserved_tokens=harvest.reserved_tokens,
        layers=harvest.layers,
        tokens=harvest.tokens,
        created_at=iso(harvest.created_at),
        started_at=iso_or_none(seen.started_at),
        completed_at=iso_or_none(harvest.finished_at),
    )
    if harvest.state == WorkState.FAILED:
        return HarvestJob(**shape.model_dump(exclude_unset=True), error=seen.error)
    result = seen.result
    if result is None:
        return shape
    run = result.run
    files = HarvestResult(
        n_shards=run.n_shards or 0,
        layer_indices=harvest.layers,
        manifest_url=result.manifest_url,
        shard_urls=result.shard_urls,
        stats_url=result.stats_url,
        contents="projections" if harvest.projects else "activations",
        tokens=run.tokens or 0,
        bytes_written=run.bytes_written or 0,
        timings=HarvestTimings(
            load_s=run.load_s or 0.0,
            forward_s=run.forward_s or 0.0,
            save_s=run.save_s or 0.0,
            upload_s=run.upload_s or 0.0,
        ),
    )
    return HarvestJob(
        **shape.model_dump(exclude_unset=True), result=files, urls_expire_at=iso(result.expire_at)
    )


def progress_of(seen: Standing) -> HarvestProgress:
    """Return how far a harvest is."""
    run = seen.run
    seconds = tokens_per_second = None
    if run is not None and run.started_at is not None and run.seen_at is not None:
        seconds = round((run.seen_at - run.started_at).total_seconds(), 3)
        tokens_per_second = round(run.tokens_read / seconds, 1) if seconds > 0 else None
    harvest_shards = run.n_shards if run is not None and run.n_shards is not None else 0
    return HarvestProgress(
        job_id=str(seen.harvest.id),
        status=seen.status,
        stage=run.stage if run is not None else None,
        tokens_read=run.tokens_read if run is not None else 0,
        tokens_total=run.tokens_total if run is not None else 0,
        shards_written=run.shards_written if run is not None else 0,
        n_shards=harvest_shards,
        attempts=run.attempts if run is not None else 0,
        seconds=seconds,
        tokens_per_second=tokens_per_second,
    )


class HarvestConsumer(StreamConsumer):
    """Answers with a harvest."""

    @property
    def harvest_id(self) -> UUID:
        """The harvest of the path (C-487)."""
        return path_id(cast("dict[str, str]", self.scope[PARAMETERS]), "job_id")

    async def see(self, harvest_id: UUID, key: KeyState) -> Standing:
        """Read the harvest; any key of the User may (C-015)."""
        return await in_database(standing, harvest_id=harvest_id, user_id=key.user_id)

    async def show(self, shape: Shape, status: int = HTTPStatus.OK, *more: Header) -> None:
        """Send a shape; fields that do not apply are left out."""
        body = shape.model_dump_json(exclude_unset=True).encode()
        await answer_body(status, body, [*JSON_HEADERS, *more], self.send)


class CreateHarvest(HarvestConsumer):
    """Submits a harvest."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Check the request and make a harvest of it; a repeat gets that harvest (U-11)."""
        value = await checked(read_json, body, body)
        taken = await take_key(self.scope, value, key)
        if isinstance(taken, StoredAnswer):
            assert isinstance(taken.body, bytes)
            made = UUID(msgspec.json.decode(taken.body, type=str))
        else:
            try:
                asked = await checked(harvest_asked, value, body)
                made = await in_database(self._submit, resolve(asked), key, taken)
            except BaseException:
                await asyncio.shield(free_key(taken))
                raise
        seen = await self.see(made, key)
        await self.show(shape_of(seen), HTTPStatus.ACCEPTED)

    @staticmethod
    def _submit(resolved: Resolved, key: KeyState, taken: Attempt | None) -> UUID:
        harvest_id = uuid4()
        if taken is not None:
            named = msgspec.json.encode(str(harvest_id))
            taken.prepare(StoredAnswer(HTTPStatus.ACCEPTED, named, {}))
        try:
            submit(resolved, harvest_id=harvest_id, payer=key, record=taken)
        except RecordLost:
            raise running_elsewhere() from None
        return harvest_id


class ReadHarvest(HarvestConsumer):
    """Answers a harvest, with `wait` when it changes (C-488 to C-492)."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Answer at once, or wait for another status."""
        harvest_id, seconds = self.harvest_id, self._wait()
        seen = await self.see(harvest_id, key)
        if seconds == 0 or seen.harvest.has_ended:
            await self.show(shape_of(seen))
            return
        async with contextlib.AsyncExitStack() as held:
            if not await self._take_place(held, key):
                await self.show(shape_of(seen), HTTPStatus.OK, *DECLINED)
                return
            seen = await self._changed(seen, key, seconds)
        await self.show(shape_of(seen))

    def _wait(self) -> float:
        """Read `wait` (C-489, U-36).

        Raises:
            Failure: 400 on `wait`.
        """
        query = cast("bytes", self.scope.get("query_string", b"")).decode("latin-1")
        given = parse_qs(query, keep_blank_values=True).get("wait")
        if given is None:
            return 0.0
        most = settings.BASALT.longpoll_seconds
        if len(given) == 1 and _SECONDS.fullmatch(given[0]) and float(given[0]) <= most:
            return float(given[0])
        raise invalid(
            "wait", f"Invalid value for 'wait': expected one number of seconds from 0 to {most:g}."
        )

    async def _take_place(self, held: contextlib.AsyncExitStack, key: KeyState) -> bool:
        """Take a place among the reads that wait; without Valkey there is none."""
        try:
            place = places().of_wait(str(key.key_id), uuid4().hex)
            return await held.enter_async_context(place)
        except LOST as lost:
            log.warning("a wait is declined: Valkey cannot be reached", cause=str(lost))
            return False

    async def _changed(self, before: Standing, key: KeyState, seconds: float) -> Standing:
        """Return the harvest once its status differs, or as it is after so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            left = until - loop.time()
            await asyncio.sleep(max(0.0, min(LOOK_SECONDS, left)))
            seen = await self.see(before.harvest.id, key)
            if seen.status != before.status or loop.time() >= until:
                return seen


class CancelHarvest(HarvestConsumer):
    """Cancels a harvest."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Cancel it, and answer with what it paid as soon as that is written (C-509 to C-511)."""
        harvest_id = self.harvest_id
        await in_database(cancel, harvest_id=harvest_id, user_id=key.user_id)
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_SECONDS
        while (seen := await self.see(harvest_id, key)).settles and loop.time() < until:
            await asyncio.sleep(LOOK_SECONDS / 2)
        await self.show(shape_of(seen))


class ReadHarvestProgress(HarvestConsumer):
    """Answers how far a harvest is; an addition to the contract."""

    async def answer(self, body: bytes, key: KeyState) -> None:
        """Answer at once."""
        await self.show(progress_of(await self.see(self.harvest_id, key)))
