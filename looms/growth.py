"""Nodes as background work: each is one Completion that grows a text (C-554 to C-563)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property

import msgspec
import numpy as np
from django.conf import settings
from django.db import DatabaseError, connection

from billing.models import Source
from completions.admission import Policy
from completions.database import in_database
from completions.failures import Failure, error_object, internal
from completions.generation import Generation
from completions.payloads import does_not_fit
from completions.token_lists import Table, TokenLists, are_numbers, table_of
from inference.backends.router import Inference
from inference.catalogue import ModelEntry
from inference.engine.messages import Delta, Finished, PackedLogprobs
from inference.preparation import prepared
from inference.tokenizers import CONTEXT_TOKENS, TokenCounter, counter_for
from jobs.background import completion
from jobs.kinds import Kind
from jobs.outages import Outage
from jobs.records import WorkRecord
from jobs.states import WorkState
from looms.branches import KIND, completion_request
from looms.models import Growth, Loom, Node
from looms.notices import announce
from looms.options import OPTION_NAMES, NodeRequest, read_options
from looms.reads import is_saving
from looms.tokens import Sample, read_lists, spans_of, without_nul, write_lists
from looms.tree import Status

POLICY = Policy(source=Source.LOOM)
PARENT_SECONDS = 0.1
"""Seconds between two looks whether a cancelled parent is saved (C-561)."""
STATUS = {
    WorkState.QUEUED: Status.QUEUED,
    WorkState.RUNNING: Status.RUNNING,
    WorkState.DONE: Status.COMPLETED,
    WorkState.FAILED: Status.FAILED,
    WorkState.CANCELLED: Status.CANCELLED,
}
"""What a Node's status is while its work is in a state."""

# The Loom's row is locked before the Node's, as in every change; a Node that has ended since the
# text was taken is left alone.
_SAVE = """
WITH mine AS (
    SELECT n.id, n.loom_id FROM looms_growth g JOIN looms_node n ON n.id = g.node_id
    WHERE g.id = %(work)s AND g.attempt = %(attempt)s AND g.state = 'running'
), loom AS (
    UPDATE looms_loom l SET revision = l.revision + 1 FROM mine WHERE l.id = mine.loom_id
    RETURNING l.id, l.revision
)
UPDATE looms_node n SET text = %(text)s, changed = loom.revision FROM mine, loom
WHERE n.id = mine.id AND n.status = 'running'
"""


class NodeRecord(WorkRecord[Growth]):
    """One attempt at growing a Node, with what it has grown so far."""

    work: Growth

    def __init__(self, work: Growth) -> None:
        super().__init__(work)
        self.is_begun = False
        """Whether this attempt runs the Node, and not only ends an attempt that was lost."""
        self.text = ""
        self.token_ids: list[int] = []
        self.packed: list[PackedLogprobs] = []
        self.finish_reason = ""
        self.prompt_tokens: int | None = None
        self.logprobs: str | None = None
        self.sample: bytes | None = None
        self.identity = ""
        self._saved = ""

    @cached_property
    def node(self) -> Node:
        """The Node; the first look reads it, so it is for a thread."""
        return Node.objects.defer("logprobs", "sample", "text").get(id=self.work.node_id)

    def held(self) -> None:
        """Let the Node run, with its work."""
        super().held()
        self._write_node({"status": Status.RUNNING, "text": ""})

    def columns(self, state: WorkState) -> Mapping[str, object]:
        """Write the Node as its work has ended, or as it waits again (C-562, C-607)."""
        values: dict[str, object] = {"status": STATUS[state]}
        if state is WorkState.QUEUED:
            values["text"] = ""
        elif self.is_begun:
            values |= self._grown(state)
        if state is WorkState.FAILED:
            values["error"] = msgspec.json.encode(node_error(self.failure)).decode()
        self._write_node(values)
        return {}

    @property
    def failure(self) -> Failure:
        """Why it failed; once it had text, as an error that came after the start (C-061)."""
        failure = self._failure or internal()
        return failure.after_start() if self.text else failure

    def _grown(self, state: WorkState) -> dict[str, object]:
        values: dict[str, object] = {
            "text": without_nul(self.text),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "identity": self.identity,
            "sample": self.sample,
        }
        if state is WorkState.DONE:
            values["logprobs"] = self.logprobs
        return values

    def _write_node(self, values: Mapping[str, object]) -> None:
        """Write the Node's columns and count the change for its readers; the Loom's row first."""
        loom = Loom.objects.select_for_update(no_key=True).only("id", "revision")
        row = loom.get(id=self.node.loom_id)
        row.revision += 1
        row.save(update_fields=["revision"])
        Node.objects.filter(id=self.node.id).update(**values, changed=row.revision)
        announce([row.id])

    def save_text(self) -> None:
        """Save the text so far, for who follows (C-555); it costs nothing when this fails."""
        text = without_nul(self.text)
        if text == self._saved:
            return
        with connection.cursor() as cursor:
            cursor.execute(
                _SAVE, {"work": self.work.id, "attempt": self.work.attempt, "text": text}
            )
        self._saved = text
        announce([self.node.loom_id])


