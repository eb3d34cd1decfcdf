"""Steering vectors that a User saved: listed, saved, renamed, deleted, handed out as files."""

import re
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from django.http import Http404, HttpResponse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_POST, require_safe
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import Text, checked, completion_request
from api.json_body import read_json
from completions.admission import find_model
from pages.playground import shown
from pages.playground_runs import tells_faults
from pages.shell import AppRequest, signed_in
from pages.templatetags.numbers import full_time
from vectors import saved
from vectors.models import ORIGIN_LENGTH, Origin, SavedVector

NOT_IN_A_FILE_NAME = re.compile(r"[^\w.-]+")
ORIGINS = {
    Origin.FILE: "from the file {}",
    Origin.PASTED: "from pasted numbers",
    Origin.RUN: "from Run {}",
    Origin.SAVED: "from the saved vector {}",
}
"""Where a vector came from, in words."""


class NamePayload(BaseModel):
    """A new name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Text


class SavePayload(NamePayload):
    """A vector in the API's form, with its name, the model it is for, and where it came from."""

    model: Text
    vector: dict[str, object]
    origin: Literal["file", "pasted", "run", "saved"]
    origin_name: Annotated[Text, Field(max_length=ORIGIN_LENGTH)] = ""


class PageVector(msgspec.Struct, frozen=True, kw_only=True):
    """A saved vector as the panel lists it: everything but its numbers."""

    id: str
    name: str
    model: str
    layers: list[int]
    width: int
    scale: float
    norm_match: bool
    spans: list[list[int]] | None
    digest: str
    origin: str
    saved: str


@require_safe
@signed_in
def vectors(request: AppRequest) -> HttpResponse:
    """List the User's saved vectors by name, and how many more there is room for."""
    found = SavedVector.objects.of(request.user.id).listed()
    room = msgspec.to_builtins(saved.room(request.user.id))
    return shown({"vectors": [page_vector(vector) for vector in found], "room": room})


@require_POST
@signed_in
@tells_faults
def save(request: AppRequest) -> HttpResponse:
    """Save a vector, after the checks that a Run with it would pass."""
    payload = checked(SavePayload, read_json(request.body))
    body = {"prompt": "", "apply_steering_vectors": [payload.vector]}
    [steering] = completion_request(body).steering
    vector = saved.save(
        user_id=request.user.id,
        name=payload.name,
        model=find_model(payload.model),
        steering=steering,
        origin=Origin(payload.origin),
        origin_name=payload.origin_name,
    )
    return shown({"vector": page_vector(vector)})


@require_POST
@signed_in
@tells_faults
def rename(request: AppRequest, vector_id: UUID) -> HttpResponse:
    """Give a saved vector another name."""
    payload = checked(NamePayload, read_json(request.body))
    saved.rename(vector=own_vector(request, vector_id), name=payload.name)
    return shown({"vector": page_vector(own_vector(request, vector_id))})


@require_POST
@signed_in
def delete(request: AppRequest, vector_id: UUID) -> HttpResponse:
    """Delete a saved vector for good; what Runs sent of it stays with them."""
    own_vector(request, vector_id).delete()
    return shown(None)


@require_safe
@signed_in
def file(request: AppRequest, vector_id: UUID) -> HttpResponse:
    """Hand out a saved vector as a safetensors file with its settings in the metadata."""
    vector = own_vector(request, vector_id, numbers=True)
    answer = HttpResponse(saved.safetensors_file(vector), content_type="application/octet-stream")
    name = NOT_IN_A_FILE_NAME.sub("-", vector.name).strip("-.") or "vector"
    disposition = content_disposition_header(True, f"{name}.safetensors")
    answer.headers["Content-Disposition"] = disposition or "attachment"
    return answer


def own_vector(request: AppRequest, vector_id: UUID, *, numbers: bool = False) -> SavedVector:
    """Return a vector of the User, with its numbers or without; 404 for every other (A-127)."""
    found = SavedVector.objects.of(request.user.id).filter(id=vector_id)
    vector = (found if numbers else found.listed()).first()
    if vector is None:
        raise Http404("there is no such vector")
    return vector


def page_vector(vector: SavedVector) -> PageVector:
    """Write a vector as the panel lists it."""
    return PageVector(
        id=str(vector.id),
        name=vector.name,
        model=vector.model,
        layers=vector.layers,
        width=vector.width,
        scale=vector.scale,
        norm_match=vector.norm_match,
        spans=vector.spans,
        digest=vector.digest,
        origin=ORIGINS[Origin(vector.origin)].format(vector.origin_name),
        saved=full_time(vector.created_at),
    )
