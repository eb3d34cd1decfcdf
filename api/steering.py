"""`apply_steering_vectors` of a body: from JSON to the arrays that the engine takes (section 10).

Two steps. The pydantic models give each vector its form: names and types. `steering_of` then checks
what the fields of a vector say together. It counts the numbers before it converts or decompresses
any, so that what a request costs is bounded by what it may carry. Nothing here loops over single
numbers in Python: a body may hold 700,000.
"""

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from typing import Annotated, Literal, Protocol

import numpy as np
import zstandard
from django.conf import settings
from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    Tag,
)

from api.fields import Fields
from api.numbers import Integer
from completions.failures import Failure, invalid
from completions.reads import STEER, check_steering_numbers, steering_numbers
from inference.engine.messages import Steering

Dtype = Literal["float32", "bfloat16"]
DTYPES: dict[tuple[str, str], Dtype] = {
    ("int16", "torch.bfloat16"): "bfloat16",
    ("float32", "torch.float32"): "float32",
}
"""`dtype` and `original_dtype` of an encoded tensor, and what its bytes are (C-263)."""
ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
LARGEST = 3.4028235e38
"""JSON numbers lie from minus this to this (C-266); it rounds to the largest float32."""
EXPONENT = 0x7F80
"""The exponent bits of a bfloat16; all set, it is not finite."""

ROWS, TENSOR = "(rows)", "(tensor)"
"""The two forms of `activations`; no part of the path of a place in the body."""


def _form(value: object) -> str | None:
    if isinstance(value, dict):
        return TENSOR
    return ROWS if isinstance(value, list) else None


Size = Annotated[Integer, Field(ge=1, le=settings.BASALT.max_steering_numbers)]
Index = Annotated[Integer, Field(ge=0)]


class SteeringTensor(Fields):
    """An encoded tensor (C-262)."""

    data: str
    dtype: str
    original_dtype: str
    shape: Annotated[list[Size], Field(fail_fast=True)]
    compression: Literal["zstd"]


NumberRows = list[list[float]] | list[list[list[float]]]
Rows = Annotated[list[object], PlainValidator(lambda rows: rows, json_schema_input_type=NumberRows)]


class SteeringVector(Fields):
    """One item of `apply_steering_vectors` (C-259)."""

    activations: Annotated[
        Annotated[SteeringTensor, Tag(TENSOR)] | Annotated[Rows, Tag(ROWS)],
        Discriminator(
            _form, custom_error_type="activations_type", custom_error_message="not a form"
        ),
    ]
    layer_indices: Annotated[list[Index], Field(fail_fast=True)]
    scale: float | None = None
    norm_match: bool | None = None
    position_indices: Annotated[list[Index], Field(fail_fast=True)] | None = None
    position_spans: (
        Annotated[
            list[Annotated[list[Index], Field(min_length=2, max_length=2)]],
            Field(min_length=1, fail_fast=True),
        ]
        | None
    ) = None


class Numbers(Protocol):
    """The numbers of one vector before they are read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[layers, hidden]`, or `[layers, positions, hidden]`."""

    def read(self) -> tuple[bytes, Dtype]:
        """Return the little-endian bytes in C order and their dtype; raises Failure."""


def steering_of(vectors: Sequence[SteeringVector]) -> tuple[Steering, ...]:
    """Return the vectors of a body as the engine takes them.

    Raises:
        Failure: 400 on `apply_steering_vectors` for what fits no model (C-268 to C-281).
    """
    opened = [_open(vector, f"{STEER}[{number}]") for number, vector in enumerate(vectors)]
    check_steering_numbers(
        sum(steering_numbers(numbers.shape, positions) for numbers, positions in opened)
    )
    return tuple(
        _steering(vector, numbers, positions)
        for vector, (numbers, positions) in zip(vectors, opened, strict=True)
    )


