"""Random requests with random fields, aborts, reads and steers, against the reference.

The short form of what `script/soak` runs.
"""

import gc
import os
import random

import numpy as np
import psutil

from inference.engine.limits import EngineLimits
from inference.engine.messages import (
    EngineRequest,
    Event,
    Failed,
    Finished,
    Sampling,
    Steering,
    Stopping,
)
from inference.engine.reference import Reference
from tests.engine.harness import Bench, assert_equal, join, reference

FULL = os.environ.get("SOAK") == "full"
"""What `script/soak` asks for: 2,000 requests on the tiny model and 100 on the default one."""
SEED = int(os.environ.get("SOAK_SEED", "17"))
TOGETHER = 16
CHECKED = TOGETHER if FULL else 5
"""Answers of a round that are compared: the reference is slow."""


def _random_request(bench: Bench, dice: random.Random, shared: list[list[int]]) -> EngineRequest:
    stream = bench.loaded.stream
    vocabulary = bench.loaded.vocabulary

    def prompt() -> list[int]:
        start = dice.choice(shared)[: dice.randint(0, 40)] if dice.random() < 0.6 else []
        return [*start, *(dice.randrange(3, vocabulary) for _ in range(dice.randint(1, 12)))]

    reads = dice.random() < 0.25
    prompts = [prompt() for _ in range(1 if reads else dice.choice([1, 1, 2]))]
    most = dice.randint(1, 14)
    steering = ()
    if dice.random() < 0.3:
        layers = tuple(dice.sample(range(stream.layers), dice.randint(1, 2)))
        reach = min(map(len, prompts)) + most - 2
        places = None
        if dice.random() < 0.5:
            places = tuple(dice.randint(0, reach) for _ in range(dice.randint(1, 3)))
        data = np.random.default_rng(dice.randrange(5)).standard_normal(
            (len(layers), stream.hidden)
        )
        steering = (
            Steering(
                layers=layers,
                data=data.astype(np.float32).tobytes(),
                dtype="float32",
                shape=data.shape,
                scale=dice.choice([0.0, 0.5, -1.0]),
                norm_match=dice.random() < 0.3,
                positions=places,
            ),
        )
    return bench.request(
        *prompts,
        cache_scope=dice.choice("ab"),
        max_tokens=most,
        n=1 if reads else dice.choice([1, 1, 1, 3]),
        priority=dice.randint(0, 2),
        echo=dice.random() < 0.2,
        logprobs=dice.choice([None, None, 0, 4]),
        prompt_logprobs=dice.choice([None, None, None, 2]),
        read_layers=tuple(sorted(dice.sample(range(stream.layers), 2))) if reads else (),
        steering=steering,
        sampling=Sampling(
            temperature=dice.choice([0, 0.7, 1.0]),
            seed=dice.randrange(1000),
            top_p=dice.choice([1.0, 0.8]),
            top_k=dice.choice([0, 20]),
            repetition_penalty=dice.choice([1.0, 1.3]),
            presence_penalty=dice.choice([0.0, 0.5]),
        ),
        stopping=Stopping(
            texts=tuple(dice.sample(["a", "e", " t", "1", "."], dice.randint(0, 2))),
            ignore_end=dice.random() < 0.3,
            min_tokens=dice.choice([0, 0, 3]),
        ),
    )


def _soak(bench: Bench, twin: Reference, rounds: int, together: int, checked: int) -> None:
    dice = random.Random(SEED)
    shared = [[dice.randrange(3, bench.loaded.vocabulary) for _ in range(60)] for _ in range(3)]
    process = psutil.Process()
    memory = 0
    for number in range(rounds):
        requests = [_random_request(bench, dice, shared) for _ in range(together)]
        gone = set(dice.sample([request.request_id for request in requests], together // 5))
        events: list[Event] = []
        waiting = list(requests)
        while waiting or bench.core.busy:
            for request in waiting[: dice.randint(0, 3)]:
                events += bench.core.accept(request, "w")
                waiting.remove(request)
            events += bench.core.step()
            if gone and dice.random() < 0.3:
                bench.core.abort(gone.pop())
        bench.core.check_idle()
        ended = {event.request_id for event in events if isinstance(event, Finished | Failed)}
        whole = [request for request in requests if request.request_id in ended]
        for request in dice.sample(whole, min(checked, len(whole))):
            assert_equal(join(events, request.request_id), request, twin.answer(request))
        if number == rounds // 2:
            gc.collect()
            memory = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss < memory + (64 << 20)


def test_soak_on_the_tiny_model(tiny: Bench, tiny_reference: Reference) -> None:
    limits = EngineLimits(cache_bytes=61 * 4096, block_tokens=4, max_sequences=7, step_tokens=23)
    bench = tiny.fresh(limits, max_model_len=100)
    _soak(bench, tiny_reference, 125 if FULL else 25, TOGETHER, CHECKED)


def test_soak_on_the_default_model(smollm2: Bench, smollm2_folder) -> None:
    bench = smollm2.fresh(EngineLimits(cache_bytes=64 << 20, max_sequences=8), max_model_len=100)
    _soak(bench, reference(smollm2, smollm2_folder), *((10, 10, 10) if FULL else (2, 10, 2)))