def node_error(failure: Failure) -> dict[str, object]:
    """Return the `error` of a Node: what a Completion would answer, with a Branch's field or none
    as its `param` (C-562)."""
    error = error_object(failure)
    if error["param"] not in OPTION_NAMES:
        error["param"] = None
    return error


class Nodes(Kind[NodeRecord]):
    """The kind of work that Nodes are: the oldest first, so many at once over all Users (C-554)."""

    name = KIND
    model = Growth
    source = Source.LOOM

    @property
    def most(self) -> int | None:
        """Nodes in hand of all runners together."""
        return settings.BASALT.max_running_nodes

    @property
    def most_here(self) -> int:
        """Nodes in hand of one runner."""
        return settings.BASALT.max_running_nodes

    def record(self, work: Growth) -> NodeRecord:
        """Return the record of an attempt."""
        return NodeRecord(work)

    async def run(self, record: NodeRecord, client: Inference) -> None:
        """Grow one Node."""
        request = await in_database(_request, record)
        while await in_database(_parent_is_saving, record):
            await asyncio.sleep(PARENT_SECONDS)
        prompt = await in_database(path_text, record.node)
        record.is_begun = True
        async with completion(
            completion_request(request, prompt),
            record=record,
            request_id=f"req_node_{record.work.id.hex}",
            policy=POLICY,
            client=client,
        ) as generation:
            try:
                async with saving(record):
                    await _grow(record, generation)
            finally:
                await asyncio.shield(asyncio.to_thread(_measure, record, generation))


def _request(record: NodeRecord) -> NodeRequest:
    """Return what the Node was asked for with."""
    request = read_options(record.node.options)
    if request is None:
        raise ValueError(f"the options of Node {record.node.id} do not read as Branch options")
    return request


def _parent_is_saving(record: NodeRecord) -> bool:
    parent_id = record.node.parent_id
    return parent_id is not None and is_saving(parent_id)


def path_text(node: Node) -> str:
    """Return the text from the root down to a Node's parent (C-551)."""
    with connection.cursor() as cursor:
        cursor.execute(_PATH, [node.parent_id])
        return "".join(text for (text,) in cursor.fetchall())


_PATH = """
WITH RECURSIVE path AS (
    SELECT id, parent_id, text, 0 AS above FROM looms_node WHERE id = %s
    UNION ALL
    SELECT n.id, n.parent_id, n.text, path.above + 1 FROM looms_node n
    JOIN path ON n.id = path.parent_id
)
SELECT text FROM path ORDER BY above DESC
"""


async def _grow(record: NodeRecord, generation: Generation) -> None:
    """Take what the Completion gains until it has ended.

    Raises:
        Failure: of Inference, or because its answer does not fit the request.
    """
    async with contextlib.aclosing(generation.events()) as events:
        async for event in events:
            if isinstance(event, Finished):
                record.prompt_tokens = event.prompt_tokens
                if not record.finish_reason:
                    generation.does_not_fit()
                    raise does_not_fit("choice 0 is unfinished")
            else:
                _gain(record, generation, event)


