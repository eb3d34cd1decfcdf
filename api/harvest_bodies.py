"""The body of `POST /v1/harvest`: its fields, and the contract's messages (C-452 to C-468).

Texts and numbers are checked by functions that run in C, however many there are: a body may have
50 MiB.
"""

import binascii
import re
from typing import Annotated, Literal

import numpy as np
from django.conf import settings
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from api.bodies import Text, TextInput, checked
from api.fields import Fields
from api.numbers import Integer, whole
from completions.failures import NUL_MESSAGE, SURROGATE_MESSAGE, Failure, invalid
from harvests.asked import HarvestAsked
from inference.harvest.request import MAX_DIRECTIONS, HarvestInvalid, Projection

LIMITS = settings.BASALT
PROJECT = "project_onto"
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
WHITE_SPACE = {ord(each): None for each in " \t\r\n"}
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
DEFAULT_SHARD_SIZE = 32


def _prompts(value: object) -> tuple[str, ...]:
    """Return the prompts; token ids are refused, and so is too much text (C-453 to C-455)."""
    if not isinstance(value, list):
        raise PydanticCustomError("prompts", "Invalid type for 'prompts': expected a list.")
    if not 1 <= len(value) <= LIMITS.max_harvest_prompts:
        raise PydanticCustomError(
            "prompts",
            f"Invalid value for 'prompts': expected 1 to {LIMITS.max_harvest_prompts} texts, not"
            f" {len(value)}.",
        )
    texts = tuple(text for text in value if isinstance(text, str))
    if len(texts) < len(value):
        found = next(at for at, text in enumerate(value) if not isinstance(text, str))
        raise PydanticCustomError(
            "prompts", f"Invalid type for 'prompts[{found}]': expected a string."
        )
    if not all(texts):
        raise PydanticCustomError(
            "prompts",
            f"Invalid value for 'prompts[{texts.index('')}]': expected at least 1 character.",
        )
    tokens = sum(map(len, texts)) / 4
    if tokens > LIMITS.max_harvest_tokens:
        raise PydanticCustomError(
            "prompts",
            f"The prompts have about {tokens:,.0f} tokens (characters / 4), more than"
            f" {LIMITS.max_harvest_tokens:,}: harvest them in several parts.",
        )
    if any("\0" in text for text in texts):
        raise PydanticCustomError("prompts", NUL_MESSAGE)
    return texts


def _layers(value: object) -> tuple[int, ...] | None:
    """Return the Layers, ascending and each once; empty for all, None when left out (C-456)."""
    if value is None:
        return None
    if value == "all":
        return ()
    if not isinstance(value, list):
        raise PydanticCustomError(
            "layers", "Invalid type for 'layers': expected \"all\" or a list of integers."
        )
    most, highest = LIMITS.max_harvest_layers, LIMITS.max_harvest_layer
    if not 1 <= len(value) <= most:
        raise PydanticCustomError(
            "layers", f"Invalid value for 'layers': expected 1 to {most} Layers, not {len(value)}."
        )
    layers = [number for number in map(whole, value) if type(number) is int]
    if len(layers) < len(value):
        raise PydanticCustomError(
            "layers", "Invalid type for 'layers': expected \"all\" or a list of integers."
        )
    if min(layers) < 0 or max(layers) > highest:
        worst = min(layers) if min(layers) < 0 else max(layers)
        raise PydanticCustomError(
            "layers",
            f"Invalid value for 'layers[{layers.index(worst)}]': expected a value from 0 to"
            f" {highest}.",
        )
    return tuple(sorted(set(layers)))


PromptsInput = Annotated[
    list[Annotated[TextInput, Field(min_length=1)]],
    Field(min_length=1, max_length=LIMITS.max_harvest_prompts),
]
LayersInput = (
    Literal["all"]
    | Annotated[
        list[Annotated[int, Field(ge=0, le=LIMITS.max_harvest_layer)]],
        Field(min_length=1, max_length=LIMITS.max_harvest_layers),
    ]
)


