"""`script/bench looms`: what Looms cost, on trees of 10, 200 and 2,000 Nodes.

A real web process, PostgreSQL and Valkey, with a runner and a worker whose engine answers at once
in this process. Prints milliseconds, and how each grows with the tree, measured side by side in one
run: a read (by HTTP, and its database and rendering alone), the events of a stream up to its end,
one change, and a Branch up to its Node's text. At last, what 200 watchers of one growing Loom cost.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ["RATE_LIMIT_PER_MINUTE"] = "1000000"
os.environ["WORK_POLL_SECONDS"] = "0.02"
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

tests.servers.start()
django.setup()

import httpx  # noqa: E402
from django.core.management import call_command  # noqa: E402

from tests.live import web_process  # noqa: E402

SIZES = (10, 200, 2000)
WATCHERS = 200
AT_ONCE = 20
"""Watchers that come at the same time."""


def caller() -> tuple[UUID, str]:
    """A User with many tokens, and a key."""
    from accounts.keys import create_key
    from accounts.models import User
    from billing.grants import grant

    user = User.objects.create_user(email="bench@example.org")
    grant(user_id=user.id, tokens=10**12, by=None)
    return user.id, create_key(user=user, name="bench")[1]


def planted(user_id: UUID, size: int, *, measured: bool) -> str:
    """A Loom of `size` Nodes, eight under each; `measured` gives each 16 tokens with 5 others."""
    from api.loom_bodies import loom_file
    from looms.exchange import import_loom

    top = [{"token": f" word{n}", "logprob": -1.2345678 - n} for n in range(5)]
    tokens = [{"token": " words", "logprob": -1.2345678, "top": top}] * 16
    config = {"model": "tiny", "temperature": 0.7, "seed": 5, "logprobs": 5}
    nodes = [
        {
            "id": str(number),
            "parent_id": str((number - 1) // 8) if number else None,
            "text": " words" * 16,
            "generation_config": config,
            "logprobs": tokens if measured else None,
        }
        for number in range(size)
    ]
    return str(import_loom(user_id=user_id, file=loom_file({"nodes": nodes})).id)


@contextlib.contextmanager
def growing() -> Iterator[object]:
    """A runner and a scripted engine in this process."""
    from billing.models import OwnerKind
    from completions.owner import own_as
    from inference import catalogue
    from jobs.runner import RunnerThread
    from looms.growth import Nodes
    from tests.scripted import scripted_worker

    own_as(OwnerKind.RUNNER)
    runner = RunnerThread((Nodes(),))
    with scripted_worker(catalogue.current().default) as engine:
        runner.start()
        yield engine
        runner.stop(0)


def timed(act: Callable[[], object], count: int) -> float:
    """The median milliseconds of an act; the first is not counted."""
    act()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def show(name: str, times: list[float]) -> None:
    """Print one row: milliseconds at each size, and the last as a multiple of the first."""
    shown = "".join(f"{each:>9.1f}" for each in times)
    print(f"{name:<44}{shown}{times[-1] / times[0]:>8.1f}x", flush=True)


def rows(client: httpx.Client, user_id: UUID, looms: list[str], count: int) -> None:
    """Measure everything that is done to one Loom."""
    from looms import reads

    def read(loom: str) -> None:
        client.get(f"/v1/looms/{loom}").raise_for_status()

    def render(loom: str) -> None:
        reads.show(reads.loom_of(user_id, UUID(loom)))

    def stream(loom: str) -> None:
        assert client.get(f"/v1/looms/{loom}/stream").text.endswith("[DONE]\n\n")

    texts = iter(range(10**9))

    def edit(loom: str) -> None:
        root = roots[loom]
        client.post(
            f"/v1/looms/{loom}/nodes/{root}", json={"text": f"text {next(texts)}"}
        ).raise_for_status()

    roots = {loom: client.get(f"/v1/looms/{loom}").json()["nodes"][0]["id"] for loom in looms}
    for name, act in (
        ("read, database and rendering alone", render),
        ("read", read),
        ("stream of a still Loom", stream),
        ("edit of the root", edit),
    ):
        show(name, [timed(lambda act=act, loom=loom: act(loom), count) for loom in looms])


def branches(client: httpx.Client, looms: list[str], count: int, model: str) -> None:
    """Measure a Branch up to its answer, and up to the Node's text."""

    def branch(loom: str) -> tuple[float, float]:
        root = client.get(f"/v1/looms/{loom}").json()["nodes"][0]["id"]
        began = time.perf_counter()
        answer = client.post(
            f"/v1/looms/{loom}/nodes/{root}/branch", json={"model": model, "max_tokens": 4}
        )
        answer.raise_for_status()
        answered = time.perf_counter()
        stream = client.get(f"/v1/looms/{loom}/stream").text
        assert '"status":"failed"' not in stream, stream[-600:]
        node = answer.json()["data"][0]["id"]
        done = time.perf_counter()
        client.delete(f"/v1/looms/{loom}/nodes/{node}").raise_for_status()
        return (answered - began) * 1000, (done - began) * 1000

    found = {loom: [branch(loom) for _ in range(count)][1:] for loom in looms}
    for place, name in enumerate(("Branch, its answer", "Branch, its text through the stream")):
        show(name, [statistics.median(each[place] for each in found[loom]) for loom in looms])


