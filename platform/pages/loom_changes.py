"""Changes of a Loom from its page: each answers with the Loom as it is afterwards."""

from collections.abc import Callable
from functools import wraps
from typing import Annotated
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import checked
from api.json_body import read_json
from api.limits import app_bucket
from api.loom_bodies import (
    LoomChangePayload,
    LoomPayload,
    NodeTextPayload,
    SplitPayload,
    branch_options,
    loom_file,
)
from completions.failures import Failure, invalid
from completions.payer import AppUser
from looms import branches, edits, exchange
from looms.foreign import read_foreign
from looms.models import Loom
from looms.refusals import FAULTS, refusal
from pages.loom import shown
from pages.loom_state import page_state
from pages.shell import AppRequest, refused, signed_in


class Look(BaseModel):
    """What the page says of what is looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    selected: UUID | None
    folded: Annotated[list[UUID], Field(max_length=2000)]


def faults_told(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Let a view's refusals reach the page's script in the API's form of errors."""

    @wraps(view)
    def telling(request: AppRequest, **ids: UUID) -> HttpResponse:
        try:
            return view(request, **ids)
        except FAULTS as fault:
            return refused(request, refusal(fault))
        except Failure as failure:
            return refused(request, failure)

    return telling


def changes(change: Callable[..., Loom]) -> Callable[..., HttpResponseBase]:
    """Make a view of a change of a Loom: a press of the User's, answered with the new state."""

    @require_POST
    @signed_in
    @faults_told
    @wraps(change)
    def view(request: AppRequest, **ids: UUID) -> HttpResponse:
        return shown(page_state(change(request, **ids)))

    return view


@require_POST
@signed_in
@faults_told
def create(request: AppRequest) -> HttpResponse:
    """Make a Loom of a prompt (A-313)."""
    prompt = checked(LoomPayload, read_json(request.body)).prompt
    loom = edits.create_loom(user_id=request.user.id, prompt=prompt)
    return JsonResponse({"id": str(loom.id)}, status=201)


@require_POST
@signed_in
@faults_told
def import_file(request: AppRequest) -> HttpResponse:
    """Make a Loom of a file, with ` (imported)` after its title (A-366 to A-370)."""
    sent = request.FILES.get("file")
    if sent is None:
        raise invalid("file", "Choose a file first.")
    most = settings.BASALT.max_body_size
    if sent.size is None or sent.size > most:
        raise invalid("file", f"The file has more than {most // 2**20} MiB.")
    value = read_json(sent.read())
    file = read_foreign(value) or loom_file(in_words(value))
    loom = exchange.import_loom(user_id=request.user.id, file=file, from_app=True)
    return JsonResponse({"id": str(loom.id)}, status=201)


def in_words(value: object) -> object:
    """Return what may be a Loom file; people read of a file's names as they stand in it (A-369)."""
    if not isinstance(value, dict):
        raise invalid("file", "The file is no Loom: it has no names at its top.")
    if "nodes" not in value:
        raise invalid("file", 'The file is no Loom: "nodes" is missing.')
    return value


@changes
def rename(request: AppRequest, loom_id: UUID) -> Loom:
    """Give a Loom another title (A-316, A-317)."""
    title = checked(LoomChangePayload, read_json(request.body)).title
    return edits.update_loom(user_id=request.user.id, loom_id=loom_id, title=title)


@require_POST
@signed_in
@faults_told
def delete(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Delete a Loom (A-321)."""
    edits.delete_loom(user_id=request.user.id, loom_id=loom_id)
    return HttpResponse(status=204)


@require_POST
@signed_in
@faults_told
def look(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Keep which Node is read and which are folded; no change of the Loom."""
    seen = checked(Look, read_json(request.body))
    edits.look(user_id=request.user.id, loom_id=loom_id, selected=seen.selected, folded=seen.folded)
    return HttpResponse(status=204)


@changes
def branch(request: AppRequest, loom_id: UUID, node_id: UUID) -> Loom:
    """Grow Nodes under one (A-327, A-336, A-337)."""
    app_bucket(str(request.user.id)).take()
    loom, _ = branches.branch(
        payer=AppUser(request.user.id),
        loom_id=loom_id,
        node_id=node_id,
        options=branch_options(read_json(request.body)),
    )
    return loom


@changes
def stop(request: AppRequest, loom_id: UUID) -> Loom:
    """Stop every Node of the Loom that grows (A-328)."""
    return branches.cancel(user_id=request.user.id, loom_id=loom_id)


@changes
def edit(request: AppRequest, loom_id: UUID, node_id: UUID) -> Loom:
    """Give a Node another text (A-345, A-346)."""
    text = checked(NodeTextPayload, read_json(request.body)).text
    return edits.edit(user_id=request.user.id, loom_id=loom_id, node_id=node_id, text=text)


@changes
def split(request: AppRequest, loom_id: UUID, node_id: UUID) -> Loom:
    """Cut a Node in two (A-347, A-350)."""
    body = checked(SplitPayload, read_json(request.body))
    return edits.split(
        user_id=request.user.id,
        loom_id=loom_id,
        node_id=node_id,
        offset=body.offset,
        text=body.text,
    )


@changes
def sibling(request: AppRequest, loom_id: UUID, node_id: UUID) -> Loom:
    """Write a Node beside another (A-351)."""
    text = checked(NodeTextPayload, read_json(request.body)).text
    return edits.add_sibling(user_id=request.user.id, loom_id=loom_id, node_id=node_id, text=text)


@changes
def root(request: AppRequest, loom_id: UUID) -> Loom:
    """Replace the tree by one root (A-352)."""
    text = checked(NodeTextPayload, read_json(request.body)).text
    return edits.set_root(user_id=request.user.id, loom_id=loom_id, text=text)


@changes
def delete_node(request: AppRequest, loom_id: UUID, node_id: UUID) -> Loom:
    """Take a Node and all under it out of the tree (A-353)."""
    return edits.delete_node(user_id=request.user.id, loom_id=loom_id, node_id=node_id)


@changes
def undo(request: AppRequest, loom_id: UUID) -> Loom:
    """Take the last change back."""
    return edits.undo(user_id=request.user.id, loom_id=loom_id)


@changes
def redo(request: AppRequest, loom_id: UUID) -> Loom:
    """Make the change again that was taken back last."""
    return edits.redo(user_id=request.user.id, loom_id=loom_id)
