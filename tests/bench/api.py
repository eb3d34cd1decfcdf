"""`script/bench api`: what the platform itself costs a request.

A real web process, PostgreSQL, Valkey and Celery, with a worker whose engine answers at once, so
that no forward pass is in the numbers. With `--model` the default model runs as well, and the
platform's part is printed beside the whole.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
os.environ["RATE_LIMIT_PER_MINUTE"] = "1000000"
os.environ["BAD_KEY_LIMIT_PER_MINUTE"] = "1000000"
os.environ["MAX_INFLIGHT_PER_KEY"] = "1000"
os.environ["MAX_INFLIGHT_PER_MODEL"] = "1000"
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

django.setup()
tests.servers.start()

import httpx  # noqa: E402
from django.core.management import call_command  # noqa: E402

from tests.live import end, process_environment, start_process, web_process  # noqa: E402

PROMPT = [504, 3575, 282, 4649]


def caller() -> str:
    """A User with many tokens; returns the key."""
    from accounts.keys import create_key
    from accounts.models import User
    from billing.grants import grant

    user = User.objects.create_user(email="bench@example.org")
    grant(user_id=user.id, tokens=10**12, by=None)
    return create_key(user=user, name="bench")[1]


@contextlib.contextmanager
def instant_worker(model: str, words: int) -> Iterator[None]:
    """A worker with the scripted engine, as a process."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.parts.instant_worker", model, *["word"] * words],
        cwd=ROOT,
        env=process_environment(),
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(20)


async def first_token(client: httpx.AsyncClient, body: dict[str, object]) -> tuple[float, float]:
    """Milliseconds to the first token and to the end of a stream."""
    began = time.perf_counter()
    first = 0.0
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and not first:
                if "error" in json.loads(line[6:]):
                    raise RuntimeError(line)
                first = (time.perf_counter() - began) * 1000
    return first, (time.perf_counter() - began) * 1000


async def streams(address: str, key: str, at_once: int, count: int, body: dict[str, object]):
    """First-token times of `count` streams, `at_once` at a time; also the requests per second."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=at_once + 1)
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=120, limits=limits
    ) as client:

        async def one() -> float:
            async with gate:
                return (await first_token(client, body))[0]

        await first_token(client, body)
        began = time.perf_counter()
        times = await asyncio.gather(*(one() for _ in range(count)))
        return list(times), count / (time.perf_counter() - began)


async def tokens(address: str, key: str, at_once: int, words: int) -> float:
    """Tokens per second that reach the clients of `at_once` streams of `words` tokens each."""
    headers = {"Authorization": f"Bearer {key}"}
    body = {"prompt": PROMPT, "max_tokens": words, "temperature": 0}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120) as client:
        began = time.perf_counter()
        await asyncio.gather(*(first_token(client, body) for _ in range(at_once)))
        return at_once * words / (time.perf_counter() - began)


async def reads(address: str, key: str, count: int) -> float:
    """Requests per second of `GET /v1/models`, one after the other on one connection."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        await client.get("/v1/models")
        began = time.perf_counter()
        for _ in range(count):
            (await client.get("/v1/models")).raise_for_status()
        return count / (time.perf_counter() - began)


def show(name: str, times: list[float], rate: float) -> float:
    """Print one row; returns the median."""
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    median = statistics.median(times)
    print(f"{name:<44} {median:>9.1f} {p99:>9.1f} {rate:>9.1f}", flush=True)
    return median


def main() -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", action="store_true", help="measure the default model as well")
    options.add_argument("--count", type=int, default=200, help="streams of each row")
    wishes = options.parse_args()
    call_command("migrate", verbosity=0)
    key = caller()
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    logs = tests.servers.logs()
    from inference import catalogue

    model = catalogue.current().default.id
    print(f"{'first token':<44} {'median ms':>9} {'p99 ms':>9} {'per s':>9}")
    with web_process(logs / "web.log") as web:
        with instant_worker(model, 1):
            own = [
                show(
                    f"platform alone, {at_once} at once",
                    *asyncio.run(streams(web.address, key, at_once, wishes.count, body)),
                )
                for at_once in (1, 16, 100)
            ]
            print(
                f"{'GET /v1/models, one by one':<44} {'':>9} {'':>9} "
                f"{asyncio.run(reads(web.address, key, 300)):>9.1f}"
            )
        with instant_worker(model, 500):
            rate = asyncio.run(tokens(web.address, key, 16, 500))
            print(f"{'tokens through 16 streams':<44} {'':>9} {'':>9} {rate:>9.1f}")
        if wishes.model:
            with_model(web.address, key, model, own[0], logs)


def with_model(address: str, key: str, model: str, own: float, logs: Path) -> None:
    """The default model: its first token beside the platform's part, and 32 at once."""
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    worker = start_process("worker", f"engine.{model}", log=logs / "worker.log")
    try:
        whole = show("default model, 1 at once", *asyncio.run(streams(address, key, 1, 30, body)))
        print(f"  the platform's part of it: {own / whole:.2f}")
        longer = {**body, "max_tokens": 16}
        _, alone = asyncio.run(streams(address, key, 1, 8, longer))
        _, together = asyncio.run(streams(address, key, 32, 32, longer))
        print(f"  32 requests of 16 tokens, together against one by one: {together / alone:.1f}x")
    finally:
        end(worker)


if __name__ == "__main__":
    main()
