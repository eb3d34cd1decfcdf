"""Saved Steering vectors: saved, renamed, deleted, and written as a file."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count, Sum
from safetensors.numpy import save as write_safetensors

from accounts.models import User
from completions.failures import Failure, invalid
from completions.reads import check_layers
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry
from inference.engine.messages import Steering
from vectors.models import NAME_LENGTH, ORIGIN_LENGTH, Origin, SavedVector

TENSOR = "vector"
"""The name of the one tensor in a downloaded file."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a User has saved, and how much a User may save."""

    vectors: int
    size: int
    """Bytes of the numbers."""
    most_vectors: int
    most_size: int


def save(
    *,
    user_id: UUID,
    name: str,
    model: ModelEntry,
    steering: Steering,
    origin: Origin,
    origin_name: str = "",
) -> SavedVector:
    """Save a vector under a name, as float32; bfloat16 widens exactly.

    Raises:
        Failure: 400 for a name that cannot be, for a vector that does not fit the model or has
            several rows for a Layer; 409 for a name that the User has given already, whatever the
            letter case, and for one vector or byte more than a User may save.
    """
    called = check_name(name)
    check_layers(CompletionRequest(prompts=("",), steering=(steering,)), model)
    if len(steering.shape) != 2:
        raise invalid(
            "vector",
            "A saved vector has one row for each Layer: this one has a row for each position.",
        )
    numbers = float32_bytes(steering)
    vector = SavedVector(
        user_id=user_id,
        name=called,
        model=model.id,
        layers=list(steering.layers),
        width=steering.shape[1],
        numbers=numbers,
        digest=hashlib.sha256(numbers).hexdigest(),
        scale=steering.scale,
        norm_match=steering.norm_match,
        spans=_spans(steering.positions),
        origin=origin,
        origin_name=origin_name[:ORIGIN_LENGTH],
    )
    with _names_are_unique(called), transaction.atomic():
        # The User's row is the lock: of two saves at once the second sees the first.
        User.objects.select_for_update(no_key=True).get(id=user_id)
        _check_room(user_id, len(numbers))
        vector.save(force_insert=True)
    return vector


def rename(*, vector: SavedVector, name: str) -> None:
    """Give a saved vector another name.

    Raises:
        Failure: 400 or 409, as `save` does.
    """
    called = check_name(name)
    with _names_are_unique(called), transaction.atomic():
        SavedVector.objects.filter(id=vector.id).update(name=called)


def room(user_id: UUID) -> Room:
    """Return how much a User has saved and may save."""
    found = SavedVector.objects.of(user_id).aggregate(vectors=Count("id"), size=Sum("size"))
    env = settings.BASALT
    return Room(
        vectors=found["vectors"],
        size=found["size"] or 0,
        most_vectors=env.max_saved_vectors,
        most_size=env.max_saved_vector_bytes,
    )


def check_name(name: str) -> str:
    """Return a name without the spaces around it.

    Raises:
        Failure: 400 unless it has 1 to `NAME_LENGTH` characters.
    """
    called = name.strip()
    if not 1 <= len(called) <= NAME_LENGTH:
        raise invalid("name", f"Name: 1 to {NAME_LENGTH} characters.")
    return called


def float32_bytes(steering: Steering) -> bytes:
    """Return the numbers of a vector as little-endian float32; bfloat16 widens exactly."""
    if steering.dtype == "float32":
        return steering.data
    return (np.frombuffer(steering.data, "<u2").astype("<u4") << 16).tobytes()


def safetensors_file(vector: SavedVector) -> bytes:
    """Return a safetensors file: the tensor `vector`, `[layers, width]` in float32.

    Its metadata has what belongs to the numbers: name, model, Layers, scale, `norm_match`,
    positions, where they came from, and the digest.
    """
    rows = np.frombuffer(bytes(vector.numbers), "<f4").reshape(len(vector.layers), vector.width)
    about = {
        "name": vector.name,
        "model": vector.model,
        "layer_indices": json.dumps(vector.layers),
        "scale": json.dumps(vector.scale),
        "norm_match": json.dumps(vector.norm_match),
        "position_spans": json.dumps(vector.spans),
        "origin": f"{vector.origin} {vector.origin_name}".strip(),
        "sha256": vector.digest,
    }
    return write_safetensors({TENSOR: rows}, metadata=about)


def _spans(positions: tuple[int, ...] | None) -> list[list[int]] | None:
    """Write ascending positions as spans, as few as can be."""
    if positions is None:
        return None
    spans: list[list[int]] = []
    for position in positions:
        if spans and spans[-1][1] == position:
            spans[-1][1] = position + 1
        else:
            spans.append([position, position + 1])
    return spans


@contextmanager
def _names_are_unique(name: str) -> Iterator[None]:
    """Tell of the one constraint that a checked vector can break."""
    try:
        yield
    except IntegrityError:
        message = f"You have a saved vector named {name}: choose another name."
        raise Failure(409, message, param="name") from None


def _check_room(user_id: UUID, size: int) -> None:
    """Refuse one vector or one byte more than a User may save."""
    now = room(user_id)
    if now.vectors >= now.most_vectors:
        raise Failure(
            409,
            f"You have {now.vectors} saved vectors, the most that a User may have. Delete one "
            "to save another.",
        )
    if now.size + size > now.most_size:
        raise Failure(
            409,
            f"Your saved vectors may have {now.most_size:,} bytes in all: {now.size:,} are used, "
            f"and this one has {size:,}. Delete others to save it.",
        )
