"""Files of other loom tools, read as Loom files: socketteer's loom, loomsidian, and exoloom.

What such a file says of its samples is rarely all of it, so a Node from one has no `request`: its
options would have to be guessed. Its text, its place, its model's name, and log probabilities that
are of its very text are kept.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from looms.exchange import (
    FileFault,
    FileNode,
    FileToken,
    LoomFile,
    check_count,
    check_text,
    kept_logprobs,
)

Json = Any


class _Lenient(Struct, frozen=True, kw_only=True):
    """Tools add fields as they grow: those that are not named here are passed over."""


# socketteer/loom: a nested tree, and beside it what each model answered.


class _Meta(_Lenient, frozen=True, kw_only=True):
    source: str | None = None
    modified: bool | None = None


class _Drawn(_Lenient, frozen=True, kw_only=True):
    id: str
    index: int


class _SocketNode(_Lenient, frozen=True, kw_only=True):
    id: str | None = None
    text: str = ""
    children: list["_SocketNode"] = field(default_factory=list)
    meta: _Meta | None = None
    generation: _Drawn | None = None


class _DrawnToken(_Lenient, frozen=True, kw_only=True):
    token: str
    logprob: float | None = None


class _SocketToken(_Lenient, frozen=True, kw_only=True):
    generated: _DrawnToken = field(name="generatedToken")
    counterfactuals: dict[str, float] | None = None


class _SocketCompletion(_Lenient, frozen=True, kw_only=True):
    text: str
    tokens: list[_SocketToken] | None = None


class _SocketResponse(_Lenient, frozen=True, kw_only=True):
    completions: list[_SocketCompletion] = field(default_factory=list)
    model: str | None = None


# loomsidian (cosmicoptima/loom): one note's nodes by id, or as a list.


class _NoteNode(_Lenient, frozen=True, kw_only=True):
    id: str | None = None
    text: str | None = None
    value: str | None = None
    author: str | None = None
    parent: str | None = field(default=None, name="parentId")


class _Note(_Lenient, frozen=True, kw_only=True):
    nodes: dict[str, _NoteNode] | list[_NoteNode]


# exoloom: nodes by number, under a root that is named.


class _ExoNode(_Lenient, frozen=True, kw_only=True):
    content: str
    author_type: str = field(name="authorType")
    author_name: str | None = field(default=None, name="authorName")
    parent: int | None = field(default=None, name="parentId")
    children: list[int] = field(default_factory=list, name="childrenIds")


class _ExoTree(_Lenient, frozen=True, kw_only=True):
    nodes: dict[str, _ExoNode]
    root: int = field(name="rootNodeId")
    title: str | None = None


class _ExoFile(_Lenient, frozen=True, kw_only=True):
    schema_version: int = field(name="schemaVersion")
    tree: _ExoTree


def read_foreign(value: object) -> LoomFile | None:
    """Return a file of another tool as a Loom file, or None when it is of none that is known.

    value: the file's JSON.

    Raises:
        FileFault: for a file that is of a known tool and cannot be read; says what is wrong.
    """
    reader = _reader(value)
    if reader is None:
        return None
    try:
        file = reader(value)
    except msgspec.ValidationError as fault:
        raise FileFault(f"The file cannot be read: {fault}.") from None
    for text in (file.title, *(each for node in file.nodes for each in (node.text, node.model))):
        check_text(text)
    return file


def _reader(value: object) -> Callable[[object], LoomFile] | None:
    """Tell the tools apart by what only their files have."""
    if not isinstance(value, dict):
        return None
    if value.get("loomType") == "Exoloom":
        return _exoloom
    if isinstance(value.get("root"), dict) or ("children" in value and "text" in value):
        return _socketteer
    if isinstance(value.get("state"), dict) and "settings" in value:
        return _plugin_data
    if "current" in value and isinstance(value.get("nodes"), dict | list):
        return _loomsidian
    return None


def _socketteer(value: Json) -> LoomFile:
    responses = value.get("model_responses")
    root = msgspec.convert(value.get("root", value), _SocketNode)
    nodes: list[FileNode] = []
    waiting: list[tuple[_SocketNode, str | None]] = [(root, None)]
    while waiting:
        node, parent = waiting.pop()
        check_count(len(nodes) + 1)
        # The tool itself gives one id to several Nodes, so places in the file stand for ids.
        node_id = str(len(nodes))
        model, logprobs = _socket_sample(node, responses if isinstance(responses, dict) else {})
        nodes.append(
            FileNode(id=node_id, parent_id=parent, text=node.text, model=model, logprobs=logprobs)
        )
        waiting.extend((child, node_id) for child in reversed(node.children))
    return LoomFile(title="", nodes=nodes)


def _socket_sample(node: _SocketNode, responses: dict[str, Json]) -> tuple[str, str | None]:
    """Return the model of a Node and the log probabilities of its text, where the file has them."""
    if node.generation is None:
        return "", None
    try:
        response = msgspec.convert(responses.get(node.generation.id), _SocketResponse)
        completion = response.completions[node.generation.index]
    except (msgspec.ValidationError, IndexError):
        return "", None
    tokens = completion.tokens or []
    is_own = (
        completion.text == node.text and "".join(t.generated.token for t in tokens) == node.text
    )
    if not tokens or not is_own:
        return response.model or "", None
    return response.model or "", kept_logprobs(
        FileToken(
            each.generated.token,
            _finite(each.generated.logprob),
            None if each.counterfactuals is None else list(each.counterfactuals.items()),
        )
        for each in tokens
    )


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _plugin_data(value: Json) -> LoomFile:
    notes = value["state"]
    if len(notes) != 1:
        raise FileFault(
            f"This is all that the plugin keeps, of {len(notes)} notes: export the one note that "
            "you want as JSON, and import that file."
        )
    title, note = next(iter(notes.items()))
    file = _loomsidian(note)
    return LoomFile(title=title.rpartition("/")[2].removesuffix(".md"), nodes=file.nodes)


def _loomsidian(value: Json) -> LoomFile:
    note = msgspec.convert({"nodes": value.get("nodes")}, _Note)
    check_count(len(note.nodes))
    return LoomFile(title="", nodes=list(_note_nodes(note)))


def _note_nodes(note: _Note) -> Iterator[FileNode]:
    named = note.nodes.items() if isinstance(note.nodes, dict) else _listed(note.nodes)
    for node_id, node in named:
        text = node.text if node.text is not None else node.value
        model = "" if node.author in (None, "genesis", "N/A") else node.author
        yield FileNode(id=node_id, parent_id=node.parent, text=text or "", model=model or "")


def _listed(nodes: list[_NoteNode]) -> Iterator[tuple[str, _NoteNode]]:
    for place, node in enumerate(nodes):
        if node.id is None:
            raise FileFault(f"The Node at place {place} of `nodes` has no `id`.")
        yield node.id, node


def _exoloom(value: Json) -> LoomFile:
    file = msgspec.convert(value, _ExoFile)
    if file.schema_version != 1:
        raise FileFault(
            f"This is a file of exoloom's schema {file.schema_version}: schema 1 can be read."
        )
    tree = file.tree
    check_count(len(tree.nodes))
    if str(tree.root) not in tree.nodes:
        raise FileFault(f"The root {tree.root} is not among the Nodes of the file.")
    places = {
        str(child): place
        for node in tree.nodes.values()
        for place, child in enumerate(node.children)
    }
    return LoomFile(
        title=tree.title or "",
        nodes=[
            FileNode(
                id=node_id,
                parent_id=None if node.parent is None else str(node.parent),
                text=node.content,
                position=places.get(node_id),
                model=(node.author_name or "") if node.author_type == "LLM" else "",
            )
            for node_id, node in tree.nodes.items()
        ],
    )
