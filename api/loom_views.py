"""The Loom routes but for the stream: each reads its request, and hands it to `looms`."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

import msgspec
from django.db import transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from api.app import PARAMETERS
from api.bodies import checked
from api.json_body import read_json
from api.loom_bodies import (
    LoomChangePayload,
    LoomPayload,
    NodeTextPayload,
    SplitPayload,
    branch_options,
    loom_file,
)
from api.once import once
from api.path_ids import path_id
from api.views import KeyView
from looms import branches, edits, exchange, reads
from looms.models import Loom
from looms.refusals import FAULTS, refusal


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a write made or changed, for its answer and for that of its repeats."""

    loom: UUID
    nodes: tuple[UUID, ...] | None = None
    """The Nodes of a Branch, where that was the write."""
    deleted: bool = False
    """Whether the write was the deletion of the Loom."""


class LoomView(KeyView):
    """A view whose answers are Looms."""

    def handle_exception(self, exc: Exception) -> HttpResponseBase:  # type: ignore[override]
        """Return the answer of what `looms` refused."""
        return super().handle_exception(refusal(exc) if isinstance(exc, FAULTS) else exc)

    def path_id(self, name: str) -> UUID:
        """Return an id of the path (C-044)."""
        return path_id(self.asgi_scope[PARAMETERS], name)

    @property
    def loom_id(self) -> UUID:
        """The Loom of the path."""
        return self.path_id("loom_id")

    def write(self, request: Request, act: Callable[[object], Made]) -> HttpResponse:
        """Run a write of a JSON body once for its `Idempotency-Key`, and show what it made."""
        value = read_json(request._request.body)
        return self.write_value(value, lambda: act(value))

    def write_value(self, value: object, act: Callable[[], Made]) -> HttpResponse:
        """Run a write of this body once and show what it made; a repeat shows it as it is by now.

        A first answer is written in the transaction of its write: it shows Nodes as they were made,
        before a runner can take one (C-393, C-400, C-545).
        """
        shown: list[bytes] = []

        def act_and_show() -> Made:
            with transaction.atomic():
                made = act()
                shown.append(self._show(made))
            return made

        scope = self.asgi_scope
        made = once(
            act_and_show,
            Made,
            user_id=self.key.user_id,
            headers=scope["headers"],
            method=scope["method"],
            path=scope["path"],
            value=value,
        )
        return written(shown[0] if shown else self._show(made))

    def _show(self, made: Made) -> bytes:
        if made.deleted:
            return reads.show_deleted(made.loom)
        loom = reads.loom_of(self.key.user_id, made.loom)
        return reads.show(loom) if made.nodes is None else reads.show_nodes(loom, made.nodes)

    def show(self) -> HttpResponse:
        """Answer the Loom of the path."""
        return written(reads.show(reads.loom_of(self.key.user_id, self.loom_id)))


def written(body: bytes) -> HttpResponse:
    """Return a JSON answer."""
    return HttpResponse(body, content_type="application/json")


def made(loom: Loom) -> Made:
    """Return a Loom as what a write changed."""
    return Made(loom.id)


class Looms(LoomView):
    """`/v1/looms`."""

    def get(self, request: Request) -> HttpResponse:
        """List the newest Looms (C-534)."""
        return written(reads.show_list(self.key.user_id))

    def post(self, request: Request) -> HttpResponse:
        """Make a Loom (C-533)."""

        def create(value: object) -> Made:
            prompt = checked(LoomPayload, value).prompt
            return made(edits.create_loom(user_id=self.key.user_id, prompt=prompt))

        return self.write(request, create)


class ImportLoom(LoomView):
    """`/v1/looms/import`."""

    def post(self, request: Request) -> HttpResponse:
        """Make a Loom of a file (C-602)."""

        def read(value: object) -> Made:
            file = loom_file(value)
            return made(exchange.import_loom(user_id=self.key.user_id, file=file))

        return self.write(request, read)


