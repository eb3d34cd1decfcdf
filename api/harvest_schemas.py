"""The shapes of the harvest routes' answers (C-480, C-481, C-493, C-494)."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from api.path_ids import UUID_PATTERN
from api.schemas import Shape

Id = Annotated[str, Field(pattern=UUID_PATTERN, json_schema_extra={"format": "uuid"})]


class HarvestTimings(Shape):
    """Seconds of a run's parts."""

    load_s: float
    forward_s: float
    save_s: float
    upload_s: float


class HarvestResult(Shape):
    """The files of a harvest that is done."""

    n_shards: int
    layer_indices: list[int]
    manifest_url: str
    shard_urls: list[str]
    stats_url: str
    contents: Literal["activations", "projections"]
    tokens: int
    bytes_written: int
    timings: HarvestTimings


class HarvestJob(Shape):
    """A harvest; what does not apply is left out of the answer, but for the times and `tokens`."""

    job_id: Id
    run_id: Id
    status: Literal["pending", "running", "done", "failed", "cancelled"]
    model: str
    n_prompts: int
    reserved_tokens: int
    layers: list[int]
    tokens: int | None
    created_at: str
    started_at: str | None
    completed_at: str | None
    result: HarvestResult | SkipJsonSchema[None] = None
    urls_expire_at: str | SkipJsonSchema[None] = None
    error: str | SkipJsonSchema[None] = None


class HarvestProgress(Shape):
    """How far the run of a harvest is; tokens and shards are 0 until it has begun to read."""

    job_id: Id
    status: Literal["pending", "running", "done", "failed", "cancelled"]
    stage: Literal["asked", "started", "done", "failed"] | None
    tokens_read: int
    tokens_total: int
    shards_written: int
    n_shards: int
    attempts: int
    seconds: float | None
    tokens_per_second: float | None
