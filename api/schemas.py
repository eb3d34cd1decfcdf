"""The shapes of the API's answers: what the document says, and what the views return.

Every shape is closed (C-054). A Completion is written piece by piece elsewhere; its shape stands
here for the document.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from api.path_ids import UUID_PATTERN


class Shape(BaseModel):
    """A closed object."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ErrorObject(Shape):
    """`error` of an error answer (C-057)."""

    message: str
    type: Literal[
        "invalid_request_error",
        "rate_limit_error",
        "upstream_error",
        "service_unavailable",
        "internal_error",
    ]
    param: str | None
    code: str | None
    retryable: bool | SkipJsonSchema[None] = Field(
        None, description="Present on failures of the model server"
    )
    retry_after_seconds: int | SkipJsonSchema[None] = Field(
        None, description="Present with `retryable: true`"
    )
    upstream_status: int | SkipJsonSchema[None] = Field(
        None, description="The status of the model server, where it answered"
    )
    request_id: str | SkipJsonSchema[None] = Field(
        None, description="Present once an answer had started"
    )


class ErrorResponse(Shape):
    """The body of every error (C-056)."""

    error: ErrorObject
    request_id: str = Field(pattern=r"^[\w-]{1,64}$")


class Capabilities(Shape):
    """What requests to a model may ask for (C-120)."""

    max_model_len: int
    max_logprobs: int
    max_output_work_tokens: int
    max_inflight_per_key: int
    max_queued_per_key: int
    rate_limit_per_minute: int
    logprobs: bool
    prompt_logprobs: bool
    prompt_logprobs_full_vocab: bool
    full_vocab_max_prompt_tokens: int
    activations: bool
    max_steering_vectors: int
    max_activation_prompt_tokens: int
    n_layers: int
    hidden_size: int
    chat_template: None


class Model(Shape):
    """One served model (C-116)."""

    id: str
    object: Literal["model"]
    owned_by: Literal["acs"]
    served_model_name: str
    gpu_shape: str
    status: Literal["live"]
    default: bool
    capabilities: Capabilities


class ModelList(Shape):
    """The served models (C-115)."""

    object: Literal["list"]
    data: list[Model]


class BootStage(Shape):
    """A start that is under way (C-129 to C-131)."""

    stage: Literal["waiting_for_gpu", "container_started", "weights_loading", "weights_loaded"]
    stage_label: str
    stage_age_s: int


class ModelStatus(Shape):
    """Whether a model is warm (C-128)."""

    id: str
    object: Literal["model.status"]
    warm: bool
    boot: BootStage | None
    activation_boot: BootStage | None


class Logprobs(Shape):
    """Log probabilities of a choice's tokens (C-224)."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Shape):
    """One token at a position of the prompt (C-230)."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionUsage(Shape):
    """Tokens of a request (C-200)."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChunkChoice(Shape):
    """What one choice gained (C-667)."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class CompletionChoice(Shape):
    """One choice (C-195)."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str
    stop_reason: str | int | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None


class Tensor(Shape):
    """An array: base64 of one zstd frame of its bytes in C order (C-242 to C-245)."""

    data: str
    dtype: str
    original_dtype: str
    shape: list[int]
    compression: Literal["zstd"]


class Activations(Shape):
    """What was read of the residual stream (C-242)."""

    residual_stream: Tensor


class Completion(Shape):
    """An answer without a stream (C-193)."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    activations: Activations | SkipJsonSchema[None] = Field(
        None, description="Present with `output_residual_stream`"
    )


class CompletionChunk(Shape):
    """The data of one event of a stream (C-203, C-667)."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | SkipJsonSchema[None] = None
    activations: Activations | SkipJsonSchema[None] = None


class CompletionJob(Shape):
    """A Completion that was submitted to run in the background (C-419 to C-426)."""

    id: Annotated[str, Field(pattern=UUID_PATTERN, json_schema_extra={"format": "uuid"})]
    request_id: str
    model: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    cancel_requested: bool
    created_at: str
    started_at: str | None
    finished_at: str | None
    expires_at: str | None
    result_expired: bool
    status_url: str
    result_url: str
    usage_pending: bool


class DatabaseHealth(Shape):
    """Whether the database answered, and how quickly."""

    ok: bool
    latency_ms: int | None


class PoolHealth(Shape):
    """Whether somebody waits for a database connection."""

    saturated: bool


class RunnerHealth(Shape):
    """A process that does background work."""

    name: str
    running: int
    seconds_since_poll: int | None


class WrapperHealth(Shape):
    """The API itself (C-631)."""

    uptime_seconds: int
    database: DatabaseHealth
    db_pool: PoolHealth
    runners: list[RunnerHealth]


class Backend(Shape):
    """A model's traffic (C-632)."""

    model_id: str
    status: Literal["live"]
    gpu_shape: str
    breaker_state: Literal["closed", "open", "half_open"]
    breaker_consecutive_failures: int
    breaker_open_seconds: int | None
    in_flight: int


class Health(Shape):
    """The answer of `GET /health` (C-629)."""

    status: Literal["ok", "degraded", "down"]
    wrapper: WrapperHealth
    backends: list[Backend]
    degraded_backends: list[str]
    degraded_reasons: list[str]
