"""Where each Node of a Loom came from: what its readers do not get with the tree (`+`)."""

import json
from uuid import UUID

from looms.models import Node
from looms.reads import loom_of
from looms.tokens import read_sample

Json = dict[str, object]


def provenance(*, user_id: UUID, loom_id: UUID) -> bytes:
    """Return the JSON of every Node's origin, in the order in which the Nodes were made.

    Raises:
        LoomMissing.
    """
    loom = loom_of(user_id, loom_id)
    nodes = Node.objects.alive().filter(loom=loom).defer("text", "logprobs", "error")
    data = [_origin(node) for node in nodes.order_by("number").iterator(chunk_size=200)]
    return json.dumps({"object": "list", "data": data}, ensure_ascii=False).encode()


def _origin(node: Node) -> Json:
    sample = None if node.sample is None else read_sample(bytes(node.sample))
    return {
        "id": str(node.id),
        "object": "loom.node.provenance",
        "model": node.model or None,
        "weights": node.identity or None,
        "options": json.loads(node.options) if node.options else None,
        "finish_reason": node.finish_reason or None,
        "prompt_tokens": node.prompt_tokens,
        "token_ids": None if sample is None else sample.ids,
        "alternative_ids": None if sample is None or not sample.width else sample.alternative_ids,
        "text_modified": node.text_modified,
        "context_modified": node.context_modified,
        "slice_offset": node.slice_offset,
        "slice_end": node.slice_end,
        "made_at": int(node.made_at.timestamp()),
        "chosen": node.chosen_at is not None,
    }
