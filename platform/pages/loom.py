"""The Loom pages: one Loom, the start of a new one, and the list beside them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from django.conf import settings
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from inference import catalogue
from looms import edits
from looms.exchange import export_loom
from looms.models import Loom
from looms.reads import LoomMissing, loom_of
from looms.tree import NodeMissing
from pages.loom_state import node_detail, page_state
from pages.shell import AppRequest, signed_in

UNTITLED = "Untitled Loom"
LOOMS_COOKIE = "looms"
VIEW_COOKIE = "loom-view"
VIEWS = ("tree", "graph")


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of `Your Looms`."""

    id: UUID
    title: str
    pinned: bool
    changed_at: datetime

    @property
    def name(self) -> str:
        """The title, or what stands for none (A-315)."""
        return self.title or UNTITLED


@require_safe
@signed_in
def newest(request: AppRequest) -> HttpResponse:
    """Open the Loom that changed last, or the start of a first one (A-307)."""
    loom = Loom.objects.of(request.user.id).order_by("-changed_at", "-created_at").first()
    return redirect("new-loom") if loom is None else redirect("one-loom", loom_id=loom.id)


@require_safe
@signed_in
def start(request: AppRequest) -> HttpResponse:
    """Show the start of a new Loom (A-312, A-365)."""
    return render(request, "app/loom_new.html", _column(request, None))


@require_safe
@signed_in
def page(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Show a Loom (A-314, A-322)."""
    loom = own_loom(request, loom_id)
    view = request.COOKIES.get(VIEW_COOKIE, "")
    served = catalogue.current()
    context = _column(request, loom.id) | {
        "loom": loom,
        "state": msgspec.to_builtins(page_state(loom)),
        "view": view if view in VIEWS else VIEWS[0],
        "models": served.enabled,
        "default_model": served.default.id,
    }
    return render(request, "app/loom.html", context)


@require_safe
@signed_in
def state(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Answer with the Loom as it is now."""
    return shown(page_state(own_loom(request, loom_id)))


@require_safe
@signed_in
def node(request: AppRequest, loom_id: UUID, node_id: UUID) -> HttpResponse:
    """Answer with what was measured of a Node, and its path's length for a model (A-332)."""
    loom = own_loom(request, loom_id)
    served = catalogue.current()
    model = served.find(request.GET.get("model", "")) or served.default
    try:
        return shown(node_detail(loom, node_id, model))
    except NodeMissing:
        raise Http404("there is no such Node") from None


@require_safe
@signed_in
def export(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Hand the Loom out as a file (A-364, U-12)."""
    own_loom(request, loom_id)
    file = export_loom(user_id=request.user.id, loom_id=loom_id)
    answer = HttpResponse(file, content_type="application/json")
    answer.headers["Content-Disposition"] = f'attachment; filename="loom-{loom_id}.json"'
    return answer


@require_POST
@signed_in
def pin(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Pin a Loom (A-319)."""
    return _marked(request, loom_id, pinned=True)


@require_POST
@signed_in
def unpin(request: AppRequest, loom_id: UUID) -> HttpResponse:
    """Unpin a Loom (A-578)."""
    return _marked(request, loom_id, pinned=False)


def _marked(request: AppRequest, loom_id: UUID, *, pinned: bool) -> HttpResponse:
    own_loom(request, loom_id)
    edits.update_loom(user_id=request.user.id, loom_id=loom_id, pinned=pinned)
    return HttpResponse(status=204)


def own_loom(request: AppRequest, loom_id: UUID) -> Loom:
    """Return the User's Loom with this id; 404 for every other (A-127, U-38)."""
    try:
        return loom_of(request.user.id, loom_id)
    except LoomMissing:
        raise Http404("there is no such Loom") from None


def shown(content: msgspec.Struct) -> HttpResponse:
    """Answer a script with JSON."""
    return HttpResponse(msgspec.json.encode(content), content_type="application/json")


def _column(request: AppRequest, here: UUID | None) -> dict[str, object]:
    """Return what the column `Your Looms` shows (A-308, A-310)."""
    most = settings.BASALT.max_listed_looms
    looms = Loom.objects.of(request.user.id).listed()[:most]
    return {
        "looms": [
            Listed(each.id, each.title, each.pinned_at is not None, each.changed_at)
            for each in looms
        ],
        "here": here,
        "looms_open": request.COOKIES.get(LOOMS_COOKIE) != "closed",
    }
