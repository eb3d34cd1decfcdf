"""A web process keeps its bounds of memory: idle, and with a thousand open streams."""

import asyncio
from collections.abc import Callable

from tests.conftest import Caller
from tests.live import Web
from tests.load.clients import Answer, stream
from tests.load.conftest import LOADED, MIB, Peak, ticking_worker
from tests.load.ticking import word

STREAMS, TOKENS, USERS = 1000, 20, 8
OPENING = 64
"""Streams that are opened at the same time."""


def test_an_idle_process_after_one_request_of_each_kind(
    load_web: Web, new_user: Callable[..., Caller]
) -> None:
    client = new_user(load_web).client
    completion = {"prompt": "The sky is", "max_tokens": 3}
    bodies = [
        completion,
        completion | {"stream": True},
        completion | {"logprobs": 5, "echo": True, "prompt_logprobs": 3, "n": 2},
        {"prompt": [5, 6], "max_tokens": 3, "output_residual_stream": [3]},
        completion
        | {"apply_steering_vectors": [{"layer_indices": [3], "activations": [[0.5] * 576]}]},
    ]
    with ticking_worker(0.01):
        for path in ("/health", "/openapi.json", "/docs", "/", "/admin/login/"):
            assert client.get(path, follow_redirects=True).status_code == 200, path
        for path in ("/v1/models", f"/v1/models/{LOADED}/status"):
            assert client.get(path).status_code == 200, path
        for body in bodies:
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
        refused = client.post("/v1/chat/completions", json={})
        assert refused.status_code >= 400
    print(f"\nidle: {load_web.memory() / MIB:.0f} MiB")
    assert load_web.memory() < 300 * MIB


def test_a_thousand_open_streams(load_web: Web, new_user: Callable[..., Caller]) -> None:
    callers = [new_user(load_web) for _ in range(USERS)]
    before = load_web.memory()
    keys = [each.secret for each in callers]
    with ticking_worker(0.5, waits=True) as go_on, Peak(load_web) as peak:
        answers = asyncio.run(open_all(load_web, keys, go_on))
    print(f"\n{STREAMS} open streams: {before / MIB:.0f} MiB before, {peak.mib:.0f} MiB at most")
    text = "".join(map(word, range(TOKENS)))
    assert [answer.lines for answer in answers if answer.status != 200] == []
    assert all(answer.is_whole and answer.text == text for answer in answers)
    assert peak.bytes < 1024 * MIB
    # Each stream paid its prompt and its tokens, no more and no less.
    spent = sum(10**9 - caller.left() for caller in callers)
    assert spent == STREAMS * (2 + TOKENS)


async def open_all(web: Web, keys: list[str], go_on: Callable[[], None]) -> list[Answer]:
    """Run all streams at once: each has its first token before the engine goes on."""
    gate = asyncio.Semaphore(OPENING)
    body = {"prompt": [5, 6], "max_tokens": TOKENS, "stream": True}
    count = 0

    async def one(number: int) -> Answer:
        nonlocal count
        first = asyncio.Event()
        async with gate:
            running = asyncio.create_task(stream(web, keys[number % len(keys)], body, first))
            await first.wait()
        count += 1
        if count == STREAMS:
            go_on()
        return await running

    return await asyncio.gather(*(one(number) for number in range(STREAMS)))