def _open(vector: SteeringVector, place: str) -> tuple[Numbers, tuple[int, ...] | None]:
    """Check everything about a vector but its numbers; returns them with its positions."""
    layers, held = vector.layer_indices, f"{place}.activations"
    numbers: Numbers = (
        EncodedNumbers.check(vector.activations, held)
        if isinstance(vector.activations, SteeringTensor)
        else JsonNumbers.check(vector.activations, held)
    )
    if not layers:
        raise refused(f"{place}.layer_indices names no Layer: list at least one.")
    if len(set(layers)) < len(layers):
        raise refused(f"{place}.layer_indices names a Layer twice: list each Layer once.")
    if numbers.shape[0] != len(layers):
        raise refused("activations needs one row for each layer in layer_indices.")
    if min(numbers.shape) < 1:
        raise refused(f"{held} holds no numbers: its shape is {list(numbers.shape)}.")
    return numbers, _positions(vector, numbers.shape, place)


def _steering(
    vector: SteeringVector, numbers: Numbers, positions: tuple[int, ...] | None
) -> Steering:
    data, dtype = numbers.read()
    return Steering(
        layers=tuple(vector.layer_indices),
        data=data,
        dtype=dtype,
        shape=numbers.shape,
        scale=1.0 if vector.scale is None else vector.scale,
        norm_match=bool(vector.norm_match),
        positions=positions,
    )


def refused(message: str) -> Failure:
    """A vector that cannot be taken."""
    return invalid(STEER, message)


# Positions


def _positions(
    vector: SteeringVector, shape: tuple[int, ...], place: str
) -> tuple[int, ...] | None:
    """Return the positions that a vector goes to; None is every position (C-277 to C-283)."""
    indices, spans = vector.position_indices, vector.position_spans
    count = shape[1] if len(shape) == 3 else None
    if spans is not None:
        if indices is not None:
            raise refused(f"{place} takes position_indices or position_spans, not both.")
        if count is not None:
            raise refused(
                f"{place}.position_spans is for one vector for each Layer: with a list of vectors "
                "for each Layer, set position_indices."
            )
        return _span_positions(spans, f"{place}.position_spans")
    if indices is None:
        return None if count is None else tuple(range(count))
    if count is None:
        raise refused(
            f"{place}.position_indices needs a list of vectors for each Layer, one for each "
            "position. To add one vector at several positions, set position_spans."
        )
    if len(indices) != count:
        raise refused(
            f"{place}.position_indices has {len(indices)} positions, but each row of activations "
            f"has {count} vectors."
        )
    return tuple(indices)


def _span_positions(spans: list[list[int]], place: str) -> tuple[int, ...]:
    """Return the positions `start` to `end - 1` of each span, ascending (C-280, C-281)."""
    ordered = sorted(spans)
    for start, end in ordered:
        if end <= start:
            raise refused(f"{place} has [{start}, {end}]: a span's end must be after its start.")
    for (start, end), (next_start, next_end) in pairwise(ordered):
        if next_start < end:
            raise refused(f"{place} has [{start}, {end}] and [{next_start}, {next_end}]: overlap.")
    most, count = settings.BASALT.max_steered_positions, sum(end - start for start, end in spans)
    if count > most:
        raise refused(f"{place} covers {count} positions: at most {most} are taken.")
    return tuple(chain.from_iterable(range(start, end) for start, end in ordered))


# JSON numbers


@dataclass(frozen=True)
class JsonNumbers:
    """Rows of JSON numbers, all of one length."""

    place: str
    shape: tuple[int, ...]
    vectors: list[list[object]]
    """The innermost lists, in C order."""

    @classmethod
    def check(cls, rows: list[object], place: str) -> "JsonNumbers":
        """Find the shape of the rows; raises Failure where they have none (C-261, C-272)."""
        vectors = _lists(rows, place)
        if not (vectors and vectors[0] and isinstance(vectors[0][0], list)):
            return cls(place, (len(vectors), _length(vectors, place)), vectors)
        count = _length(vectors, place)
        inner = [_lists(row, f"{place}[{number}]") for number, row in enumerate(vectors)]
        flat = list(chain.from_iterable(inner))
        return cls(place, (len(vectors), count, _length(flat, place)), flat)

    def read(self) -> tuple[bytes, Dtype]:
        """Return float32 bytes; raises Failure for what is no float32 (C-266, C-275)."""
        if not set(map(type, self._flat())) <= {int, float}:
            found = next(at for at, it in enumerate(self._flat()) if type(it) not in (int, float))
            raise refused(f"Invalid type for '{self._at(found)}': expected a number.")
        try:
            numbers = np.fromiter(self._flat(), np.float64, prod(self.shape))
        except OverflowError:
            raise self._too_large() from None
        if np.abs(numbers).max() > LARGEST:
            raise self._too_large()
        return numbers.astype("<f4").tobytes(), "float32"

    def _flat(self) -> Iterator[object]:
        return chain.from_iterable(self.vectors)

    def _too_large(self) -> Failure:
        found = next(
            at
            for at, number in enumerate(self._flat())
            if isinstance(number, int | float) and abs(number) > LARGEST
        )
        return refused(
            f"Invalid value for '{self._at(found)}': expected a number from -3.4028235e+38 to "
            "3.4028235e+38."
        )

    def _at(self, flat: int) -> str:
        """Return the place in the body of a number by its place in C order."""
        return self.place + "".join(f"[{at}]" for at in np.unravel_index(flat, self.shape))


