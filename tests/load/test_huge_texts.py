"""Huge bodies are read, checked and tokenized beside the loop: other streams of the process go on.

How long one stands still depends on the machine, so that it is printed; what is asserted is how
many tokens it is late by, compared with a stream of a process that has nothing else to do.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable

from tests.conftest import Caller
from tests.live import Web
from tests.load.clients import STANDS_STILL, Answer, connect, read_head, request_bytes, stream
from tests.load.conftest import ticking_worker

MB = 10**6
TICK = 0.01
ROWS = [[0.123456, -1.5, 2.0] * 192] * 1200


def words(size: int, letters: str) -> str:
    chance = random.Random(3)
    text = []
    while sum(map(len, text)) < size:
        text += ["".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(10_000)]
    return " ".join(text)[:size]


LETTERS = "abcdefghijklmnopqrstuvwxyz"
BODIES = {
    "1 MB of words": {"prompt": words(MB, LETTERS)},
    "1 MB in other letters": {"prompt": words(MB // 3, "漢字仮名交文テスト語")},
    "1 MB without a space": {"prompt": "x" * MB},
    "128 texts of 8 kB": {"prompt": [words(8000, LETTERS)] * 128},
    "8 MB of token ids": {"prompt": [5] * 2_600_000},
    "691,200 numbers": {
        "prompt": [5],
        "apply_steering_vectors": [{"layer_indices": list(range(1200)), "activations": ROWS}],
    },
}


async def post(web: Web, request: bytes) -> int:
    reader, writer = await connect(web)
    writer.write(request)
    status = await read_head(reader)
    writer.close()
    return status


async def ask_often(web: Web, times: list[float]) -> None:
    """Ask what the loop answers at once, again and again; note how long each answer took."""
    reader, writer = await connect(web)
    host = web.address.removeprefix("http://")
    question = (
        f"OPTIONS /v1/completions HTTP/1.1\r\nHost: {host}\r\nOrigin: http://a\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n"
    ).encode()
    while True:
        began = time.perf_counter()
        writer.write(question)
        await reader.readuntil(b"\r\n\r\n")
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.002)


def test_huge_bodies_do_not_hold_up_another_stream(
    load_web: Web, quiet_web: Web, new_user: Callable[..., Caller]
) -> None:
    huge, other = new_user(load_web), new_user(load_web)
    print()

    async def beside(name: str, body: object, *, keyed: bool = False) -> None:
        # Made before anything is measured: to write them takes long in this process.
        requests = [
            request_bytes(
                load_web,
                huge.secret,
                body | {"max_tokens": 1},
                f"Idempotency-Key: {name}-{number}\r\n" if keyed else "",
            )
            for number in range(2)
        ]
        answer, quiet, times = Answer(), Answer(), []
        tokens = {"prompt": [5, 6], "max_tokens": 8000, "stream": True}
        beside = [
            asyncio.create_task(stream(load_web, other.secret, tokens, into=answer)),
            asyncio.create_task(stream(quiet_web, other.secret, tokens, into=quiet)),
            asyncio.create_task(ask_often(load_web, times)),
        ]
        await asyncio.sleep(0.4)
        statuses = [await post(load_web, request) for request in requests]
        await asyncio.sleep(0.1)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        times.sort()
        print(
            f"{name}{', keyed' if keyed else ''}: {statuses[-1]}; the loop answered after "
            f"{times[len(times) // 2] * 1000:.1f} ms, at the latest {times[-1] * 1000:.0f} ms; "
            f"largest gap of a stream {answer.largest_gap() * 1000:.0f} ms, "
            f"{answer.most_missed(quiet)} tokens behind that of another process"
        )
        assert set(statuses) <= {200, 400}
        assert answer.most_missed(quiet) < STANDS_STILL

    with ticking_worker(TICK):
        asyncio.run(beside("a small one", {"prompt": "a b c"}))
        for name, body in BODIES.items():
            assert len(json.dumps(body)) < 8 * 2**20
            asyncio.run(beside(name, body))
        for name in ("8 MB of token ids", "691,200 numbers"):
            asyncio.run(beside(name, BODIES[name], keyed=True))
