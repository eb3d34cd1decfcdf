"""What goes into the engine and what comes out of it.

These types are the border between the engine and the rest of the platform. They carry token
ids, never text that would still have to be tokenized, and they are settled before they get
here: every number is in range, every default is filled in. `msgspec` writes them to the event
wire as they are, so there is no second form of them.

Packed arrays are little-endian bytes in C order; their dtype is said beside each field.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    Buffer = bytes | memoryview
else:
    # An event is written and read as bytes. A large one that was read has views of a file.
    Buffer = bytes


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn (C-140, C-661 to C-663)."""

    temperature: float = 1.0
    """0 takes the likeliest token; otherwise the scores are divided by it."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 turns the filter off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """Choice `i` of each prompt draws with `seed + i`; without a seed no draw can be repeated."""


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """When a choice ends, besides `max_tokens` and the end of the context."""

    texts: tuple[str, ...] = ()
    """Looked for in the generated text alone; the earliest end wins, then the list's order."""
    token_ids: tuple[int, ...] = ()
    """Their text is dropped unless `include_text`; the id is the choice's `stop_reason`."""
    include_text: bool = False
    """Keep the matched stop text, or the text of the stop id, at the end of the choice."""
    min_tokens: int = 0
    """No end token, stop id or stop text counts before so many generated tokens."""
    ignore_end: bool = False
    """The model's end-of-text token does not end a choice."""


class Steering(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors that are added to the residual stream (section 10 of the contract).

    `data` has the shape `[layers, hidden]` (one vector for each Layer) or
    `[layers, positions, hidden]` (one vector for each Layer and listed position).
    """

    layers: tuple[int, ...]
    """Distinct decoder blocks; row `i` of `data` is added at the output of block `layers[i]`."""
    data: bytes
    dtype: Literal["float32", "bfloat16"]
    shape: tuple[int, ...]
    scale: float = 1.0
    norm_match: bool = False
    """Scale each vector to the norm of the unsteered stream at its token first (C-288)."""
    positions: tuple[int, ...] | None = None
    """Absolute positions in the sequence. None (two dimensions only) means every position; with
    two dimensions the Layer's vector goes to each listed position, with three dimensions vector
    `j` goes to `positions[j]`. A position listed twice is steered twice."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One Completion: every prompt times `n` choices, choice `i` of prompt `p` at `p * n + i`."""

    request_id: str
    cache_scope: str
    """Whose prefixes this request may share: a prefix cache never crosses it."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids, at least one prompt, each of at least one id inside the vocabulary."""
    max_tokens: int
    """Generated tokens for each choice. 0 is taken with `echo` and generates one (C-240)."""
    n: int = 1
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    """-1 is the whole vocabulary."""
    priority: int = 0
    """Lower runs first; equal ones in order of arrival (C-660)."""
    read_layers: tuple[int, ...] = ()
    """Distinct, ascending. Needs one prompt and `n` 1."""
    steering: tuple[Steering, ...] = ()
    user: str | None = None
    """Whom the client asks for, in its own words; changes nothing (C-161)."""


class PackedLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities of `rows` positions, packed as `[rows, width]`.

    Column 0 is the token that stands at the position; the others are the likeliest tokens in
    order of rank, without that one. So a row of `k` likeliest tokens has `k` or `k + 1` entries;
    an id of -1 (log probability minus infinity, rank 0) fills the shorter ones. The numbers are
    the log-softmax of the model's raw scores in float32, before penalties, filters, temperature.
    """

    rows: int
    width: int
    ids: Buffer
    """int32 `[rows, width]`."""
    logprobs: Buffer
    """float32 `[rows, width]`."""
    ranks: Buffer
    """int32 `[rows, width]`; 1 is the likeliest token."""


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """The residual stream that was read: `[layers, tokens, hidden]`, Layers ascending.

    Row `t` is the output of the decoder block at position `t`, before the final norm: every
    prompt token and every generated token but the last (C-245, C-249).
    """

    shape: tuple[int, int, int]
    dtype: Literal["float32", "bfloat16"]
    data: Buffer


class FailureCode(StrEnum):
    """Why a request failed; the API turns each into its error (section 3 of the contract)."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH = "context_length_exceeded"
    OUT_OF_MEMORY = "vllm_oom"
    ENGINE_DEAD = "vllm_engine_dead"
    UNREACHABLE = "upstream_unreachable"
    DEADLINE = "upstream_deadline"
    SERVER_ERROR = "upstream_server_error"
    RATE_LIMITED = "rate_limited"
    """A server that is not a worker of ours has too much to do, like the next three alone."""
    AUTH = "upstream_auth"
    """It did not take the credentials, or pointed elsewhere."""
    UPSTREAM_CONTEXT = "vllm_context_length"
    UPSTREAM_INVALID = "vllm_invalid_request"
    """It answered a 5xx that blames the request."""
    INCOMPLETE = "incomplete"
    """The answer broke off: an event is missing or the wire was lost."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """A worker has taken the request."""

    request_id: str
    seq: int
    """Events of a request are numbered from 0 without a gap."""
    worker_id: str


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What Inference calls the Completion, and when it was made (C-666)."""

    id: str
    created: int
    """Unix seconds."""


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """What one choice gained: tokens, and the text that can no longer change.

    Text that may still become part of a stop text is held back, and so is an unfinished
    character, so `text` may be empty while `token_ids` is not. Concatenated over a choice's
    events, every field equals what an answer without a stream has.

    Only what was generated is here: with `echo`, who asked puts the prompt's text before it. A
    request with `max_tokens` 0 gets one event for each choice, without token, text or logprobs.
    """

    request_id: str
    seq: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    given: Given | None = None
    """On the first delta of a request."""
    logprobs: PackedLogprobs | None = None
    """One row for each of `token_ids`, when the request asked."""
    prompt_logprobs: PackedLogprobs | None = None
    """On the first event of a choice, when the request asked (by `prompt_logprobs`, or by
    `logprobs` with `echo`): one row for each prompt token but the first."""
    finish_reason: str | None = None
    """Set on the choice's last event: `stop` or `length`; another server may add some (C-197)."""
    stop_reason: str | int | None = None


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """Every choice has ended. The last event of a request that succeeded."""

    request_id: str
    seq: int
    prompt_tokens: int
    """Each prompt once, whatever `n` is (C-200)."""
    completion_tokens: int
    residuals: Residuals | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The request ended without an answer. The last event of a request that did not succeed."""

    request_id: str
    seq: int
    code: FailureCode
    message: str
    param: str | None = None
    upstream_status: int | None = None
    """The HTTP status with which a server answered, where one did."""
    retry_after: str | None = None
    """Its `Retry-After`, as it stands."""
    retry_after_ms: str | None = None
    """Its `retry-after-ms`, as it stands."""


Event = Accepted | Delta | Finished | Failed
