"""The settings of what may be asked for: Completions, Looms, background work and harvests.

A part of `config.environment`, which reads and checks them.
"""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(ge=1)]


class WorkSettings(BaseSettings):
    """How much, how many and how long."""

    # Caps of a Completion.
    max_output_tokens: Count = Field(
        32_000, description="Generated tokens of one request (C-147, C-180)"
    )
    deadline_max_tokens: Count = Field(
        15_600, description="`max_tokens` without a stream (C-298, C-299)"
    )
    max_choices: Count = Field(128, description="Prompts times `n` (C-179)")
    max_stop_texts: Count = Field(4, description="Stop texts (C-159)")
    max_logprobs: Count = Field(100, description="`logprobs` and `prompt_logprobs` (C-157, C-158)")
    full_vocab_max_prompt_tokens: Count = Field(
        256, description="Prompt tokens with `prompt_logprobs: -1` (C-183)"
    )
    full_vocab_max_prompt_tokens_read: Count = Field(
        16, description="The same with `output_residual_stream` (C-183)"
    )
    max_capture_numbers: Count = Field(2**25, description="Numbers of one capture (C-186)")
    max_steering_vectors: Count = Field(8, description="Steering vectors of a request (C-189)")
    max_steering_numbers: Count = Field(
        2**21, description="Numbers of a request's steering vectors in all (C-189)"
    )
    max_steered_positions: Count = Field(
        4096, description="Positions in the spans of one steering vector (C-280)"
    )

    # Looms.
    max_loom_nodes: Count = Field(2000, description="Nodes of a Loom (C-550)")
    max_listed_looms: Count = Field(100, description="Looms in the list (C-534)")
    max_branch_nodes: Count = Field(8, description="`n` of a Branch (C-544)")
    max_branch_tokens: Count = Field(1000, description="`max_tokens` of a Branch (C-544)")
    loom_stream_seconds: Seconds = Field(
        0.25,
        description="Seconds between two saves of a growing Node, and two reads (C-555, C-556)",
    )
    loom_keep_deleted_seconds: Seconds = Field(
        14 * 86_400.0,
        description="Seconds for which deleted Looms, Nodes and changes are kept (C-639)",
    )

    # Background work.
    max_running_nodes: Count = Field(8, description="Nodes that grow at once (C-554)")
    max_running_jobs: Count = Field(4, description="Jobs that run at once (C-445)")
    job_max_tokens: Count = Field(
        16, description="`max_tokens` of a Job that leaves it out (C-409)"
    )
    max_live_jobs_per_key: Count = Field(8, description="Jobs of a key that have not ended (C-415)")
    max_live_jobs_per_user: Count = Field(
        32, description="Jobs of a User that have not ended (C-415)"
    )
    max_live_jobs: Count = Field(128, description="Jobs of all that have not ended (C-415)")
    max_kept_jobs_per_user: Count = Field(
        100, description="Ended Jobs of a User with kept results (C-416)"
    )
    max_kept_jobs: Count = Field(1000, description="Ended Jobs of all with kept results (C-416)")
    job_result_seconds: Seconds = Field(
        30 * 86_400.0, description="Seconds for which the result of a Job is kept (C-637)"
    )
    run_stream_seconds: Seconds = Field(
        0.2, description="Seconds between two saves of a running Run, and two reads of who follows"
    )
    run_activations_seconds: Seconds = Field(
        7 * 86_400.0, description="Seconds for which what a Run read is kept (C-638)"
    )
    run_keep_deleted_seconds: Seconds = Field(
        14 * 86_400.0, description="Seconds after which a deleted Run is erased (C-639)"
    )
    max_saved_vectors: Count = Field(100, description="Saved Steering vectors of a User")
    max_saved_vector_bytes: Size = Field(
        64 * 2**20, description="Bytes of the numbers of a User's saved Steering vectors in all"
    )
    max_work_in_runner: Count = Field(
        64, description="Pieces of each kind of work that one runner has in hand"
    )
    max_losses: Annotated[int, Field(ge=0)] = Field(
        5, description="Processes that may die under a piece of work before it fails"
    )
    work_poll_seconds: Seconds = Field(
        1.0, description="Seconds between two looks of a runner for work that nobody rang for"
    )
    work_watch_seconds: Seconds = Field(
        0.5, description="Seconds between two looks of a runner at the work it has in hand"
    )

    # Harvests.
    max_harvest_prompts: Count = Field(4096, description="Prompts of a harvest (C-453)")
    max_harvest_tokens: Count = Field(
        2_000_000, description="Characters of a harvest's prompts, divided by four (C-455)"
    )
    max_harvest_layers: Count = Field(256, description="Layers listed by a harvest (C-456)")
    max_harvest_layer: Count = Field(512, description="Largest Layer that may be listed (C-456)")
    max_shard_size: Count = Field(4096, description="`shard_size` of a harvest (C-459)")
    max_harvest_batch_size: Count = Field(64, description="`batch_size` of a harvest (C-460)")
    harvests_per_month: Annotated[int, Field(ge=0)] = Field(
        200, description="Harvests of a key in a UTC month (C-472)"
    )
    max_small_harvests_per_user: Count = Field(
        3, description="Harvests of a User on small models, pending or running (C-474)"
    )
    max_large_harvests_per_user: Count = Field(
        1, description="Harvests of a User on large models, pending or running (C-475)"
    )
    max_large_harvests: Count = Field(
        2, description="Harvests of all Users on large models, pending or running (C-476)"
    )
    harvest_runs_per_model: Count = Field(
        1, description="Harvests that run at once on a model; as many as it has harvest workers"
    )
    harvest_idle_seconds: Seconds = Field(
        1200.0, description="Seconds for which a harvest worker stays up after a run (C-514)"
    )
    harvest_threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads of a harvest on the processor; all cores when 0"
    )
    harvest_batch_tokens: Count = Field(
        1024,
        description="Tokens of one forward pass of a harvest; a longer prompt is one by itself",
    )
    harvest_attempts: Count = Field(
        3, description="Workers that a harvest may lose before it fails"
    )
    harvest_link_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        604_800, description="Seconds for which a link to a file works (C-496)"
    )
    longpoll_seconds: Seconds = Field(60.0, description="`wait` at most (C-489)")
    max_longpolls_per_key: Count = Field(4, description="Waits of a key at once (C-490)")
    max_longpolls: Count = Field(8, description="Waits of all keys at once (C-490)")
