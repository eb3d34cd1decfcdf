"""The shapes of the Loom routes' answers, for the document; `looms.reads` writes them."""

from typing import Annotated, Literal

from pydantic import Field

from api.path_ids import UUID_PATTERN
from api.schemas import ErrorObject, Logprobs, Shape

Id = Annotated[str, Field(pattern=UUID_PATTERN, json_schema_extra={"format": "uuid"})]


class NodeRequest(Shape):
    """The Branch options of a grown Node (C-530)."""

    model: str
    max_tokens: Annotated[int, Field(le=32_000)]
    temperature: float
    logprobs: Annotated[int, Field(ge=0, le=100)] | None
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: Annotated[int, Field(ge=0)] | None
    stop: str | Annotated[list[str], Field(max_length=4)] | None


class Node(Shape):
    """One text of a Loom (C-523)."""

    id: Id
    object: Literal["loom.node"]
    parent_id: Id | None
    status: Literal["queued", "running", "completed", "failed", "cancelled"]
    text: str
    logprobs: Logprobs | None
    error: ErrorObject | None
    request: NodeRequest | None


class Loom(Shape):
    """A tree of continuations, its Nodes depth first (C-522, C-525)."""

    id: Id
    object: Literal["loom"]
    created_at: int
    title: str
    pinned: bool
    nodes: list[Node]


class LoomSummary(Shape):
    """A Loom in the list (C-524)."""

    id: Id
    object: Literal["loom"]
    created_at: int
    updated_at: int
    title: str
    pinned: bool
    prompt: str


class LoomList(Shape):
    """The newest Looms (C-534)."""

    object: Literal["list"]
    data: list[LoomSummary]


class Branch(Shape):
    """The Nodes that a Branch made (C-545)."""

    object: Literal["list"]
    data: list[Node]


class DeletedLoom(Shape):
    """A Loom that is gone (C-581)."""

    id: Id
    object: Literal["loom"]
    deleted: Literal[True]
