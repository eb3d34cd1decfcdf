"""Requests that come together are rung for together, and none of them takes another along."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from celery import current_app

from inference import bell, valkey, wire
from inference.client import InferenceClient
from inference.engine.messages import Event, Failed, Finished
from inference.worker import current_worker
from tests.inference.test_wire import PATIENCE, fake_worker, lay_down, request, run, take_all
from tests.live import eventually


@dataclass
class Rings:
    """Celery's application, which notes for whom it rings; the first ring waits for `go`."""

    parts: list[list[str]] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def send_task(self, name: str, *, args: list[str], **options: object) -> None:
        self.parts.append(args)
        self.began.set()
        assert self.go.wait(20)
        current_app.send_task(name, args=args, **options)


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rings]:
    noted = Rings()
    monkeypatch.setattr(bell, "current_app", noted)
    yield noted
    noted.go.set()


async def ask(client: InferenceClient, model_id: str, **fields: object) -> list[Event]:
    async with client.complete(model_id, request(**fields), PATIENCE) as events:
        return await take_all(events)


async def during_a_ring(client: InferenceClient, rings: Rings, *later: dict[str, object]):
    """Send one request, and others while it is being rung for; returns the tasks of all."""
    first = asyncio.create_task(ask(client, "tiny"))
    assert await asyncio.to_thread(rings.began.wait, 20)
    tasks = [asyncio.create_task(ask(client, "tiny", **fields)) for fields in later]
    await asyncio.sleep(0.1)
    return [first, *tasks]


async def answer(scripted, count: int) -> None:
    for _ in range(count):
        (await asyncio.to_thread(scripted.next)).answer("a")


def test_requests_that_come_during_a_ring_share_the_next(scripted, rings: Rings) -> None:
    async def test(client: InferenceClient) -> None:
        tasks = await during_a_ring(client, rings, {}, {}, {})
        rings.go.set()
        await answer(scripted, 4)
        answers = await asyncio.gather(*tasks)
        assert [type(events[-1]) for events in answers] == [Finished] * 4
        assert [len(part) for part in rings.parts] == [1, 3]

    run(test)


def test_each_worker_that_serves_gets_a_ring_of_its_own(scripted, rings: Rings) -> None:
    async def test(client: InferenceClient) -> None:
        tasks = await during_a_ring(client, rings, {}, {}, {})
        rings.go.set()
        await answer(scripted, 4)
        await asyncio.gather(*tasks)
        assert [len(part) for part in rings.parts] == [1, 2, 1]

    with fake_worker("tiny"):
        run(test)


def test_a_request_that_cannot_be_written_fails_alone(scripted, rings: Rings) -> None:
    async def test(client: InferenceClient) -> None:
        tasks = await during_a_ring(client, rings, {}, {"priority": 2**70}, {})
        rings.go.set()
        await answer(scripted, 3)
        kinds = [type(events[-1]) for events in await asyncio.gather(*tasks)]
        assert kinds == [Finished, Finished, Failed, Finished]

    run(test)


def test_who_leaves_before_its_ring_is_not_rung_for(scripted, rings: Rings) -> None:
    async def test(client: InferenceClient) -> None:
        first, leaver, stayer = await during_a_ring(client, rings, {}, {})
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        rings.go.set()
        await answer(scripted, 2)
        await asyncio.gather(first, stayer)
        assert [len(part) for part in rings.parts] == [1, 1]
        assert scripted.asked.empty()

    run(test)


def test_who_leaves_during_its_ring_is_aborted(
    scripted, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves before its request lies there, so that nobody else can know that it must end."""
    put, go, began = wire.put_submissions, threading.Event(), threading.Event()

    def late(*given: object) -> None:
        began.set()
        assert go.wait(20)
        put(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "put_submissions", late)

    async def test(client: InferenceClient) -> None:
        leaver = asyncio.create_task(ask(client, "tiny"))
        assert await asyncio.to_thread(began.wait, 20)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        rings.go.set()
        go.set()
        [[name]] = await asyncio.to_thread(eventually, lambda: rings.parts)
        await asyncio.to_thread(eventually, lambda: wire.is_aborted(valkey.connection(), name))
        await asyncio.to_thread(eventually, lambda: name not in scripted.running)

    run(test)


def test_what_is_wrong_with_one_request_keeps_no_other_from_being_taken(scripted) -> None:
    broken, fine = request(), request()
    lay_down(broken, "c")
    lay_down(fine, "c")
    valkey.connection().set(f"{valkey.submission(broken.request_id)}:0", b"no message at all")
    current_worker().take_all([broken.request_id, fine.request_id])
    assert scripted.next().request == fine
