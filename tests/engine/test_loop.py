"""The engine's thread: intake, aborts, drain and death."""

import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from inference.engine import loading, store
from inference.engine.core import Core
from inference.engine.loop import Engine, EngineLimits, LoadStage
from inference.engine.messages import (
    Accepted,
    Delta,
    Event,
    Failed,
    FailureCode,
    Finished,
    Stopping,
)
from tests.engine.harness import Bench, join
from tests.live import eventually

PATIENCE = 60
_NEVER = Stopping(ignore_end=True)


class Inbox:
    """Collects what an engine emits."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[str] = set()
        self._news = threading.Condition()

    def put(self, events: Sequence[Event]) -> None:
        with self._news:
            self.events.extend(events)
            self.threads.add(threading.current_thread().name)
            self._news.notify_all()

    def wait_for_end(self, *names: str) -> None:
        """Wait until each of these requests has its last event."""

        def ended() -> bool:
            ends = {e.request_id for e in self.events if isinstance(e, Finished | Failed)}
            return set(names) <= ends

        with self._news:
            assert self._news.wait_for(ended, PATIENCE)

    def wait_for_delta(self, name: str) -> None:
        with self._news:
            assert self._news.wait_for(
                lambda: any(isinstance(e, Delta) and e.request_id == name for e in self.events),
                PATIENCE,
            )


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def engine(tiny: Bench, inbox: Inbox) -> Iterator[Engine]:
    engine = Engine(Core(tiny.loaded, EngineLimits(cache_bytes=64 << 20)))
    engine.start(inbox.put)
    yield engine
    engine.stop(0)


@pytest.mark.row("C-626")
def test_load_reports_its_stages_and_answers(tiny_folder: Path, inbox: Inbox, tiny: Bench) -> None:
    stages: list[LoadStage] = []
    engine = Engine.load(
        tiny_folder,
        dtype="float32",
        device="cpu",
        max_model_len=128,
        limits=EngineLimits(cache_bytes=64 << 20),
        report=stages.append,
    )
    assert stages == [LoadStage.WEIGHTS_LOADING, LoadStage.WEIGHTS_LOADED]
    engine.start(inbox.put)
    request = tiny.request("The capital of France is")
    engine.submit(request, "w-1")
    inbox.wait_for_end(request.request_id)
    engine.stop(0)
    answer = join(inbox.events, request.request_id)
    assert answer.tokens == tiny.ask("The capital of France is").tokens
    assert answer.events[0] == Accepted(request_id=request.request_id, seq=0, worker_id="w-1")
    assert inbox.threads == {"engine"}


def test_the_thread_that_loads_a_model_runs_it(
    tiny_folder: Path, inbox: Inbox, tiny: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread with kernels of its own would have OpenMP's threads sleep at every wait."""
    seen: set[int] = set()

    def noted(function):
        def note(*given, **named):
            seen.add(threading.get_ident())
            return function(*given, **named)

        return note

    monkeypatch.setattr(loading, "load", noted(loading.load))
    monkeypatch.setattr(Core, "step", noted(Core.step))
    engine = Engine.load(
        tiny_folder,
        dtype="float32",
        device="cpu",
        max_model_len=128,
        limits=EngineLimits(cache_bytes=64 << 20),
        report=lambda stage: None,
    )
    engine.start(inbox.put)
    request = tiny.request("The capital")
    engine.submit(request, "w-1")
    inbox.wait_for_end(request.request_id)
    engine.stop(0)
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="No such file"):
        Engine.load(
            tmp_path,
            dtype="float32",
            device="cpu",
            max_model_len=128,
            limits=EngineLimits(cache_bytes=64 << 20),
            report=lambda stage: None,
        )


def test_requests_from_many_threads_each_get_their_answer(
    engine: Engine, inbox: Inbox, tiny: Bench
) -> None:
    requests = [tiny.request(f"Number {n}", max_tokens=6) for n in range(24)]
    threads = [threading.Thread(target=engine.submit, args=(r, "w")) for r in requests]
    for thread in threads:
        thread.start()
    inbox.wait_for_end(*(request.request_id for request in requests))
    for number, request in enumerate(requests):
        assert (
            join(inbox.events, request.request_id).tokens
            == tiny.ask(f"Number {number}", max_tokens=6).tokens
        )


