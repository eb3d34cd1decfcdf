"""Two hundred clients that leave at random moments leave nothing behind."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from completions.places import places
from inference import valkey
from inference.fleet import Fleet
from tests.conftest import Caller
from tests.live import Web, eventually, web_process
from tests.load.clients import connect, request_bytes
from tests.load.conftest import LOADED, RAISED, discrepancies, real_model, ticking_worker

CLIENTS, KEYS = 200, 4
SECONDS = 4.0
"""Within which a client leaves, or has its answer."""
COMPLAINTS = (
    "Task was destroyed",
    "never retrieved",
    "was never awaited",
    "Traceback",
    "unhandled",
)


async def come_and_leave(web: Web, key: str, chance: random.Random) -> str:
    """Send a request and leave at some moment; returns which."""
    body = {
        "prompt": "The sky is" if chance.random() < 0.5 else [5, 6, 7],
        "max_tokens": chance.choice([1, 5, 30]),
        "n": chance.choice([1, 1, 3]),
        "stream": chance.random() < 0.5,
        "logprobs": None,
    }
    moment = chance.choice(["half a body", "at once", "some time", "some time", "first byte"])
    whole = request_bytes(web, key, body)
    reader, writer = await connect(web)
    if moment == "half a body":
        writer.write(whole[:-20])
        await asyncio.sleep(chance.random() * 0.2)
    elif moment == "at once":
        writer.write(whole)
        await writer.drain()
    elif moment == "some time":
        writer.write(whole)
        await asyncio.sleep(chance.random() * SECONDS)
    else:
        writer.write(whole)
        await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=SECONDS)
    if chance.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()
    return moment


def test_two_hundred_clients_that_leave(
    database: None, new_user: Callable[..., Caller], logs: Path
) -> None:
    limits = {**RAISED, "MAX_INFLIGHT_PER_KEY": "8", "LOG_LEVEL": "INFO"}
    chance = random.Random(20)
    log = logs / "leaving.log"
    with web_process(log, **real_model(), **limits) as web:
        callers = [new_user(web) for _ in range(KEYS)]

        async def all_of_them() -> list[str]:
            return await asyncio.gather(
                *(
                    come_and_leave(web, callers[number % KEYS].secret, chance)
                    for number in range(CLIENTS)
                )
            )

        with ticking_worker(0.05):
            moments = asyncio.run(all_of_them())
            print(f"\nleft: { {moment: moments.count(moment) for moment in sorted(set(moments))} }")
            fleet = Fleet(valkey.connection())
            eventually(lambda: not any(caller.open_holds() for caller in callers), 30)
            eventually(lambda: places().in_flight(LOADED) == 0, 30)
            for caller in callers:
                eventually(lambda key=caller.key_id: places().running(str(key)) == 0, 30)
                line = f"{valkey.PREFIX}places:line:{caller.key_id}"
                assert valkey.connection().zcard(line) == 0
            eventually(lambda: [w.running for w in fleet.workers(LOADED)] == [0], 30)
            # The process serves as before.
            answer = callers[0].client.post(
                "/v1/completions", json={"prompt": "a", "max_tokens": 2}
            )
            assert answer.json()["choices"][0]["text"] == " w0 w1"
    assert discrepancies() == []
    text = log.read_text()
    assert [complaint for complaint in COMPLAINTS if complaint in text] == [], text[-5000:]
    assert web.process.returncode == 0