class OneLoom(LoomView):
    """`/v1/looms/{loom_id}`."""

    def get(self, request: Request, **ids: str) -> HttpResponse:
        """Show a Loom."""
        return self.show()

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Rename, pin or unpin a Loom (C-539)."""
        loom_id = self.loom_id

        def change(value: object) -> Made:
            body = checked(LoomChangePayload, value)
            sent = body.model_dump(exclude_unset=True)
            loom = edits.update_loom(
                user_id=self.key.user_id, loom_id=loom_id, key_id=self.key.key_id, **sent
            )
            return made(loom)

        return self.write(request, change)

    def delete(self, request: Request, **ids: str) -> HttpResponse:
        """Delete a Loom (C-581)."""
        loom_id = self.loom_id

        def delete() -> Made:
            edits.delete_loom(user_id=self.key.user_id, loom_id=loom_id)
            return Made(loom_id, deleted=True)

        return self.write_value(None, delete)


class ExportLoom(LoomView):
    """`/v1/looms/{loom_id}/export`."""

    def get(self, request: Request, **ids: str) -> HttpResponse:
        """Answer a Loom as a file (C-584)."""
        return written(exchange.export_loom(user_id=self.key.user_id, loom_id=self.loom_id))


class CancelLoom(LoomView):
    """`/v1/looms/{loom_id}/cancel`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Cancel all that grows (C-560)."""
        cancel = partial(branches.cancel, user_id=self.key.user_id, loom_id=self.loom_id)
        return self.write_value(None, lambda: made(cancel()))


class SetRoot(LoomView):
    """`/v1/looms/{loom_id}/root`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Replace the tree by one root (C-579)."""
        loom_id = self.loom_id

        def replace(value: object) -> Made:
            text = checked(NodeTextPayload, value).text
            return made(
                edits.set_root(
                    user_id=self.key.user_id, loom_id=loom_id, text=text, key_id=self.key.key_id
                )
            )

        return self.write(request, replace)


class NodeView(LoomView):
    """A view of one Node."""

    def on_node(self, request: Request, act: Callable[[object, UUID, UUID], Made]) -> HttpResponse:
        """Run a write on the Node of the path: `act` takes the body and both ids."""
        loom_id, node_id = self.loom_id, self.path_id("node_id")
        return self.write(request, lambda value: act(value, loom_id, node_id))


class OneNode(NodeView):
    """`/v1/looms/{loom_id}/nodes/{node_id}`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Give the Node another text (C-566)."""

        def edit(value: object, loom_id: UUID, node_id: UUID) -> Made:
            loom = edits.edit(
                user_id=self.key.user_id,
                loom_id=loom_id,
                node_id=node_id,
                text=checked(NodeTextPayload, value).text,
                key_id=self.key.key_id,
            )
            return made(loom)

        return self.on_node(request, edit)

    def delete(self, request: Request, **ids: str) -> HttpResponse:
        """Delete the Node and all under it (C-580)."""
        delete = partial(
            edits.delete_node,
            user_id=self.key.user_id,
            loom_id=self.loom_id,
            node_id=self.path_id("node_id"),
            key_id=self.key.key_id,
        )
        return self.write_value(None, lambda: made(delete()))


class SplitNode(NodeView):
    """`.../split`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Cut the Node in two (C-569)."""

        def split(value: object, loom_id: UUID, node_id: UUID) -> Made:
            body = checked(SplitPayload, value)
            loom = edits.split(
                user_id=self.key.user_id,
                loom_id=loom_id,
                node_id=node_id,
                offset=body.offset,
                text=body.text,
                key_id=self.key.key_id,
            )
            return made(loom)

        return self.on_node(request, split)


class AddSibling(NodeView):
    """`.../sibling`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Write a Node beside this one (C-577)."""

        def add(value: object, loom_id: UUID, node_id: UUID) -> Made:
            loom = edits.add_sibling(
                user_id=self.key.user_id,
                loom_id=loom_id,
                node_id=node_id,
                text=checked(NodeTextPayload, value).text,
                key_id=self.key.key_id,
            )
            return made(loom)

        return self.on_node(request, add)


class CreateBranch(NodeView):
    """`.../branch`."""

    def post(self, request: Request, **ids: str) -> HttpResponse:
        """Grow Nodes under this one (C-545)."""

        def branch(value: object, loom_id: UUID, node_id: UUID) -> Made:
            loom, nodes = branches.branch(
                payer=self.key, loom_id=loom_id, node_id=node_id, options=branch_options(value)
            )
            return Made(loom.id, tuple(nodes))

        return self.on_node(request, branch)