def _shape(value: object) -> tuple[int, int]:
    """Return `[directions, hidden size]` (C-463)."""
    numbers = [whole(each) for each in value] if isinstance(value, list) else []
    if len(numbers) != 2 or any(type(each) is not int for each in numbers):
        raise PydanticCustomError(
            "shape", f"Invalid type for '{PROJECT}.shape': expected [directions, hidden size]."
        )
    directions, width = (each for each in numbers if isinstance(each, int))
    if not 1 <= directions <= MAX_DIRECTIONS or width < 1:
        raise PydanticCustomError(
            "shape",
            f"Invalid value for '{PROJECT}.shape': expected 1 to {MAX_DIRECTIONS} directions of at"
            " least 1 number each.",
        )
    return directions, width


ShapeInput = tuple[Annotated[int, Field(ge=1, le=MAX_DIRECTIONS)], Annotated[int, Field(ge=1)]]


class ProjectionPayload(Fields):
    """`project_onto` (C-462, C-463)."""

    data: str
    dtype: Literal["float32", "float16", "bfloat16"]
    shape: Annotated[tuple[int, int], PlainValidator(_shape, json_schema_input_type=ShapeInput)]
    compression: Literal["none"] | None = None


class HarvestPayload(Fields):
    """The fields of `POST /v1/harvest` (C-452)."""

    model: Text
    prompts: Annotated[
        tuple[str, ...], PlainValidator(_prompts, json_schema_input_type=PromptsInput)
    ]
    layers: Annotated[
        tuple[int, ...] | None, PlainValidator(_layers, json_schema_input_type=LayersInput)
    ] = None
    shard_size: Annotated[Integer, Field(ge=1, le=LIMITS.max_shard_size)] | None = None
    batch_size: Annotated[Integer, Field(ge=1, le=LIMITS.max_harvest_batch_size)] | None = None
    add_special_tokens: bool | None = None
    project_onto: ProjectionPayload | None = None


def harvest_asked(value: object) -> HarvestAsked:
    """Check the JSON value of a body; a large one in a thread.

    Raises:
        Failure: 400 `invalid_request` on the first field at fault.
    """
    body = checked(HarvestPayload, value)
    directions = _directions(body.project_onto) if body.project_onto is not None else None
    return HarvestAsked(
        model=body.model,
        prompts=body.prompts,
        prompt_bytes=_bytes(body.prompts),
        layers=body.layers,
        shard_size=body.shard_size or DEFAULT_SHARD_SIZE,
        batch_size=body.batch_size,
        add_special_tokens=body.add_special_tokens is not False,
        directions=b"" if directions is None else directions.astype("<f4").tobytes(),
        n_directions=0 if directions is None else len(directions),
    )


def _bytes(prompts: tuple[str, ...]) -> int:
    """Count UTF-8 bytes; half of a surrogate pair has none (C-454)."""
    try:
        return sum(map(len, map(str.encode, prompts)))
    except UnicodeEncodeError:
        raise invalid("prompts", SURROGATE_MESSAGE) from None


def _directions(payload: ProjectionPayload) -> np.ndarray:
    """Read the numbers of a projection, float32 `[directions, hidden]` (C-464 to C-468)."""
    text = payload.data.translate(WHITE_SPACE)
    if len(text) % 4 or not BASE64.fullmatch(text):
        raise _refused(".data is not valid base64.")
    data = binascii.a2b_base64(text)
    directions, width = payload.shape
    needed = directions * width * ITEM_BYTES[payload.dtype]
    if len(data) != needed:
        raise _refused(
            f".data is {len(data)} bytes; the shape {directions} × {width} of {payload.dtype} needs"
            f" {needed}."
        )
    if payload.dtype == "bfloat16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, "<f4" if payload.dtype == "float32" else "<f2")
    shaped = numbers.astype(np.float32).reshape(directions, width)
    try:
        Projection.check(shaped)
    except HarvestInvalid as fault:
        raise _refused(f" {fault}") from None
    return shaped


def _refused(words: str) -> Failure:
    return invalid(PROJECT, f"{PROJECT}{words}")
