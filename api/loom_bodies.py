"""The bodies of the Loom routes: their fields, checked, as `looms` takes them."""

from typing import Annotated, Literal

import msgspec
from pydantic import Field, PlainValidator

from api.bodies import LIMITS, MAX_SEED, StopInput, Text, check_stop, checked
from api.fields import Fields
from api.numbers import Integer
from completions.failures import invalid
from looms.exchange import (
    GENERATION_FIELDS,
    FileFault,
    FileNode,
    FileToken,
    LoomFile,
    check_text,
    kept_logprobs,
    marks_of,
    options_of,
)
from looms.foreign import read_foreign
from looms.options import BranchOptions, NodeRequest
from looms.tree import Status


class LoomPayload(Fields):
    """What makes a Loom (C-533)."""

    prompt: Text


class LoomChangePayload(Fields):
    """What renames or pins a Loom (C-539, U-55)."""

    title: Text = ""
    pinned: bool = False


class NodeTextPayload(Fields):
    """A text that somebody wrote (C-566, C-577, C-579)."""

    text: Text


class SplitPayload(Fields):
    """Where to cut a Node (C-569)."""

    offset: Annotated[Integer, Field(ge=0)]
    text: Text | None = None


def _stop_as_sent(value: object) -> object:
    """Check stop texts and keep them as they were sent, a single one as a text."""
    check_stop(value)
    return value


class BranchPayload(Fields):
    """What a Branch asks for (C-543, C-544)."""

    model: Text
    n: Annotated[Integer, Field(ge=1, le=LIMITS.max_branch_nodes)] | None = None
    max_tokens: Annotated[Integer, Field(le=LIMITS.max_branch_tokens)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    logprobs: Annotated[Integer, Field(ge=0, le=LIMITS.max_logprobs)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: Annotated[Integer, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[
        str | list[str] | None, PlainValidator(_stop_as_sent, json_schema_input_type=StopInput)
    ] = None


class FileTopToken(Fields):
    """One of the likeliest tokens at a place (C-685)."""

    token: str
    logprob: float


class FileTokenPayload(Fields):
    """One token of a file's Node (C-597)."""

    token: str
    logprob: float | None
    top: Annotated[list[FileTopToken], Field(fail_fast=True)] | None = None


class LoomFileNode(Fields):
    """A Node of a file (C-591)."""

    id: Annotated[str, Field(min_length=1)]
    parent_id: str | None = None
    text: Text = ""
    status: Literal["completed", "cancelled", "failed"] | None = None
    position: Annotated[Integer, Field(ge=0, le=2_147_483_647)] | None = None
    model: Text | None = None
    seed: Annotated[Integer, Field(ge=0)] | None = None
    generation_config: dict[str, object] | None = None
    logprobs: Annotated[list[FileTokenPayload], Field(fail_fast=True)] | None = None
    error: object = None
    generation_id: object = None
    choice_index: object = None
    created_at: object = None
    finish_reason: object = None
    stop_reason: object = None
    n_tokens: object = None
    usage_source: object = None
    api_key_id: object = None


class LoomFileHead(Fields):
    """`loom` of a file (C-590)."""

    title: Text | None = None
    model: object = None
    last_generation_config: object = None


class LoomFilePayload(Fields):
    """A Loom file (C-589)."""

    version: object = None
    node_order: object = None
    loom: LoomFileHead = LoomFileHead()
    nodes: Annotated[list[LoomFileNode], Field(max_length=LIMITS.max_loom_nodes, fail_fast=True)]


def branch_options(value: object) -> BranchOptions:
    """Check the body of a Branch (C-543, C-544).

    Raises:
        Failure: 400 on the first field at fault.
    """
    body = checked(BranchPayload, value)
    given = {
        name: each for name, each in body.model_dump(exclude={"n"}).items() if each is not None
    }
    return BranchOptions(request=NodeRequest(**given), n=1 if body.n is None else body.n)


def loom_file(value: object) -> LoomFile:
    """Check a Loom file and return it (C-589 to C-598).

    Raises:
        Failure: 400 on the top-level field at fault; the message names the place.
    """
    body = checked(LoomFilePayload, value)
    try:
        nodes = [_file_node(node) for node in body.nodes]
    except FileFault as fault:
        raise invalid("nodes", str(fault)) from None
    return LoomFile(title=body.loom.title or "", nodes=nodes)


def _file_node(node: LoomFileNode) -> FileNode:
    config = {
        name: each
        for name, each in (node.generation_config or {}).items()
        if name in GENERATION_FIELDS
    }
    check_json(config)
    status = Status(node.status or Status.COMPLETED)
    return FileNode(
        id=node.id,
        parent_id=node.parent_id,
        text=node.text,
        status=status,
        position=node.position,
        options=options_of(config, node.model, node.seed),
        logprobs=None if node.logprobs is None else kept_logprobs(map(_token, node.logprobs)),
        error=_error(node.error) if status is Status.FAILED else None,
        marks=marks_of(config),
    )


def _token(token: FileTokenPayload) -> FileToken:
    top = None if token.top is None else [(each.token, each.logprob) for each in token.top]
    return FileToken(token.token, token.logprob, top)


def check_json(value: object) -> None:
    """Refuse a value with a text that cannot be stored (U-70); its depth is bounded already."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, list):
        for each in value:
            check_json(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            check_text(name)
            check_json(each)


class _KeptError(msgspec.Struct, omit_defaults=True):
    """The error of a Node in a file; codes of older days are kept (C-658)."""

    message: str
    type: str = "upstream_error"
    param: str | None = None
    code: str | None = None
    retryable: bool | msgspec.UnsetType = msgspec.UNSET
    retry_after_seconds: int | msgspec.UnsetType = msgspec.UNSET
    upstream_status: int | msgspec.UnsetType = msgspec.UNSET


ERROR_TYPES = (
    "invalid_request_error",
    "rate_limit_error",
    "upstream_error",
    "service_unavailable",
    "internal_error",
)


def _error(value: object) -> str | None:
    """Return the error of a failed Node as it is kept, or None when it does not read as one."""
    check_json(value)
    if isinstance(value, str):
        value = {"message": value}
    try:
        error = msgspec.convert(value, _KeptError)
    except msgspec.ValidationError:
        return None
    if error.type not in ERROR_TYPES:
        error.type = "upstream_error"
    written = {"type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({**msgspec.to_builtins(error), **written}).decode()


def any_loom_file(value: object) -> LoomFile:
    """Check a Loom file, or the file of another loom tool, and return it as a Loom file.

    Raises:
        Failure: 400 that says what is wrong with it.
    """
    try:
        foreign = read_foreign(value)
    except FileFault as fault:
        raise invalid(None, str(fault)) from None
    return loom_file(value) if foreign is None else foreign