class Watching:
    """One watcher on a bare socket, so that what the client costs is little."""

    def __init__(self, address: str, key: str, loom: str) -> None:
        self.began, self.task = asyncio.Event(), asyncio.create_task(self._run(address, key, loom))

    async def _run(self, address: str, key: str, loom: str) -> float:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = (
            f"GET /v1/looms/{loom}/stream HTTP/1.1",
            f"Host: {host}",
            f"Authorization: Bearer {key}",
        )
        writer.write("\r\n".join([*lines, "", ""]).encode())
        last = b""
        while b"data: [DONE]" not in last:
            data = await reader.read(2**16)
            if not data or (not last and b" 200 " not in data[:20]):
                raise RuntimeError(f"no stream: {data[:300]!r}")
            last = last[-20:] + data
            if b"data: {" in last:
                self.began.set()
        writer.close()
        return time.perf_counter()


async def watched(client: httpx.Client, key: str, loom: str, engine: object, model: str) -> None:
    """Measure how long the last of many watchers waits for the end of a Node, against one."""
    waits = []
    for count in (1, WATCHERS):
        root = client.get(f"/v1/looms/{loom}").json()["nodes"][0]["id"]
        engine.answers = None
        body = {"model": model, "max_tokens": 40}
        client.post(f"/v1/looms/{loom}/nodes/{root}/branch", json=body).raise_for_status()
        asked = await asyncio.to_thread(engine.next, 20)
        address = str(client.base_url).rstrip("/")
        watching: list[Watching] = []
        while len(watching) < count:
            some = [
                Watching(address, key, loom) for _ in range(min(AT_ONCE, count - len(watching)))
            ]
            for each in some:
                await asyncio.wait(
                    [each.task, asyncio.ensure_future(each.began.wait())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if each.task.done():
                    await each.task
            watching += some
        for _ in range(10):
            asked.say(" word")
            await asyncio.sleep(0.1)
        ended = time.perf_counter()
        asked.say(" end", finish="length")
        asked.finish()
        waits.append((max(await asyncio.gather(*(each.task for each in watching))) - ended) * 1000)
    print(
        f"the end of a Node reaches 1 watcher after {waits[0]:.0f} ms and the last of {WATCHERS} "
        f"after {waits[1]:.0f} ms: {waits[1] / waits[0]:.1f}x"
    )


def main() -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=20, help="times of each act")
    wishes = options.parse_args()
    call_command("migrate", verbosity=0)
    from inference import catalogue

    user_id, key = caller()
    model = catalogue.current().default.id
    logs = tests.servers.logs()
    head = "".join(f"{f'{size} Nodes':>9}" for size in SIZES[:2]) + f"{'2,000':>9}"
    with growing() as engine, web_process(logs / "web.log") as web, web.client(key) as checked:
        client = httpx.Client(base_url=web.address, headers=checked.headers, timeout=120)
        for measured in (False, True):
            print(f"{'milliseconds' + (', with log probabilities' if measured else ''):<44}{head}")
            looms = [planted(user_id, size, measured=measured) for size in SIZES]
            rows(client, user_id, looms, wishes.count)
            if not measured:
                engine.answers = (" a", " b", " c", " d")
                small = [planted(user_id, size - 2, measured=False) for size in SIZES]
                branches(client, small, wishes.count // 2 + 1, model)
        sizes = [len(client.get(f"/v1/looms/{loom}").content) for loom in looms]
        print(f"bytes of a read with log probabilities: {json.dumps(sizes)}")
        asyncio.run(watched(client, key, small[0], engine, model))
        client.close()


if __name__ == "__main__":
    main()
