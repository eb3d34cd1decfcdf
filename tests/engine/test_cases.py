"""Faults that users of other servers reported, each as a test at the engine's own level.

Others stand where they belong by subject; `pytest.mark.case` finds them all.
"""

import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from inference.engine.messages import EngineRequest, Event, Sampling, Steering, Stopping
from inference.engine.reference import Reference
from tests.engine.harness import (
    Answer,
    Bench,
    assert_equal,
    assert_rows,
    join,
    unpack,
)
from tests.engine.test_residual import HIDDEN, LONG, numbers, vector
from tests.engine.tiny_models import END_ID, START_ID, make_tokenizer, randomize, save

_ENDLESS = Stopping(ignore_end=True)


def _ids(count: int) -> list[int]:
    return np.random.default_rng(4).integers(3, 384, count).tolist()


def _all_logprobs(answer: Answer) -> bytes:
    return b"".join(part.logprobs for part in answer.choices[0].logprobs)


@pytest.mark.case("V02")
def test_known_prefixes_of_other_vectors_are_never_used(
    tiny: Bench, tiny_reference: Reference
) -> None:
    first, second = vector(1, scale=2.0), vector(1, scale=2.0)
    other_scale = Steering(
        layers=(1,), data=first.data, dtype="float32", shape=first.shape, scale=1.0
    )
    elsewhere = Steering(
        layers=(2,), data=first.data, dtype="float32", shape=first.shape, scale=2.0
    )
    placed = Steering(
        layers=(1,),
        data=first.data,
        dtype="float32",
        shape=first.shape,
        scale=2.0,
        positions=(3, 200),
    )
    plans = [(first,), (), (second,), (other_scale,), (elsewhere,), (placed,), (first,), ()]
    bench = tiny.fresh()
    for plan in plans:
        request = bench.request(_ids(300), max_tokens=4, logprobs=2, steering=plan)
        assert_equal(bench.run([request])[0], request, tiny_reference.answer(request))


@pytest.mark.case("V05")
def test_nothing_of_a_failed_or_cancelled_request_stays(
    tiny: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"max_tokens": 6, "logprobs": 3}
    baseline = tiny.fresh().ask(LONG, **plain)
    bench = tiny.fresh()
    block = bench.loaded.blocks[2]

    def fails(*args: object) -> None:
        raise RuntimeError("injected")

    fault = block.register_forward_hook(fails)
    steered = bench.request(LONG, steering=(vector(0, 3, scale=5.0),), read_layers=(1,))
    assert bench.run([steered])[0].failed.message == "The engine failed on this request."
    fault.remove()
    assert not any(part._forward_hooks for part in bench.loaded.blocks)
    cancelled = bench.request(LONG, steering=(vector(0, 3, scale=5.0),), max_tokens=50)
    bench.core.accept(cancelled, "w")
    for _ in range(3):
        bench.core.step()
    bench.core.abort(cancelled.request_id)
    bench.core.check_idle()
    assert not any(part._forward_hooks for part in bench.loaded.blocks)
    again = bench.ask(LONG, **plain)
    assert again.tokens == baseline.tokens
    assert _all_logprobs(again) == _all_logprobs(baseline)


@dataclass
class _Joined:
    """Requests that come in one after the other while the others run."""

    bench: Bench
    events: list[Event] = field(default_factory=list)

    def run(self, requests: list[EngineRequest]) -> list[Answer]:
        for request in requests:
            self.events += self.bench.core.accept(request, "w")
            for _ in range(3):
                self.events += self.bench.core.step()
        self.events += self.bench.finish()
        return [join(self.events, request.request_id) for request in requests]


@pytest.mark.case("V06")
def test_vectors_of_requests_at_different_steps_do_not_leak(
    tiny: Bench, tiny_reference: Reference
) -> None:
    first, second = vector(1, scale=2.0), vector(1, 2, scale=2.0)
    double = Steering(
        layers=first.layers, data=first.data, dtype="float32", shape=first.shape, scale=4.0
    )
    bench = tiny.fresh()
    requests = [
        bench.request(LONG, max_tokens=16, logprobs=1, stopping=_ENDLESS, steering=plan)
        for plan in ((), (first,), (second,), (double,))
    ]
    for request, answer in zip(requests, _Joined(bench).run(requests), strict=True):
        assert_equal(answer, request, tiny_reference.answer(request))


