"""Harvests as their Users read them; every one is found through its owner."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.conf import settings

from completions.kept_failures import restored
from harvests.files import Links
from harvests.models import Harvest, HarvestRun, Stage
from harvests.refusals import harvest_not_found
from inference.harvest.layout import MANIFEST, STATISTICS, shard_name
from jobs.states import WorkState

STATUSES = {
    WorkState.QUEUED: "pending",
    WorkState.RUNNING: "running",
    WorkState.DONE: "done",
    WorkState.FAILED: "failed",
    WorkState.CANCELLED: "cancelled",
}
"""The contract's words (C-482)."""


@dataclass(frozen=True)
class Standing:
    """A harvest at one moment, with its run where there is one."""

    harvest: Harvest
    run: HarvestRun | None

    @property
    def status(self) -> str:
        """The contract's word for its state."""
        return STATUSES[WorkState(self.harvest.state)]

    @property
    def settles(self) -> bool:
        """Whether it was cancelled, and its runner has not written yet what it paid."""
        return self.harvest.state == WorkState.CANCELLED and self.harvest.owner is not None

    @property
    def started_at(self) -> datetime | None:
        """When its run started (C-484)."""
        return self.run.started_at if self.run is not None else None

    @property
    def error(self) -> str:
        """Why it failed, as a text (C-481)."""
        return restored(self.harvest.error).message

    @property
    def result(self) -> "Result | None":
        """What it wrote, when it is done."""
        run = self.run
        if self.harvest.state != WorkState.DONE or run is None or run.stage != Stage.DONE:
            return None
        expires = int(time.time()) + settings.BASALT.harvest_link_seconds
        return Result(run, Links(self.harvest.id, run.folder, expires))


@dataclass(frozen=True)
class Result:
    """The files of a harvest, with new links (C-496)."""

    run: HarvestRun
    links: Links

    @property
    def manifest_url(self) -> str:
        """Link to the manifest."""
        return self.links.to(MANIFEST)

    @property
    def stats_url(self) -> str:
        """Link to the statistics."""
        return self.links.to(STATISTICS)

    @property
    def shard_urls(self) -> list[str]:
        """Links to the shards, in order."""
        return [self.links.to(shard_name(number)) for number in range(self.run.n_shards or 0)]

    @property
    def expire_at(self) -> datetime:
        """When the links stop working."""
        return datetime.fromtimestamp(self.links.expires, UTC)


def standing(*, harvest_id: UUID, user_id: UUID) -> Standing:
    """Read a harvest of a User.

    Raises:
        Failure: 404 `harvest_job_not_found`.
    """
    harvest = Harvest.objects.filter(id=harvest_id, user_id=user_id).select_related("run").first()
    if harvest is None:
        raise harvest_not_found()
    return Standing(harvest, getattr(harvest, "run", None))
