"""The event wire: nothing is lost unseen, nothing runs twice, and whoever dies is noticed."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import numpy as np
import pytest

from inference import catalogue, valkey, wire
from inference.client import InferenceClient, Patience
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    PackedLogprobs,
    Residuals,
)
from inference.fleet import Fleet, Stage, WorkerReport
from inference.mailbox import Mailbox
from inference.worker import current_worker
from tests.live import eventually

PATIENCE = Patience(start=30, gap=30)


def request(**fields) -> EngineRequest:
    return EngineRequest(
        request_id=uuid4().hex, cache_scope="u", prompts=((1, 2, 3),), max_tokens=5, **fields
    )


@asynccontextmanager
async def running_client() -> AsyncIterator[InferenceClient]:
    client = InferenceClient()
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def run(test: Callable[[InferenceClient], Awaitable[None]]) -> None:
    """Run a coroutine with a client of its own."""

    async def main() -> None:
        async with asyncio.timeout(60):
            async with running_client() as client:
                await test(client)

    asyncio.run(main())


@contextmanager
def fake_worker(
    model_id: str, stage: Stage = Stage.SERVING
) -> Iterator[tuple[WorkerReport, Callable[[], None]]]:
    """A worker that reports until it is told to die, and does nothing else."""
    fleet, gone = Fleet(valkey.connection()), threading.Event()
    report = WorkerReport(
        worker_id=f"fake-{uuid4().hex}",
        model_id=model_id,
        stage=stage,
        started_at=time.time(),
        idle_since=None,
        host="here",
        pid=1,
    )

    def say() -> None:
        while not gone.wait(0.2):
            fleet.report(report)

    fleet.report(report)
    thread = threading.Thread(target=say)
    thread.start()
    try:
        yield report, gone.set
    finally:
        gone.set()
        thread.join()
        fleet.retire(report)


async def take_all(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def lay_down(asking: EngineRequest, consumer_id: str) -> None:
    """Lay a request down for a worker, and ring for nobody."""
    submission = wire.Submission(request=asking, consumer_id=consumer_id)
    wire.put_submissions(valkey.connection(), [wire.packed(submission)], 10)


def test_a_request_comes_back_in_order_with_one_end(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        async with client.complete("tiny", request(), PATIENCE) as events:
            taking = asyncio.create_task(take_all(events))
            asked = await asyncio.to_thread(scripted.next)
            asked.answer("a", "b", "c")
            got = await taking
        assert [type(event) for event in got] == [Accepted, Delta, Delta, Delta, Finished]
        assert [event.seq for event in got] == [0, 1, 2, 3, 4]

    run(test)


def test_a_doorbell_that_rings_again_finds_nothing(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        asking = request()
        async with client.complete("tiny", asking, PATIENCE) as events:
            taking = asyncio.create_task(take_all(events))
            asked = await asyncio.to_thread(scripted.next)
            for _ in range(3):
                await asyncio.to_thread(current_worker().take, asking.request_id)
            asked.answer("a")
            await taking
        assert scripted.asked.empty()

    run(test)
    current_worker().take("an-hour-late")
    assert scripted.asked.empty()


def test_a_submitted_request_is_taken_once_by_whoever_comes_first() -> None:
    submission = wire.Submission(request=request(), consumer_id="c")
    name = submission.request.request_id
    wire.put_submissions(valkey.connection(), [wire.packed(submission)], 10)
    taken: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: taken.append(wire.take_submission(valkey.connection(), name))
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each for each in taken if each is not None] == [submission]


def test_a_large_request_travels_in_blobs_of_a_mebibyte() -> None:
    long = EngineRequest(
        request_id=uuid4().hex,
        cache_scope="u",
        prompts=(tuple(range(100_000, 1_000_000)),),
        max_tokens=1,
    )
    submission = wire.Submission(request=long, consumer_id="c")
    wire.put_submissions(valkey.connection(), [wire.packed(submission)], 10)
    names = valkey.connection().keys(f"{valkey.submission(long.request_id)}:*")
    assert len(names) >= 4
    assert max(valkey.connection().strlen(name) for name in names) <= 2**20
    assert wire.take_submission(valkey.connection(), long.request_id) == submission
    assert valkey.connection().keys(f"{valkey.submission(long.request_id)}*") == []


def test_a_request_that_cannot_be_written_fails_at_once(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        unfit = request(priority=2**70)
        async with client.complete("tiny", unfit, PATIENCE) as events:
            [failed] = await take_all(events)
        assert isinstance(failed, Failed)
        assert failed.code is FailureCode.SERVER_ERROR
        assert failed.message == "The request could not be sent to Inference."

    run(test)


def test_an_untaken_request_runs_out() -> None:
    submission = wire.Submission(request=request(), consumer_id="c")
    name = submission.request.request_id
    wire.put_submissions(valkey.connection(), [wire.packed(submission)], 0.2)
    eventually(lambda: not valkey.connection().keys(f"{valkey.submission(name)}*"))
    assert wire.take_submission(valkey.connection(), name) is None


def test_a_missing_event_fails_the_request(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        async with client.complete("tiny", request(), PATIENCE) as events:
            taking = asyncio.create_task(take_all(events))
            asked = await asyncio.to_thread(scripted.next)
            asked.say("a")
            asked.skip_event()
            asked.say("c")
            got = await taking
        assert isinstance(got[-1], Failed)
        assert got[-1].code is FailureCode.INCOMPLETE
        assert got[-1].message == "Inference ended the stream before it was complete."
        assert [event.text for event in got if isinstance(event, Delta)] == ["a"]
        assert await asyncio.to_thread(asked.aborted.wait, 5)

    run(test)


@pytest.mark.row("C-101")
def test_a_worker_that_does_not_accept_is_given_up(settings) -> None:
    settings.BASALT = settings.BASALT.model_copy(update={"accept_seconds": 0.5})

    async def test(client: InferenceClient) -> None:
        async with client.complete("deaf", request(), PATIENCE) as events:
            [failed] = await take_all(events)
        assert isinstance(failed, Failed)
        assert failed.code is FailureCode.UNREACHABLE
        assert failed.message == "Could not reach Inference: Connection error."

    with fake_worker("deaf"):
        run(test)


def test_a_request_for_a_cold_model_asks_for_a_worker_and_waits() -> None:
    """A worker that only loads is waited for; the demand stands while somebody waits."""
    fleet = Fleet(valkey.connection())
    cold = catalogue.current().default.model_copy(update={"id": "cold"})

    async def test(client: InferenceClient) -> None:
        async with client.complete("cold", request(), PATIENCE) as events:
            taking = asyncio.create_task(take_all(events))
            while fleet.demand("cold") is None:
                await asyncio.sleep(0.05)
            assert fleet.state(cold).boot is not None
            assert fleet.state(cold).boot.stage is Stage.WAITING_FOR_GPU
            with fake_worker("cold", Stage.WEIGHTS_LOADING):
                await asyncio.sleep(1)
                assert not taking.done()
                assert fleet.state(cold).boot.stage is Stage.WEIGHTS_LOADING
            taking.cancel()

    run(test)
    eventually(lambda: fleet.demand("cold") is None)


@pytest.mark.row("C-108")
def test_patience_ends_in_a_deadline() -> None:
    async def test(client: InferenceClient) -> None:
        async with client.complete("never", request(), Patience(start=0.5, gap=1)) as events:
            [failed] = await take_all(events)
        assert isinstance(failed, Failed)
        assert failed.code is FailureCode.DEADLINE
        assert failed.message == "Could not reach Inference: Request timed out."

    run(test)


def test_a_gap_between_two_chunks_ends_in_a_deadline(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        async with client.complete("tiny", request(), Patience(start=20, gap=0.5)) as events:
            taking = asyncio.create_task(take_all(events))
            asked = await asyncio.to_thread(scripted.next)
            asked.say("a")
            got = await taking
        assert isinstance(got[-1], Failed)
        assert got[-1].code is FailureCode.DEADLINE
        assert await asyncio.to_thread(asked.aborted.wait, 5)

    run(test)


def test_a_dead_worker_fails_its_requests() -> None:
    """The worker reports, accepts, and falls silent."""

    async def test(client: InferenceClient) -> None:
        asking = request()
        with fake_worker("mortal") as (report, die):
            async with client.complete("mortal", asking, PATIENCE) as events:
                accepted = Accepted(request_id=asking.request_id, seq=0, worker_id=report.worker_id)
                wire.publish(valkey.connection(), [(client.consumer_id, "e", [accepted])])
                assert isinstance(await anext(events), Accepted)
                die()
                [failed] = await take_all(events)
        assert isinstance(failed, Failed)
        assert failed.code is FailureCode.ENGINE_DEAD

    run(test)


def test_an_abort_that_comes_before_the_request_is_heeded(scripted) -> None:
    asking = request()
    lay_down(asking, "c")
    wire.send_abort(valkey.connection(), "tiny", [asking.request_id])
    current_worker().take(asking.request_id)
    assert scripted.asked.empty()
    assert asking.request_id not in scripted.running


def test_leaving_early_aborts_in_the_engine(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        async with client.complete("tiny", request(), PATIENCE) as events:
            assert isinstance(await anext(events), Accepted)
            asked = await asyncio.to_thread(scripted.next)
        assert await asyncio.to_thread(asked.aborted.wait, 5)

    run(test)


def test_a_dead_consumers_requests_are_aborted_in_the_engine(scripted) -> None:
    """The consumer's mark is gone, as after a kill; nobody sends an abort."""
    asking = request()
    lay_down(asking, "dead")
    current_worker().take(asking.request_id)
    asked = scripted.next()
    assert asked.aborted.wait(15)