def _gain(record: NodeRecord, generation: Generation, delta: Delta) -> None:
    if delta.index != 0:
        generation.does_not_fit()
        raise does_not_fit(f"there is no choice {delta.index}")
    if delta.logprobs is not None:
        if not are_numbers(delta.logprobs):
            generation.does_not_fit()
            raise does_not_fit("a log probability is not a number")
        record.packed.append(delta.logprobs)
    record.text += delta.text
    record.token_ids += delta.token_ids
    record.finish_reason = delta.finish_reason or ""
    generation.sent(len(delta.token_ids))


@contextlib.asynccontextmanager
async def saving(record: NodeRecord) -> AsyncIterator[None]:
    """Save the text every so often while it grows; the last of it is saved with the Hold's end."""

    node = str(record.work.node_id)
    outage = Outage("a Node's text is saved later", "a Node's text is saved again", node=node)

    async def save() -> None:
        while True:
            await asyncio.sleep(settings.BASALT.loom_stream_seconds)
            try:
                await in_database(record.save_text)
            except DatabaseError as away:
                outage.failed(away)
            else:
                outage.over()

    task = asyncio.create_task(save())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _measure(record: NodeRecord, generation: Generation) -> None:
    """Write the tokens that were drawn as they are kept; takes long, so call it in a thread."""
    record.identity = identity_of(generation.model)
    counter = counter_for(generation.model) if generation.model.tokenizer else None
    prompt = list(generation.engine_request.prompts[0])
    if record.packed and counter is not None:
        record.logprobs = _lists(record, counter, prompt)
    record.sample = msgspec.msgpack.encode(_sample(record, counter, prompt))


def _lists(record: NodeRecord, counter: TokenCounter, prompt: list[int]) -> str:
    """Return the JSON of the four lists (C-681); a NUL stands as in the Node's text."""

    def blocks() -> Iterator[Table]:
        for packed in record.packed:
            yield table_of(packed)

    raw = b"".join(TokenLists(counter, prompt).pieces(None, blocks)).decode()
    if "\\u0000" not in raw:
        return raw
    lists = read_lists(raw)
    lists.tokens = [without_nul(token) for token in lists.tokens]
    lists.top_logprobs = [
        None if top is None else {without_nul(name): number for name, number in top.items()}
        for top in lists.top_logprobs
    ]
    return write_lists(lists)


def _sample(record: NodeRecord, counter: TokenCounter | None, prompt: list[int]) -> Sample:
    ids = np.array(record.token_ids, "<i4")
    width = max((packed.width for packed in record.packed), default=0)
    rows = [
        np.pad(
            np.frombuffer(packed.ids, "<i4").reshape(packed.rows, packed.width),
            ((0, 0), (0, width - packed.width)),
            constant_values=-1,
        )
        for packed in record.packed
    ]
    return Sample(
        token_ids=ids.tobytes(),
        spans=None if counter is None else _spans(record, counter, prompt),
        width=width,
        alternatives=np.concatenate(rows).astype("<i4").tobytes() if rows else b"",
    )


def _spans(record: NodeRecord, counter: TokenCounter, prompt: list[int]) -> bytes | None:
    """Return where each token stands in the text, or None where the tokens do not spell it."""
    context, texts = prompt[-CONTEXT_TOKENS:], []
    for token_id in record.token_ids:
        texts.append(without_nul(counter.decode_token_in_context(context, token_id)))
        context = [*context, token_id][-CONTEXT_TOKENS:]
    spans = spans_of(texts, without_nul(record.text))
    return None if spans is None else np.array(spans, "<i4").tobytes()


def identity_of(model: ModelEntry) -> str:
    """Return which weights a model's id stood for: source, revision and digest."""
    found = prepared(model, settings.BASALT.models)
    if found is None:
        return ""
    identity = found.identity
    parts = (identity.source, identity.revision, identity.weights_sha256)
    return " ".join(part for part in parts if part)[:255]