@pytest.mark.case("V07")
@pytest.mark.parametrize("kind", ["scale zero", "zero vector", "zero vector, norm_match"])
def test_steering_by_nothing_is_no_steering(tiny: Bench, kind: str) -> None:
    zeros = kind != "scale zero"
    own = vector(0, 2)
    null = Steering(
        layers=own.layers,
        data=bytes(len(own.data)) if zeros else own.data,
        dtype="float32",
        shape=own.shape,
        scale=1.0 if zeros else 0.0,
        norm_match=kind.endswith("norm_match"),
    )
    fields = {"max_tokens": 8, "logprobs": 4}
    plain, steered = (
        tiny.fresh().ask(LONG, **fields),
        tiny.fresh().ask(LONG, **fields, steering=(null,)),
    )
    assert steered.tokens == plain.tokens
    assert _all_logprobs(steered) == _all_logprobs(plain)
    assert steered.finished.prompt_tokens == plain.finished.prompt_tokens


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Another kind of block, as wide and as deep as the tiny Llama."""
    config = GPT2Config(
        vocab_size=384,
        n_embd=HIDDEN,
        n_layer=4,
        n_head=4,
        n_positions=128,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
    )
    model = randomize(GPT2LMHeadModel(config), seed=3)
    folder = save(tmp_path_factory.mktemp("gpt2"), model, make_tokenizer())
    return Bench.load(folder, max_model_len=100)


@pytest.mark.case("V09")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("places", ["all", "last prompt token", "a list", "generated only"])
def test_a_vector_is_added_at_its_positions_and_nowhere_earlier(
    kind: str, places: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue("tiny" if kind == "llama" else "gpt2").fresh(
        max_model_len=100
    )
    prompt, count = _ids(20), 6
    listed = {
        "all": None,
        "last prompt token": (19,),
        "a list": (4, 11, 22),
        "generated only": tuple(range(20, 25)),
    }[places]
    steer = vector(1, scale=2.0, positions=listed)
    fields = {"max_tokens": count, "read_layers": (0, 1, 2, 3), "stopping": _ENDLESS}
    rows = bench.ask(prompt, **fields, steering=(steer,)).rows
    plain = bench.ask(prompt, **fields).rows
    steered = range(25) if listed is None else listed
    first = min(steered)
    np.testing.assert_array_equal(rows[:, :first], plain[:, :first])
    # Up to the first steered generated token both saw the same tokens.
    same = 20 if places in ("all", "last prompt token") else min(21, 25)
    np.testing.assert_array_equal(rows[0, : min(same, 20)], plain[0, : min(same, 20)])
    moved = np.zeros((20, HIDDEN), dtype=np.float32)
    moved[[place for place in steered if place < 20]] = 2.0 * numbers(steer)[0]
    np.testing.assert_allclose(rows[1, :20] - plain[1, :20], moved, atol=2e-4)
    if places == "generated only":
        np.testing.assert_allclose(rows[1, 20] - plain[1, 20], 2.0 * numbers(steer)[0], atol=2e-4)


@pytest.mark.case("P05")
@pytest.mark.row("C-224")
def test_log_probabilities_are_of_the_models_own_distribution(tiny: Bench) -> None:
    settings = (
        Sampling(temperature=0.2, seed=1),
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=2.0, seed=1),
        Sampling(top_p=0.1, seed=1),
        Sampling(top_k=1, repetition_penalty=1.8, presence_penalty=2.0, seed=1),
    )
    seen = []
    for sampling in settings:
        answer = tiny.fresh().ask(LONG, max_tokens=1, logprobs=-1, sampling=sampling)
        ids, values, _ = unpack(answer.choices[0].logprobs[0])
        order = np.argsort(ids[0])
        seen.append(values[0][order])
        assert math.isclose(float(np.exp(values[0].astype(np.float64)).sum()), 1, abs_tol=1e-5)
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])


@pytest.mark.case("P04")
def test_filters_make_no_log_probability_infinite(tiny: Bench) -> None:
    answer = tiny.ask(
        LONG, echo=True, logprobs=5, sampling=Sampling(temperature=1.0, top_k=1, seed=2)
    )
    parts = [answer.choices[0].prompt_logprobs, *answer.choices[0].logprobs]
    for part in parts:
        assert part is not None
        ids, values, _ = unpack(part)
        assert np.isfinite(values[ids >= 0]).all()


@pytest.mark.case("P11")
def test_lists_of_a_stopped_choice_have_one_length(tiny: Bench) -> None:
    """The tokens of the stop text stay in all of them, and its text goes."""
    whole = tiny.ask(LONG, max_tokens=30, stopping=_ENDLESS).choices[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    stopping = Stopping(texts=(stop,), ignore_end=True)
    cut = tiny.ask(LONG, max_tokens=30, logprobs=2, stopping=stopping).choices[0]
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert cut.stop_reason == stop
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert sum(part.rows for part in cut.logprobs) == len(cut.token_ids)


@pytest.mark.case("E13")
def test_defaults_that_come_with_the_weights_change_no_draw(
    tiny: Bench, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "weights")
    path = folder / "generation_config.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    changes = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 1.05, "do_sample": True}
    path.write_text(json.dumps(stored | {"eos_token_id": END_ID} | changes))
    fields = {"max_tokens": 12, "n": 10, "sampling": Sampling(seed=1), "stopping": _ENDLESS}
    ours, theirs = (bench.ask(LONG, **fields) for bench in (tiny, Bench.load(folder)))
    texts = [choice.text for choice in theirs.choices.values()]
    assert texts == [choice.text for choice in ours.choices.values()]
    assert len(set(texts)) == 10


@pytest.mark.case("T12")
def test_ids_are_continued_as_they_are(tiny: Bench, tiny_reference: Reference) -> None:
    """Encoding the text of a path may give other ids: the engine never does."""
    tokenizer = tiny.loaded.tokenizer
    letters = [tokenizer.token_to_id(letter) for letter in "The"]
    assert tokenizer.encode(tokenizer.decode(letters)).ids[1:] != letters
    request = tiny.request(letters, max_tokens=4, prompt_logprobs=1, logprobs=1)
    answer = tiny.run([request])[0]
    assert answer.finished.prompt_tokens == 3
    assert_equal(answer, request, tiny_reference.answer(request))


@pytest.mark.case("A06")
def test_rows_of_generated_tokens_come_with_the_end(tiny: Bench) -> None:
    """Streamed or not: events carry the tokens, and the last one carries the rows of them all."""
    answer = tiny.ask(LONG, max_tokens=10, read_layers=(2,), stopping=_ENDLESS)
    tokens = [*tiny.encode(LONG), *answer.tokens]
    again = tiny.fresh().ask(tokens[:-1], max_tokens=1, read_layers=(2,))
    assert answer.rows.shape == (1, len(tokens) - 1, HIDDEN)
    assert_rows(answer.rows[:, -3:], again.rows[:, -3:])
