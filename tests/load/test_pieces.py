"""Answers in pieces have the value of the plain form, and large events are never half there."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from tokenizers import Tokenizer

from completions.kept_rows import KeptRows
from completions.pieces import body_of
from completions.token_lists import TokenLists, are_numbers, prompt_pieces, table_of
from inference import valkey, wire
from inference.client import InferenceClient, Patience
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    PackedLogprobs,
)
from inference.fleet import Fleet, Stage, WorkerReport
from inference.tokenizers import TokenCounter
from tests.live import eventually

VOCABULARY = 384


@pytest.fixture(scope="module")
def counter(tiny_catalogue: Path) -> TokenCounter:
    from inference import catalogue
    from inference.preparation import prepared

    model = prepared(catalogue.current().default, tiny_catalogue.parent / "models")
    assert model is not None
    return TokenCounter(Tokenizer.from_file(str(model.folder / "tokenizer.json")), 512)


def report(rows: int, width: int, seed: int) -> PackedLogprobs:
    """Rows of distinct tokens, some of them filled up, some impossible."""
    chance = np.random.default_rng(seed)
    ids = np.array([chance.permutation(VOCABULARY)[:width] for _ in range(rows)], "<i4")
    logprobs = (-chance.random((rows, width)) * 30).astype("<f4")
    ranks = chance.integers(1, VOCABULARY, (rows, width)).astype("<i4")
    ids, ranks = ids.reshape(rows, width), ranks.reshape(rows, width)
    if width > 2:
        logprobs[:, width // 2] = -np.inf
        ids[::2, -1], logprobs[::2, -1], ranks[::2, -1] = -1, -np.inf, 0
    return PackedLogprobs(
        rows=rows,
        width=width,
        ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        ranks=ranks.tobytes(),
    )


def plain_rows(packed: PackedLogprobs, width: int) -> list[list[tuple[int, float, int]]]:
    shape = (packed.rows, packed.width)
    arrays = (
        np.frombuffer(array, kind).reshape(shape)[:, :width].tolist()
        for array, kind in ((packed.ids, "<i4"), (packed.logprobs, "<f4"), (packed.ranks, "<i4"))
    )
    return [
        [entry for entry in zip(*row, strict=True) if entry[0] != -1]
        for row in zip(*arrays, strict=True)
    ]


def plain_lists(
    counter: TokenCounter, context: Sequence[int], offset: int, first: int | None, rows
) -> dict[str, list[object]]:
    """`logprobs` in the plain form: Python's lists and dictionaries."""
    context = list(context)
    lists: dict[str, list[object]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    heads = [] if first is None else [(first, None, None)]
    for row in rows:
        heads.append((row[0][0], row[0][1], row))
    for token_id, logprob, row in heads:
        text = counter.decode_token_in_context(context, token_id)
        top = None if row is None else {}
        for other, its_logprob, _ in row or ():
            name = counter.decode_token_in_context(context, other)
            top[name] = max(its_logprob, top.get(name, its_logprob))
        for name, value in zip(lists, (text, logprob, top, offset), strict=True):
            lists[name].append(value)
        offset += len(text)
        context.append(token_id)
    return lists


@pytest.mark.parametrize(("rows", "width"), [(0, 1), (1, 1), (3, 5), (200, 101), (40, VOCABULARY)])
def test_the_lists_of_tokens_are_those_of_the_plain_form(counter, rows, width):
    packed, context = report(rows, width, rows), [70, 200, 201]
    for first in (None, 80):
        lists = TokenLists(counter, [] if first else context)
        text = b"".join(lists.pieces(first, lambda: iter([table_of(packed)])))
        plain = plain_lists(counter, [] if first else context, 0, first, plain_rows(packed, width))
        assert json.loads(text) == plain
        # The next chunk goes on where this one ended.
        after = report(2, 3, 99)
        text = b"".join(lists.pieces(None, lambda after=after: iter([table_of(after)])))
        ids = [row[0][0] for row in plain_rows(packed, width)]
        before = [*([first] if first else context), *ids]
        offset = sum(len(token) for token in plain["tokens"])
        assert json.loads(text) == plain_lists(counter, before, offset, None, plain_rows(after, 3))


@pytest.mark.parametrize("likeliest", [None, 0, 4])
def test_the_maps_of_a_prompt_are_those_of_the_plain_form(counter, likeliest):
    packed, prompt = report(60, VOCABULARY, 5), tuple(range(100, 161))
    body = body_of(prompt_pieces(table_of(packed, likeliest), prompt, counter), at_once=1000)
    text = body.start + b"".join(body.rest or ())
    width = VOCABULARY if likeliest is None else likeliest + 1
    plain: list[object] = [None]
    for position, row in enumerate(plain_rows(packed, width), start=1):
        plain.append(
            {
                str(token_id): {
                    "logprob": logprob,
                    "rank": rank,
                    "decoded_token": counter.decode_token_in_context(prompt[:position], token_id),
                }
                for token_id, logprob, rank in row
            }
        )
    assert json.loads(text) == plain


def test_rows_that_are_kept_in_a_file_are_the_same_rows():
    chance = np.random.default_rng(1)
    added: list[list[PackedLogprobs]] = [[], [], []]
    kept = KeptRows(3, 3000)
    for number in range(300):
        choice = int(chance.integers(0, 3))
        packed = report(int(chance.integers(1, 4)), 2 + number // 100, number)
        added[choice].append(packed)
        kept.add(choice, packed)
    assert kept._bytes <= 3000
    for _ in range(2):
        for choice, reports in enumerate(added):
            found = list(kept.of(choice))
            for name in ("ids", "logprobs", "ranks"):
                mine = b"".join(getattr(table, name).tobytes() for table in found)
                assert mine == b"".join(getattr(each, name) for each in reports)


def test_a_log_probability_that_is_no_number_is_seen():
    packed = report(3, 4, 1)
    assert are_numbers(packed)
    broken = np.frombuffer(packed.logprobs, "<f4").copy()
    broken[7] = np.nan
    assert not are_numbers(
        PackedLogprobs(
            rows=3, width=4, ids=packed.ids, logprobs=broken.tobytes(), ranks=packed.ranks
        )
    )


# Large events


def large_events(request: EngineRequest) -> list[Delta | Finished]:
    packed = report(300, VOCABULARY, 3)
    delta = Delta(
        request_id=request.request_id,
        seq=1,
        index=0,
        text="x" * 100_000,
        token_ids=(1,),
        prompt_logprobs=packed,
        finish_reason="length",
    )
    end = Finished(request_id=request.request_id, seq=2, prompt_tokens=3, completion_tokens=1)
    return [delta, end]


def blobs() -> list[bytes]:
    return list(valkey.connection().scan_iter(f"{valkey.PREFIX}blob:*"))


@pytest.mark.parametrize("loses", [False, True])
def test_a_large_event_comes_whole_or_fails_its_request(tiny_catalogue: Path, loses: bool) -> None:
    """Behind it stands a small one, which must not come before it."""

    async def main() -> None:
        client = InferenceClient()
        await client.start()
        asking = EngineRequest(
            request_id=uuid4().hex, cache_scope="u", prompts=((1, 2, 3),), max_tokens=1
        )
        events = large_events(asking)
        accepted = Accepted(request_id=asking.request_id, seq=0, worker_id="w")
        entries = [entry for entry, _ in wire._entries("large", [accepted, *events])]
        # Who looks meanwhile must not find its worker dead.
        alive = WorkerReport(
            worker_id="w",
            model_id="nobody",
            stage=Stage.WEIGHTS_LOADING,
            started_at=time.time(),
            idle_since=None,
            host="here",
            pid=1,
        )
        Fleet(valkey.connection()).report(alive)
        async with client.complete("nobody", asking, Patience(start=20, gap=20)) as coming:
            if loses:
                for entry in entries:
                    client._dispatch(entry)
            else:
                batch = [(client.consumer_id, "large", [accepted, *events])]
                await asyncio.to_thread(wire.publish, valkey.connection(), batch)
            got = [event async for event in coming]
        if loses:
            assert isinstance(got[-1], Failed)
            assert got[-1].code is FailureCode.INCOMPLETE
        else:
            assert got == [accepted, *events]
        await client.close()

    asyncio.run(main())
    assert blobs() == []


def test_a_large_event_for_somebody_who_left_is_dropped(tiny_catalogue: Path) -> None:
    async def main() -> None:
        client = InferenceClient()
        await client.start()
        asking = EngineRequest(
            request_id=uuid4().hex, cache_scope="u", prompts=((1, 2, 3),), max_tokens=1
        )
        batch = [(client.consumer_id, "late", large_events(asking))]
        await asyncio.to_thread(wire.publish, valkey.connection(), batch)
        await asyncio.to_thread(eventually, lambda: blobs() == [])
        await client.close()

    asyncio.run(main())