def _lists(items: list[object], place: str) -> list[list[object]]:
    """Return the items, all of which must be lists."""
    lists = [item for item in items if isinstance(item, list)]
    if len(lists) < len(items):
        found = next(at for at, item in enumerate(items) if not isinstance(item, list))
        raise refused(f"Invalid type for '{place}[{found}]': expected a list.")
    return lists


def _length(lists: list[list[object]], place: str) -> int:
    """Return the one length of the lists."""
    lengths = sorted(set(map(len, lists)))
    if len(lengths) > 1:
        raise refused(
            f"The rows of {place} differ in length: one has {lengths[0]} items, another "
            f"{lengths[-1]}."
        )
    return lengths[0] if lengths else 0


# Encoded tensors


@dataclass(frozen=True)
class EncodedNumbers:
    """An encoded tensor whose stated shape and kind are in order."""

    place: str
    shape: tuple[int, ...]
    dtype: Dtype
    data: str

    @classmethod
    def check(cls, tensor: SteeringTensor, place: str) -> "EncodedNumbers":
        """Check what the tensor says of itself; raises Failure (C-263, C-275)."""
        dtype = DTYPES.get((tensor.dtype, tensor.original_dtype))
        if dtype is None:
            raise refused(
                f"{place} needs dtype int16 with original_dtype torch.bfloat16, or float32 with "
                "torch.float32."
            )
        if len(tensor.shape) not in (2, 3):
            raise refused(
                f"{place}.shape must be [layers, hidden] or [layers, positions, hidden], not a "
                f"list of {len(tensor.shape)}."
            )
        return cls(place, tuple(tensor.shape), dtype, tensor.data)

    def read(self) -> tuple[bytes, Dtype]:
        """Return the tensor's own bytes; raises Failure unless they are what it says (C-264 f)."""
        data = self._decompressed(self._frame())
        if self.dtype == "bfloat16":
            bits = np.frombuffer(data, "<u2")
            finite = bool(((bits & EXPONENT) != EXPONENT).all())
        else:
            finite = bool(np.isfinite(np.frombuffer(data, "<f4")).all())
        if not finite:
            raise refused(f"{self.place} has a number that is not finite.")
        return data, self.dtype

    def _frame(self) -> bytes:
        try:
            return binascii.a2b_base64(self.data, strict_mode=True)
        except ValueError:
            raise refused(f"{self.place}.data is not base64.") from None

    def _decompressed(self, frame: bytes) -> bytes:
        """Return the bytes of the one frame; what it holds is known before it is opened."""
        size = prod(self.shape) * ITEM_BYTES[self.dtype]
        try:
            stated = zstandard.frame_content_size(frame)
            if stated == size:
                return zstandard.ZstdDecompressor().decompress(
                    frame, max_output_size=size, allow_extra_data=False
                )
        except zstandard.ZstdError:
            raise refused(f"{self.place}.data is not one zstd frame.") from None
        if stated < 0:
            raise refused(
                f"{self.place}.data is a zstd frame that does not state its content size."
            )
        raise refused(
            f"{self.place}.data holds {stated} bytes, but the shape {list(self.shape)} of "
            f"{self.dtype} needs {size}."
        )
