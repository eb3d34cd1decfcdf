"""What a vLLM server answers, and its numbers as the packed arrays of the engine's messages."""

import base64
import binascii
from collections.abc import Sequence
from math import prod
from typing import Annotated, Literal

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from inference.backends.vllm_failures import ErrorObject, misfit
from inference.engine.messages import PackedLogprobs, Residuals

ID_PREFIX = "token_id:"
"""How `return_tokens_as_token_ids` begins a token."""
NULL = b"null"
NO_ID = -1
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


class TokenLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a choice: a row for each generated token, the token first."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class PromptEntry(msgspec.Struct, frozen=True):
    """One token of a prompt position."""

    logprob: float
    rank: int


class Choice(msgspec.Struct, frozen=True):
    """What one choice gained, or the whole choice."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    logprobs: TokenLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[msgspec.Raw] | None = None
    """Each position is read apart, because the whole of a large answer would not fit."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Usage(msgspec.Struct, frozen=True):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int


class Read(msgspec.Struct, frozen=True):
    """A read of the residual stream as vllm-lens writes it."""

    data: str
    dtype: str
    original_dtype: str
    shape: tuple[int, ...]
    compression: Literal["zstd"]


class Activations(msgspec.Struct, frozen=True):
    """`activations`."""

    residual_stream: Read | None = None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, or one event of a stream."""

    id: str | None = None
    created: int | None = None
    choices: list[Choice] = []
    usage: Usage | None = None
    activations: Activations | None = None
    error: ErrorObject | None = None


def read_answer(raw: "bytes | memoryview") -> Answer:
    """Read JSON.

    Raises:
        Broken: when it is not an answer.
    """
    try:
        return msgspec.json.decode(raw, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise misfit(f"it cannot be read ({wrong})") from None


def pack_generated(found: TokenLogprobs | None, token_ids: Sequence[int]) -> PackedLogprobs:
    """Pack the log probabilities of generated tokens.

    vLLM tells no ranks here. They follow from the order; a token outside of the likeliest gets
    the rank after them, which is the best that it can have.

    Raises:
        Broken: when a row is missing or is of another token.
    """
    if found is None or not (
        len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(token_ids)
    ):
        raise misfit("log probabilities are missing")
    rows: list[list[tuple[int, float, int]]] = []
    for token_id, logprob, named, top in zip(
        token_ids, found.token_logprobs, found.tokens, found.top_logprobs, strict=True
    ):
        if named != f"{ID_PREFIX}{token_id}":
            raise misfit(f"a log probability is of {named} instead of token {token_id}")
        others = [(_id_of(name), value) for name, value in top.items() if name != named]
        others.sort(key=lambda entry: -entry[1])
        rank = 1 + sum(value > logprob for _, value in others)
        ranked = [(i, value, place + (place >= rank)) for place, (i, value) in enumerate(others, 1)]
        rows.append([(token_id, logprob, rank), *ranked])
    return _packed(rows)


def _id_of(name: str) -> int:
    digits = name.removeprefix(ID_PREFIX)
    if digits == name or not digits.isdecimal():
        raise misfit(f"{name!r} is not a token's id")
    return int(digits)


def _packed(rows: list[list[tuple[int, float, int]]]) -> PackedLogprobs:
    width = max(map(len, rows), default=1)
    ids = np.full((len(rows), width), NO_ID, "<i4")
    logprobs = np.full((len(rows), width), -np.inf, "<f4")
    ranks = np.zeros((len(rows), width), "<i4")
    for place, row in enumerate(rows):
        ids[place, : len(row)] = [entry[0] for entry in row]
        logprobs[place, : len(row)] = [entry[1] for entry in row]
        ranks[place, : len(row)] = [entry[2] for entry in row]
    return PackedLogprobs(
        rows=len(rows),
        width=width,
        ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        ranks=ranks.tobytes(),
    )


_POSITION = msgspec.json.Decoder(dict[int, PromptEntry])


def pack_prompt(
    found: Sequence[msgspec.Raw] | None, prompt: Sequence[int], likeliest: int, vocab: int
) -> PackedLogprobs:
    """Pack the log probabilities of a prompt: a row for each token but the first.

    likeliest: how many were asked for, -1 for all `vocab` of them. It is for a thread.

    Raises:
        Broken: when a position is missing or does not have its own token.
    """
    if found is None or len(found) != len(prompt) or bytes(found[0]) != NULL:
        raise misfit("log probabilities of the prompt are missing")
    shape = (len(prompt) - 1, vocab if likeliest < 0 else likeliest + 1)
    ids = np.full(shape, NO_ID, "<i4")
    logprobs = np.full(shape, -np.inf, "<f4")
    ranks = np.zeros(shape, "<i4")
    for place, (token_id, raw) in enumerate(zip(prompt[1:], found[1:], strict=True)):
        try:
            position = _POSITION.decode(raw)
        except msgspec.DecodeError as wrong:
            raise misfit(f"log probabilities of the prompt cannot be read ({wrong})") from None
        own = position.pop(token_id, None)
        if own is None or len(position) >= shape[1] or len(position) < shape[1] - 2:
            raise misfit(f"log probabilities of prompt token {place + 1} are missing")
        entries = sorted(position.items(), key=lambda item: item[1].rank)
        row = [(token_id, own), *entries]
        ids[place, : len(row)] = [i for i, _ in row]
        logprobs[place, : len(row)] = [entry.logprob for _, entry in row]
        ranks[place, : len(row)] = [entry.rank for _, entry in row]
    return PackedLogprobs(
        rows=shape[0],
        width=shape[1],
        ids=_bytes_of(ids),
        logprobs=_bytes_of(logprobs),
        ranks=_bytes_of(ranks),
    )


def _bytes_of(array: NDArray[np.int32] | NDArray[np.float32]) -> memoryview:
    """Return the array's own bytes, which may be too many for a copy."""
    return array.reshape(-1).view(np.uint8).data


def read_residuals(
    activations: Activations | None, dtype: Literal["float32", "bfloat16"]
) -> Residuals | None:
    """Return a read of the residual stream, or None where there is none; for a thread.

    dtype: the model's, in which the numbers must be.

    Raises:
        Broken: when it is not an array of its stated shape and dtype.
    """
    found = activations.residual_stream if activations is not None else None
    if found is None:
        return None
    if found.original_dtype != f"torch.{dtype}" or len(found.shape) != 3:
        raise misfit(f"its activations are {found.original_dtype} {list(found.shape)}")
    size = prod(found.shape) * ITEM_BYTES[dtype]
    try:
        frame = base64.b64decode(found.data, validate=True)
        stated = zstandard.frame_content_size(frame)
        if stated not in (-1, size):
            raise misfit(f"its activations are {stated} bytes instead of {size}")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except (binascii.Error, zstandard.ZstdError) as wrong:
        raise misfit(f"its activations cannot be read ({wrong})") from None
    if len(data) != size:
        raise misfit(f"its activations are {len(data)} bytes instead of {size}")
    layers, tokens, hidden = found.shape
    return Residuals(shape=(layers, tokens, hidden), dtype=dtype, data=data)