def test_a_large_event_travels_in_blobs_and_comes_whole(scripted) -> None:
    rows, width = 40, 30_000
    ids = np.arange(rows * width, dtype="<i4")
    packed = PackedLogprobs(
        rows=rows,
        width=width,
        ids=ids.tobytes(),
        logprobs=ids.astype("<f4").tobytes(),
        ranks=ids.tobytes(),
    )

    async def test(client: InferenceClient) -> None:
        async with client.complete("tiny", request(), PATIENCE) as events:
            taking = asyncio.create_task(take_all(events))
            asked = await asyncio.to_thread(scripted.next)
            asked.say("a", prompt_logprobs=packed)
            asked.say("b", finish="length")
            asked.finish()
            got = await taking
        deltas = [event for event in got if isinstance(event, Delta)]
        assert deltas[0].prompt_logprobs == packed
        assert [event.text for event in deltas] == ["a", "b"]

    run(test)
    assert valkey.connection().keys(f"{valkey.PREFIX}blob:*") == []


def test_read_events_are_trimmed_from_the_stream(scripted) -> None:
    async def test(client: InferenceClient) -> None:
        for _ in range(5):
            async with client.complete("tiny", request(), PATIENCE) as events:
                taking = asyncio.create_task(take_all(events))
                asked = await asyncio.to_thread(scripted.next)
                asked.answer("a", "b")
                await taking
        await asyncio.sleep(0.2)
        length = await asyncio.to_thread(
            valkey.connection().xlen, valkey.events(client.consumer_id)
        )
        assert length <= 1

    run(test)


@pytest.mark.parametrize("memory", [1, 2_000, 10**9])
def test_a_mailbox_keeps_order_in_memory_and_in_its_file(memory: int) -> None:
    """Puts and takes in bursts: what comes out is what went in, and memory stays bounded."""

    async def test() -> None:
        box, sent, got = Mailbox(memory), [], []
        generator = np.random.default_rng(7)
        number = 0
        while len(got) < 500:
            for _ in range(int(generator.integers(0, 9))):
                event = Delta(
                    request_id="r", seq=number, index=0, text="x" * (number % 50), token_ids=(1,)
                )
                number += 1
                sent.append(event)
                box.put(event)
            for _ in range(int(generator.integers(0, 9))):
                if len(got) < len(sent):
                    got.append(await box.get())
        assert got == sent[: len(got)]
        box.close()

    asyncio.run(test())


def test_a_mailbox_wakes_whoever_waits() -> None:
    async def test() -> None:
        box = Mailbox(1)
        taking = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        end = Finished(
            request_id="r",
            seq=0,
            prompt_tokens=1,
            completion_tokens=1,
            residuals=Residuals(shape=(1, 1, 1), dtype="float32", data=b"abcd"),
        )
        box.put(end)
        assert await taking == end

    asyncio.run(test())