def test_an_aborted_request_says_no_more_and_frees_its_blocks(
    engine: Engine, inbox: Inbox, tiny: Bench
) -> None:
    long = tiny.request("Once upon a time", max_tokens=450, stopping=_NEVER)
    engine.submit(long, "w")
    inbox.wait_for_delta(long.request_id)
    engine.abort(long.request_id)
    engine.abort("nobody")
    after = tiny.request("The capital")
    engine.submit(after, "w")
    inbox.wait_for_end(after.request_id)
    own = [event for event in inbox.events if event.request_id == long.request_id]
    assert not any(isinstance(event, Finished | Failed) for event in own)
    figures = engine.load_figures()
    assert figures.running == 0
    assert figures.blocks_free == figures.blocks_total


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_caches_memory_is_taken_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AHEAD_BYTES", 64 << 20)
    blocks = store.BlockStore(
        [store.LayerShape(4, 64, 64)] * 3,
        blocks=4000,
        block_tokens=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pools = [*blocks.keys, *blocks.values]
    for pool in pools:
        pool[1:6] = torch.pi
    before = _resident()
    while blocks.give_ahead(5):
        pass
    assert 56 << 20 <= _resident() - before <= 80 << 20
    assert all(torch.equal(pool[1:6], torch.full_like(pool[1:6], torch.pi)) for pool in pools)
    assert not any(bool(pool[6:].any()) for pool in pools)
    assert not blocks.give_ahead(5)
    assert blocks.give_ahead(6)


def test_an_idle_engine_takes_memory_until_there_is_enough(
    tiny: Bench, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(tiny.loaded, EngineLimits(cache_bytes=64 << 20))
    give, answers = core.give_ahead, []
    monkeypatch.setattr(core, "give_ahead", lambda: answers.append(give()) or answers[-1])
    engine = Engine(core)
    engine.start(inbox.put)
    eventually(lambda: False in answers)
    assert True in answers
    request = tiny.request("One", max_tokens=3)
    engine.submit(request, "w")
    inbox.wait_for_end(request.request_id)
    engine.stop(0)


def test_stop_lets_running_requests_end(tiny: Bench, inbox: Inbox) -> None:
    engine = Engine(Core(tiny.loaded, EngineLimits(cache_bytes=64 << 20)))
    engine.start(inbox.put)
    request = tiny.request("Once upon a time", max_tokens=40, stopping=_NEVER)
    engine.submit(request, "w")
    inbox.wait_for_delta(request.request_id)
    engine.stop(PATIENCE)
    assert join(inbox.events, request.request_id).finished.completion_tokens == 40


def test_stop_fails_what_does_not_end_in_time_and_what_comes_later(
    tiny: Bench, inbox: Inbox
) -> None:
    engine = Engine(Core(tiny.loaded, EngineLimits(cache_bytes=64 << 20)))
    engine.start(inbox.put)
    request = tiny.request("Once upon a time", max_tokens=450, stopping=_NEVER)
    engine.submit(request, "w")
    inbox.wait_for_delta(request.request_id)
    engine.stop(0)
    assert join(inbox.events, request.request_id).failed.code is FailureCode.ENGINE_DEAD
    late = tiny.request("Too late")
    engine.submit(late, "w")
    assert inbox.events[-1].request_id == late.request_id
    assert isinstance(inbox.events[-1], Failed)
    assert engine.is_dead


def test_when_the_loop_dies_every_request_fails(
    tiny: Bench, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(tiny.loaded, EngineLimits(cache_bytes=64 << 20))
    engine = Engine(core)

    def broken() -> list[Event]:
        raise RuntimeError("the loop is broken")

    monkeypatch.setattr(core, "step", broken)
    requests = [tiny.request("One"), tiny.request("Two")]
    for request in requests:
        engine.submit(request, "w")
    engine.start(inbox.put)
    inbox.wait_for_end(*(request.request_id for request in requests))
    third = tiny.request("Three")
    engine.submit(third, "w")
    inbox.wait_for_end(third.request_id)
    for request in (*requests, third):
        end = inbox.events[-1]
        ends = [e for e in inbox.events if e.request_id == request.request_id]
        end = ends[-1]
        assert isinstance(end, Failed)
        assert end.code is FailureCode.ENGINE_DEAD


_WORKER = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import msgspec, torch
from inference.engine.messages import Sampling, Stopping
from tests.engine.harness import Bench
torch.set_num_threads(1)
bench = Bench.load(Path(sys.argv[2]))
digest = hashlib.sha256()
requests = [
    bench.request(
        "The capital of France is", request_id="greedy", max_tokens=20, logprobs=5,
        read_layers=(0, 1, 2, 3), stopping=Stopping(ignore_end=True),
    ),
    bench.request(
        "Once upon a time", request_id="seeded", max_tokens=20, n=3, prompt_logprobs=-1,
        sampling=Sampling(seed=3, top_p=0.9), stopping=Stopping(ignore_end=True),
    ),
]
for answer in bench.run(requests):
    for event in answer.events:
        known = {**msgspec.structs.asdict(event), "given": None}  # an id of its own in each run
        digest.update(repr(known).encode())
print(digest.hexdigest())
"""


def test_two_workers_with_empty_caches_give_the_same_numbers(tiny_folder: Path) -> None:
    """To the last bit: nothing is chosen by what happened to be quick when a worker started."""
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _WORKER, root, str(tiny_folder)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (run.communicate(timeout=PATIENCE * 4)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) == 65
    assert first == second
