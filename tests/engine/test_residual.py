"""Reads and steers: every row at its own address, every vector where it belongs, nowhere else."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inference.engine.limits import EngineLimits
from inference.engine.messages import (
    EngineRequest,
    FailureCode,
    Sampling,
    Steering,
    Stopping,
)
from inference.engine.reference import Reference
from tests.engine.harness import Bench, assert_equal, assert_rows, unpack

LONG = "Once upon a time there was a little house at the edge of the wood. "
HIDDEN, LAYERS = 64, 4
CHUNKED = EngineLimits(cache_bytes=16 << 20, block_tokens=4, max_sequences=5, step_tokens=7)

_generator = np.random.default_rng(1)


def vector(
    *layers: int, positions: Sequence[int] | None = None, count: int | None = None, **fields: object
) -> Steering:
    """A random vector for these Layers; with `count`, that many for each Layer."""
    shape = (len(layers), HIDDEN) if count is None else (len(layers), count, HIDDEN)
    data = _generator.standard_normal(shape).astype(np.float32)
    return Steering(
        layers=layers,
        data=data.tobytes(),
        dtype="float32",
        shape=shape,
        positions=None if positions is None else tuple(positions),
        **fields,
    )


def numbers(steering: Steering) -> np.ndarray:
    return np.frombuffer(steering.data, dtype=np.float32).reshape(steering.shape)


FORMS = {
    "every token": (vector(1),),
    "several layers": (vector(0, 3, scale=-0.5),),
    "listed positions": (vector(2, positions=(0, 3, 5, 9)),),
    "a vector for each position": (vector(1, 2, positions=(2, 7, 4), count=3),),
    "implicit positions": (vector(1, count=4),),
    "norm match": (vector(2, norm_match=True, scale=0.4),),
    "two on one layer": (vector(1), vector(1, norm_match=True), vector(1, positions=(1, 1, 6))),
    "scale zero": (vector(0, scale=0.0),),
    "last layer": (vector(3),),
}


@pytest.mark.row("C-285", "C-286", "C-287", "C-288", "C-289", "C-290", "C-291", "C-245", "C-249")
@pytest.mark.case("V01", "A01", "A03")
@pytest.mark.parametrize("limits", [EngineLimits(cache_bytes=16 << 20), CHUNKED])
def test_all_forms_in_one_batch_equal_the_reference(
    tiny: Bench, tiny_reference: Reference, limits: EngineLimits
) -> None:
    bench = tiny.fresh(limits, max_model_len=96)
    everything = tuple(range(LAYERS))
    requests = [
        bench.request(
            LONG[: 20 + 3 * n], max_tokens=6, read_layers=everything, steering=form, logprobs=1
        )
        for n, form in enumerate(FORMS.values())
    ]
    requests += [
        bench.request(LONG, max_tokens=6, logprobs=1),
        bench.request(LONG, max_tokens=6, read_layers=(1, 3)),
        bench.request(LONG, "The cat", max_tokens=5, n=3, sampling=Sampling(seed=3)),
    ]
    for request, answer in zip(requests, bench.run(requests), strict=True):
        assert_equal(answer, request, tiny_reference.answer(request))


@pytest.mark.row("C-293")
def test_steering_reaches_every_prompt_and_every_choice(
    tiny: Bench, tiny_reference: Reference
) -> None:
    request = tiny.request(
        LONG, "The cat", n=3, max_tokens=6, sampling=Sampling(seed=5), steering=FORMS["norm match"]
    )
    assert_equal(tiny.run([request])[0], request, tiny_reference.answer(request))


def test_a_vector_listed_for_a_generated_position_is_added_there_once(
    tiny: Bench, tiny_reference: Reference
) -> None:
    prompt = tiny.encode("The cat")
    place = len(prompt) + 2
    steer = vector(1, positions=(place,), count=1, scale=3.0)
    request = tiny.request(prompt, max_tokens=6, read_layers=(0, 1), steering=(steer,))
    plain = tiny.request(prompt, max_tokens=6, read_layers=(0, 1))
    steered, base = (answer.rows for answer in tiny.run([request, plain]))
    assert_equal(tiny.run([request])[0], request, tiny_reference.answer(request))
    np.testing.assert_allclose(
        steered[1, place] - base[1, place], 3.0 * numbers(steer)[0, 0], atol=1e-4
    )
    assert np.array_equal(steered[:, :place], base[:, :place])


def test_a_steered_prefix_is_shared_with_equal_steering_alone(
    tiny: Bench, tiny_reference: Reference
) -> None:
    bench = tiny.fresh()
    prompt = LONG * 2
    steer = (vector(1, scale=2.0),)
    plain, steered = (
        bench.request(prompt, logprobs=1),
        bench.request(prompt, logprobs=1, steering=steer),
    )
    for request in (steered, plain, steered, plain):
        assert_equal(bench.run([request])[0], request, tiny_reference.answer(request))
    before = bench.core.figures.prompt_tokens
    bench.run([steered])
    assert bench.core.figures.prompt_tokens - before < 16
    before = bench.core.figures.prompt_tokens
    bench.ask(prompt, steering=(vector(1, scale=2.0),))
    assert bench.core.figures.prompt_tokens - before == len(bench.encode(prompt))


def test_a_read_of_a_known_prompt_is_whole(tiny: Bench, tiny_reference: Reference) -> None:
    bench = tiny.fresh(CHUNKED, max_model_len=96)
    request = bench.request(LONG, max_tokens=3, read_layers=(0, 2))
    for _ in range(2):
        assert_equal(bench.run([request])[0], request, tiny_reference.answer(request))


def test_a_neighbour_that_steers_changes_no_bit(tiny: Bench) -> None:
    """At equal batch shape: the neighbour runs in both batches, steered in one."""
    results = []
    for steering in ((), (vector(1, 2, scale=9.0),)):
        bench = tiny.fresh()
        plain = bench.request(LONG, max_tokens=6, logprobs=5, read_layers=(0, 1, 2, 3))
        other = bench.request("The cat", max_tokens=6, steering=steering)
        answer = bench.run([plain, other])[0]
        parts = answer.choices[0].logprobs
        results.append((b"".join(p.logprobs for p in parts), answer.finished.residuals))
    assert results[0] == results[1]


def test_a_vector_and_its_opposite_restore_the_stream(tiny: Bench) -> None:
    steer = vector(1, 2)
    minus = Steering(
        layers=steer.layers, data=(-numbers(steer)).tobytes(), dtype="float32", shape=steer.shape
    )
    plain = tiny.request(LONG, read_layers=(0, 1, 2, 3))
    both = tiny.request(LONG, read_layers=(0, 1, 2, 3), steering=(steer, minus))
    base, restored = tiny.run([plain, both])
    assert restored.tokens == base.tokens
    assert_rows(restored.rows, base.rows)


@pytest.mark.row("C-286", "C-672")
def test_a_read_moves_by_scale_times_vector_and_nothing_below_moves(tiny: Bench) -> None:
    steer = vector(2, scale=2.0)
    plain = tiny.request(LONG, max_tokens=1, read_layers=(0, 1, 2, 3))
    steered = tiny.request(LONG, max_tokens=1, read_layers=(0, 1, 2, 3), steering=(steer,))
    base, moved = (answer.rows for answer in tiny.run([plain, steered]))
    assert np.array_equal(moved[:2], base[:2])
    np.testing.assert_allclose(
        moved[2] - base[2], np.broadcast_to(2.0 * numbers(steer)[0], base[2].shape), atol=1e-5
    )
    assert not np.allclose(moved[3], base[3])


@pytest.mark.row("C-288", "C-672")
def test_norm_match_moves_each_row_by_its_own_norm(tiny: Bench) -> None:
    steer = vector(2, scale=0.5, norm_match=True)
    plain = tiny.request(LONG, max_tokens=1, read_layers=(2,))
    steered = tiny.request(LONG, max_tokens=1, read_layers=(2,), steering=(steer,))
    base, moved = (answer.rows[0] for answer in tiny.run([plain, steered]))
    lengths = np.linalg.norm(moved - base, axis=-1)
    np.testing.assert_allclose(lengths, 0.5 * np.linalg.norm(base, axis=-1), rtol=1e-4)


@pytest.mark.row("C-249")
def test_the_last_layer_through_norm_and_head_gives_the_logprobs(tiny: Bench) -> None:
    request = tiny.request(LONG, max_tokens=5, read_layers=(3,), logprobs=384, echo=True)
    answer = tiny.run([request])[0]
    model = tiny.loaded.model
    with torch.inference_mode():
        rows = torch.from_numpy(answer.rows[0].copy())
        expected = model.lm_head(model.model.norm(rows)).log_softmax(-1).numpy()
    choice = answer.choices[0]
    assert choice.prompt_logprobs is not None
    position = 0
    for packed in (choice.prompt_logprobs, *choice.logprobs):
        for ids, values, _ in zip(*unpack(packed), strict=True):
            np.testing.assert_allclose(values, expected[position][ids], atol=2e-5)
            position += 1
    assert position == len(expected)


@pytest.mark.row("C-246", "C-247")
def test_rows_are_every_token_but_the_last_and_stop_tokens_count(tiny: Bench) -> None:
    prompt = tiny.encode(LONG)
    stop = Stopping(texts=("a", "e", "o"))
    answer = tiny.ask(prompt, max_tokens=20, read_layers=(0,), stopping=stop)
    tokens = answer.finished.prompt_tokens + answer.finished.completion_tokens - 1
    assert answer.rows.shape == (1, tokens, HIDDEN)
    assert tiny.ask(prompt, max_tokens=1, read_layers=(0,)).rows.shape[1] == len(prompt)
    assert tiny.ask(prompt, max_tokens=0, echo=True, read_layers=(0,)).rows.shape[1] == len(prompt)


def test_hooks_stand_only_on_layers_in_use_and_never_stay(
    tiny: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tiny.fresh()
    seen: list[list[int]] = []
    forward = bench.core._runner._forward

    def spy(*args: object) -> object:
        seen.append([n for n, b in enumerate(bench.loaded.blocks) if b._forward_hooks])
        return forward(*args)

    monkeypatch.setattr(bench.core._runner, "_forward", spy)
    bench.run([bench.request("a", max_tokens=2), bench.request("b", read_layers=(2,))])
    assert seen[0] == [2]
    assert not any(block._forward_hooks for block in bench.loaded.blocks)
    seen.clear()
    bench.ask("a")
    assert not any(seen)


BAD = {
    "a layer that is not there": (vector(4), "has Layers 0 to 3: it has no Layer 4"),
    "a negative layer": (vector(-1), "it has no Layer -1"),
    "another width": (
        Steering(layers=(0,), data=bytes(4 * 63), dtype="float32", shape=(1, 63)),
        "hidden size is 64",
    ),
    "data that does not fill the shape": (
        Steering(layers=(0,), data=bytes(4 * 63), dtype="float32", shape=(1, 64)),
        "does not fill its shape",
    ),
    "rows for other layers": (
        Steering(layers=(0, 1), data=bytes(4 * 64), dtype="float32", shape=(1, 64)),
        "one row for each layer",
    ),
    "not a number": (
        Steering(
            layers=(0,),
            data=np.full(64, np.nan, dtype=np.float32).tobytes(),
            dtype="float32",
            shape=(1, 64),
        ),
        "not finite",
    ),
    "infinite once scaled": (
        Steering(
            layers=(0,),
            data=np.full(64, 1e30, dtype=np.float32).tobytes(),
            dtype="float32",
            shape=(1, 64),
            scale=1e30,
        ),
        "not finite",
    ),
    "a position out of reach": (vector(0, positions=(12,), count=1), "reach position 11 at most"),
    "a negative position": (vector(0, positions=(-1,), count=1), "steers position -1"),
    "positions without vectors": (vector(0, positions=(1, 2), count=1), "positions are listed"),
}


@pytest.mark.row("C-282", "C-284", "C-671", "C-258")
@pytest.mark.parametrize("name", BAD)
def test_a_vector_that_cannot_be_applied_fails_its_request_alone(tiny: Bench, name: str) -> None:
    steering, message = BAD[name]
    bad = tiny.request([5] * 9, max_tokens=4, steering=(steering,))
    good = tiny.request(LONG, max_tokens=4)
    failed, answered = tiny.run([bad, good])
    assert failed.failed.code is FailureCode.INVALID_REQUEST
    assert message in failed.failed.message
    assert failed.failed.param == "apply_steering_vectors"
    assert answered.tokens == tiny.ask(LONG, max_tokens=4).tokens


@pytest.mark.row("C-670", "C-282")
def test_the_last_position_in_reach_can_be_steered(tiny: Bench) -> None:
    steer = vector(0, positions=(11,), count=1)
    request = tiny.request(
        [5] * 9, max_tokens=4, steering=(steer,), stopping=Stopping(ignore_end=True)
    )
    assert tiny.run([request])[0].finished.completion_tokens == 4


@pytest.mark.row("C-251", "C-252")
def test_reads_that_cannot_be_are_refused(tiny: Bench) -> None:
    failed = tiny.ask("a", read_layers=(1, 4)).failed
    assert failed.message == "The model has Layers 0 to 3: it has no Layer 4."
    assert failed.param == "output_residual_stream"
    several: list[EngineRequest] = [
        tiny.request("a", n=2, read_layers=(1,)),
        tiny.request("a", "b", read_layers=(1,)),
    ]
    for answer in tiny.run(several):
        assert answer.failed.param == "output_residual_stream"
        assert "Set n to 1" in answer.failed.message


def test_scores_that_overflow_fail_their_request_and_poison_nobody(
    tiny: Bench, tiny_reference: Reference
) -> None:
    bench = tiny.fresh(
        EngineLimits(cache_bytes=41 * 4096, block_tokens=4, max_sequences=4), max_model_len=130
    )
    huge = Steering(
        layers=(0, 1, 2, 3),
        data=np.full((4, 64), 3e38, dtype=np.float32).tobytes(),
        dtype="float32",
        shape=(4, 64),
    )
    steer = (huge, huge)
    for _ in range(3):
        bad = bench.request(LONG, max_tokens=4, steering=steer)
        good = bench.request("The cat", max_tokens=4, logprobs=1)
        failed, answered = bench.run([bad, good])
        assert failed.failed.code is FailureCode.SERVER_ERROR
        assert_equal(answered, good, tiny_reference.answer(good))
    for text in (LONG, LONG[:33], LONG[:50] * 2):
        request = bench.request(text, max_tokens=9, logprobs=1)
        assert_equal(bench.run([request])[0], request, tiny_reference.answer(request))


def test_bfloat16_vectors_and_rows(tiny: Bench, tiny_folder, tiny_reference: Reference) -> None:
    bits = (numbers(vector(1))).view(np.uint32) >> 16
    steer = Steering(
        layers=(1,), data=bits.astype(np.uint16).tobytes(), dtype="bfloat16", shape=(1, 64)
    )
    request = tiny.request(LONG, read_layers=(1,), steering=(steer,))
    assert_equal(tiny.run([request])[0], request, tiny_reference.answer(request))
    rounded = Bench.load(tiny_folder, dtype="bfloat16")
    answer = rounded.ask(LONG, max_tokens=1, read_layers=(0, 1), steering=(steer,))
    residuals = answer.finished.residuals
    assert residuals is not None
    assert residuals.dtype == "bfloat16"
    assert len(residuals.data) == 2 * int(np.prod(residuals.shape))
    exact = tiny.ask(LONG, max_tokens=1, read_layers=(0, 1), steering=(steer,)).rows
    assert_rows(answer.rows, exact, tolerance=0.05)
