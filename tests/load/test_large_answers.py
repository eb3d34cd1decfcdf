"""The largest legal answers leave memory flat, and other streams of the process go on."""

import asyncio
import base64
import json
import socket
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from completions.places import places
from tests.conftest import Caller
from tests.live import Web, web_process
from tests.load.clients import STANDS_STILL, Answer, request_bytes, stream
from tests.load.conftest import LOADED, MIB, RAISED, Peak, real_model, ticking_worker
from tests.load.ticking import residual_stream, whole_vocabulary, word

VOCABULARY, LAYERS, HIDDEN = 49_152, 30, 576
PROMPT = [(37 * number) % VOCABULARY for number in range(256)]
TICK = 0.02
OTHER_TOKENS = 8000

Rows = list[msgspec.Raw]


class Choice(msgspec.Struct):
    text: str
    prompt_logprobs: Rows


class Completion(msgspec.Struct):
    choices: list[Choice]


def read_whole(
    web: Web, key: str, body: object, path: Path, *, gzip: bool, headers: str = ""
) -> None:
    """Write the body of an answer into a file, unzipped."""
    inflate = zlib.decompressobj(31)
    host, port = web.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        headers += "Accept-Encoding: gzip\r\n" if gzip else ""
        connection.sendall(request_bytes(web, key, body, headers))
        got = b""
        while b"\r\n\r\n" not in got:
            got += connection.recv(MIB)
        head, _, rest = got.partition(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == b"200", got[:1000]
        assert (b"content-encoding: gzip" in head.lower()) == gzip
        with path.open("wb") as file:
            part = rest or connection.recv(MIB)
            while part:
                file.write(inflate.decompress(part) if gzip else part)
                part = connection.recv(MIB)
    assert inflate.eof == gzip


def beside(webs: list[Web], key: str, work: Callable[[], None]) -> tuple[list[Answer], float]:
    """Run a stream of each process while `work` runs in a thread, a second longer on both sides.

    Returns the answers up to then and how many seconds the work took.
    """

    async def main() -> tuple[list[Answer], float]:
        body = {"prompt": [5, 6], "max_tokens": OTHER_TOKENS, "stream": True}
        answers = [Answer() for _ in webs]
        running = asyncio.gather(
            *(stream(web, key, body, into=into) for web, into in zip(webs, answers, strict=True))
        )
        await asyncio.sleep(1)
        began = time.perf_counter()
        await asyncio.to_thread(work)
        took = time.perf_counter() - began
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return answers, took

    return asyncio.run(main())


def measured(
    webs: list[Web], callers: list[Caller], body: object, path: Path, *, gzip: bool, name: str
) -> None:
    """Get a large answer of the first process into a file beside streams of both."""
    reader, other = callers
    web = webs[0]
    before = web.memory()
    with ticking_worker(TICK), Peak(web) as peak:
        (answer, quiet), took = beside(
            webs, other.secret, lambda: read_whole(web, reader.secret, body, path, gzip=gzip)
        )
    print(
        f"\n{name}{', gzip' if gzip else ''}: {path.stat().st_size / MIB:.0f} MiB of JSON in"
        f" {took:.1f} s; memory {before / MIB:.0f} MiB before, {peak.mib:.0f} MiB at most;"
        f" largest gap of another stream {answer.largest_gap() * 1000:.0f} ms,"
        f" {answer.most_missed(quiet)} tokens behind that of another process"
        f" ({len(answer.lines)} tokens, one every {TICK * 1000:.0f} ms)"
    )
    assert answer.text == "".join(map(word, range(len(answer.lines))))
    assert answer.most_missed(quiet) < STANDS_STILL
    assert peak.bytes < 700 * MIB


@pytest.mark.row("C-183", "C-229", "C-230", "C-231", "C-234", "C-032")
@pytest.mark.parametrize("gzip", [False, True])
def test_the_whole_vocabulary_at_256_tokens(
    load_web: Web,
    quiet_web: Web,
    new_user: Callable[..., Caller],
    tmp_path: Path,
    gzip: bool,
) -> None:
    callers, path = [new_user(load_web), new_user(load_web)], tmp_path / "answer"
    body = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": -1}
    measured([load_web, quiet_web], callers, body, path, gzip=gzip, name="the whole vocabulary")
    # The whole is valid JSON; some rows are compared number by number.
    with path.open("rb") as file:
        [choice] = msgspec.json.decode(file.read(), type=Completion).choices
    path.unlink()
    assert choice.text == word(0)
    assert len(choice.prompt_logprobs) == 256
    assert bytes(choice.prompt_logprobs[0]) == b"null"
    packed = whole_vocabulary(PROMPT, VOCABULARY)
    ids, logprobs, ranks = (
        np.frombuffer(array, kind).reshape(255, VOCABULARY)
        for array, kind in ((packed.ids, "<i4"), (packed.logprobs, "<f4"), (packed.ranks, "<i4"))
    )
    for row in (0, 100, 254):
        entries = json.loads(bytes(choice.prompt_logprobs[row + 1]))
        assert list(map(int, entries)) == ids[row].tolist()
        values = entries.values()
        assert [value["logprob"] for value in values] == logprobs[row].astype(float).tolist()
        assert [value["rank"] for value in values] == ranks[row].tolist()
        assert entries["1000"]["decoded_token"]
    assert callers[0].left() == 10**9 - 257


@pytest.mark.row("C-186", "C-242", "C-243", "C-244")
@pytest.mark.parametrize("gzip", [False, True])
def test_a_capture_of_33_million_numbers(
    load_web: Web,
    quiet_web: Web,
    new_user: Callable[..., Caller],
    tmp_path: Path,
    gzip: bool,
) -> None:
    callers, path = [new_user(load_web), new_user(load_web)], tmp_path / "answer"
    tokens = 2**25 // (LAYERS * HIDDEN)
    body = {"prompt": [5] * (tokens - 1), "max_tokens": 1, "output_residual_stream": True}
    measured([load_web, quiet_web], callers, body, path, gzip=gzip, name="the largest capture")
    stream_ = json.loads(path.read_bytes())["activations"]["residual_stream"]
    path.unlink()
    data = zstandard.ZstdDecompressor().decompress(base64.b64decode(stream_["data"]))
    expected = residual_stream(LAYERS, tokens - 1, HIDDEN)
    assert stream_["shape"] == list(expected.shape)
    assert data == expected.tobytes()


def test_large_answers_wait_for_their_turn(
    database: None, logs: Path, new_user: Callable[..., Caller], tmp_path: Path
) -> None:
    """There is room for two at once; the model never has more of them, and all six come."""
    paths = [tmp_path / str(number) for number in range(6)]
    body = {"prompt": PROMPT[:16], "max_tokens": 1, "prompt_logprobs": -1}
    room = {"MAX_RESULT_BYTES": str(20 * MIB)}
    with (
        web_process(logs / "turns.log", **real_model(), **RAISED | room) as web,
        ticking_worker(TICK),
        Peak(web) as peak,
        ThreadPoolExecutor(len(paths)) as pool,
    ):
        key = new_user(web).secret
        answers = [pool.submit(read_whole, web, key, body, path, gzip=False) for path in paths]
        most = 0
        while not all(answer.done() for answer in answers):
            most = max(most, places().in_flight(LOADED))
            time.sleep(0.01)
        for answer in answers:
            answer.result()
    print(f"\nsix large answers: at most {most} under way, {peak.mib:.0f} MiB at most")
    assert 1 <= most <= 2
    assert len({path.stat().st_size for path in paths}) == 1


@pytest.mark.row("C-391")
def test_a_large_answer_with_a_key_is_kept_and_sent_again_in_pieces(
    load_web: Web, new_user: Callable[..., Caller], tmp_path: Path
) -> None:
    caller, paths = new_user(load_web), [tmp_path / "first", tmp_path / "again"]
    body = {"prompt": PROMPT[:64], "max_tokens": 1, "prompt_logprobs": -1}
    key = "Idempotency-Key: large\r\n"
    with ticking_worker(TICK), Peak(load_web) as peak:
        for path in paths:
            read_whole(load_web, caller.secret, body, path, gzip=False, headers=key)
    size = paths[0].stat().st_size
    print(f"\nkept and sent again: {size / MIB:.0f} MiB of JSON, {peak.mib:.0f} MiB at most")
    assert size > 200 * MIB
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert peak.bytes < 400 * MIB
    assert caller.left() == 10**9 - 65
