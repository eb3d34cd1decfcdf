"""What the engine answers is what the reference answers, whatever runs beside it."""

import pytest

from inference.engine.limits import EngineLimits
from inference.engine.messages import (
    Delta,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    Sampling,
    Stopping,
)
from inference.engine.reference import Reference
from tests.engine.harness import Bench, assert_equal, join, unpack

SMALL = EngineLimits(cache_bytes=41 * 4096, block_tokens=4, max_sequences=5, step_tokens=11)
"""Little room: chunks of a few tokens, few places, waiting."""

LONG = "Once upon a time there was a little house at the edge of the wood. " * 3
SEEDED = Sampling(temperature=1.0, seed=7)


def _check(bench: Bench, twin: Reference, requests: list[EngineRequest]) -> None:
    for request, answer in zip(requests, bench.run(requests), strict=True):
        assert_equal(answer, request, twin.answer(request))


@pytest.mark.case("E09")
def test_prompts_of_many_lengths_at_once(tiny: Bench, tiny_reference: Reference) -> None:
    bench = tiny.fresh()
    texts = ["a", "The capital", LONG, LONG[:40], "東京 🌶", "x" * 30]
    requests = [bench.request(text, max_tokens=6, logprobs=3) for text in texts]
    _check(bench, tiny_reference, requests)


def test_little_room_changes_nothing(tiny: Bench, tiny_reference: Reference) -> None:
    bench = tiny.fresh(SMALL, max_model_len=130)
    requests = [
        bench.request(LONG[n : n + 9 + 13 * n], max_tokens=4 + n, logprobs=1, priority=n % 3)
        for n in range(9)
    ]
    _check(bench, tiny_reference, requests)


@pytest.mark.case("E05")
@pytest.mark.row("C-200")
def test_choices_draw_apart_from_one_prompt(tiny: Bench, tiny_reference: Reference) -> None:
    bench = tiny.fresh()
    request = bench.request(LONG, "The cat", n=5, max_tokens=7, sampling=SEEDED, logprobs=2)
    answer = bench.run([request])[0]
    assert_equal(answer, request, tiny_reference.answer(request))
    assert len({tuple(choice.token_ids) for choice in answer.choices.values()}) > 5
    single = bench.ask(LONG, max_tokens=7, sampling=SEEDED)
    assert single.tokens == answer.tokens
    third = bench.ask(LONG, max_tokens=7, sampling=Sampling(temperature=1.0, seed=7 + 2))
    assert third.tokens == answer.choices[2].token_ids


def test_choices_compute_their_prompt_once(tiny: Bench) -> None:
    bench = tiny.fresh()
    before = bench.core.figures.prompt_tokens
    bench.ask(LONG, n=8, max_tokens=3, sampling=SEEDED)
    assert bench.core.figures.prompt_tokens - before == len(bench.encode(LONG))


def test_first_tokens_of_unseeded_choices_differ(tiny: Bench) -> None:
    answer = tiny.ask("The cat", n=64, max_tokens=1, sampling=Sampling())
    assert len({choice.token_ids[0] for choice in answer.choices.values()}) > 5


@pytest.mark.case("E04")
def test_a_seed_gives_the_same_tokens_in_any_company(tiny: Bench) -> None:
    request = {"max_tokens": 12, "sampling": Sampling(temperature=0.8, seed=42)}
    alone = tiny.fresh().ask("The capital of", **request).tokens
    for company in (Sampling(), Sampling(seed=7)):
        bench = tiny.fresh()
        pair = [
            bench.request("The capital of", **request),
            bench.request("Once upon", max_tokens=20, sampling=company),
        ]
        assert bench.run(pair)[0].tokens == alone
    bench = tiny.fresh()
    first = bench.request("The capital of", **request)
    events = bench.core.accept(first, "w")
    for _ in range(5):
        events += bench.core.step()
    bench.core.accept(bench.request(LONG, max_tokens=9, sampling=Sampling()), "w")
    events += bench.finish()
    assert join(events, first.request_id).tokens == alone


@pytest.mark.case("E10", "P14")
def test_a_known_prefix_changes_no_number(tiny: Bench, tiny_reference: Reference) -> None:
    bench = tiny.fresh()
    request = bench.request(LONG, max_tokens=5, logprobs=2)
    scored = bench.request(LONG[:100], max_tokens=2, prompt_logprobs=2)
    for _ in range(2):
        _check(bench, tiny_reference, [request])
        _check(bench, tiny_reference, [scored])
    before = bench.core.figures.prompt_tokens
    bench.run([request])
    assert bench.core.figures.prompt_tokens - before <= 16
    # A continuation, as a Branch asks for it, finds its parent's generated tokens too.
    grown = (*request.prompts[0], *bench.run([request])[0].tokens)
    _check(bench, tiny_reference, [bench.request(grown, max_tokens=5, logprobs=2)])


def _computed(bench: Bench, requests: list[EngineRequest]) -> int:
    """Prompt tokens that ran through the model for these requests, taken together."""
    before = bench.core.figures.prompt_tokens
    bench.run(requests)
    return bench.core.figures.prompt_tokens - before


@pytest.mark.parametrize("chunk", [256, 64])
def test_requests_that_come_together_compute_what_they_share_once(
    tiny: Bench, tiny_reference: Reference, chunk: int
) -> None:
    """As the Nodes of a Branch come: none waits for another to end, and each has its own seed."""
    limits = EngineLimits(cache_bytes=64 << 20, step_tokens=chunk)
    prompt = tiny.encode(LONG)

    def branch(count: int, **fields: object) -> list[EngineRequest]:
        drawn = [Sampling(temperature=1.0, seed=7 + place) for place in range(count)]
        return [
            tiny.request(prompt, max_tokens=5, logprobs=1, sampling=each, **fields)
            for each in drawn
        ]

    last_block = len(prompt) - (len(prompt) - 1) // 16 * 16
    assert _computed(tiny.fresh(limits), branch(8)) == len(prompt) + 7 * last_block
    _check(tiny.fresh(limits), tiny_reference, branch(3))
    # Nothing is waited for that would be of no use.
    apart = branch(2) + branch(2, cache_scope="another")
    assert _computed(tiny.fresh(limits), apart) == 2 * (len(prompt) + last_block)
    parted = [tiny.request((number, *prompt[1:]), max_tokens=2) for number in range(5, 9)]
    assert _computed(tiny.fresh(limits), parted) == 4 * len(prompt)


def test_a_request_that_waits_for_a_prompt_outlives_its_end(tiny: Bench) -> None:
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, max_sequences=8, step_tokens=16))
    first, second = (bench.request(LONG, max_tokens=3) for _ in range(2))
    events = bench.core.accept(first, "w") + bench.core.accept(second, "w")
    events += bench.core.step()
    assert bench.core.figures.waiting == 1
    bench.core.abort(first.request_id)
    events += bench.finish()
    assert join(events, second.request_id).tokens == tiny.fresh().ask(LONG, max_tokens=3).tokens


def test_prefixes_are_not_shared_across_scopes(tiny: Bench) -> None:
    bench = tiny.fresh()
    bench.ask(LONG, cache_scope="ada")
    before = bench.core.figures.prompt_tokens
    bench.ask(LONG, cache_scope="ben")
    assert bench.core.figures.prompt_tokens - before == len(bench.encode(LONG))


@pytest.mark.row("C-240", "C-239")
@pytest.mark.parametrize("chunk", [256, 8])
def test_echo_scores_the_prompt_without_generating(
    tiny: Bench, tiny_reference: Reference, chunk: int
) -> None:
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, max_sequences=4, step_tokens=chunk))
    request = bench.request(LONG[:60], "a", max_tokens=0, echo=True, logprobs=1)
    answer = bench.run([request])[0]
    assert_equal(answer, request, tiny_reference.answer(request))
    assert [len(choice.texts) for choice in answer.choices.values()] == [1, 1]
    assert answer.choices[0].text == ""
    assert answer.finished.completion_tokens == 2


@pytest.mark.row("C-234", "C-231")
def test_the_whole_vocabulary_of_each_prompt_position(
    tiny: Bench, tiny_reference: Reference
) -> None:
    request = tiny.request("The capital", max_tokens=1, prompt_logprobs=-1, logprobs=0)
    answer = tiny.run([request])[0]
    assert_equal(answer, request, tiny_reference.answer(request))
    packed = answer.choices[0].prompt_logprobs
    assert packed is not None
    ids, values, ranks = unpack(packed)
    assert sorted(ids[0].tolist()) == list(range(384))
    assert sorted(ranks[0].tolist()) == list(range(1, 385))
    assert abs(float((2.718281828459045 ** values[0].astype("float64")).sum()) - 1) < 1e-5


def test_every_choice_gets_the_prompt_logprobs_on_its_first_event(tiny: Bench) -> None:
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, max_sequences=2, step_tokens=64))
    answer = bench.ask("The capital", n=4, max_tokens=3, sampling=SEEDED, prompt_logprobs=1)
    reports = {id(choice.prompt_logprobs) for choice in answer.choices.values()}
    assert len(reports) == 1
    deltas = [event for event in answer.events if isinstance(event, Delta)]
    assert sum(delta.prompt_logprobs is not None for delta in deltas) == 4


@pytest.mark.case("E16")
@pytest.mark.parametrize(
    "stopping",
    [
        Stopping(texts=("a",)),
        Stopping(texts=("e", "a", "o"), include_text=True),
        Stopping(texts=("a", "e", "t", "n", " "), min_tokens=9),
        Stopping(texts=("zzzzzzzz",)),
        Stopping(ignore_end=True),
        Stopping(token_ids=tuple(range(3, 200))),
        Stopping(token_ids=tuple(range(3, 200)), min_tokens=4),
        Stopping(token_ids=tuple(range(3, 200)), include_text=True),
    ],
)
def test_stops(tiny: Bench, tiny_reference: Reference, stopping: Stopping) -> None:
    requests = [
        tiny.request(text, max_tokens=20, sampling=Sampling(seed=seed), stopping=stopping)
        for seed, text in enumerate(["The capital", LONG[:50], "def add", "0123"])
    ]
    _check(tiny, tiny_reference, requests)


@pytest.mark.row("C-663")
@pytest.mark.case("E07")
def test_penalties_and_filters_together(tiny: Bench, tiny_reference: Reference) -> None:
    samplings = [
        Sampling(seed=1, repetition_penalty=1.4),
        Sampling(seed=2, presence_penalty=1.5, frequency_penalty=0.5),
        Sampling(seed=3, frequency_penalty=-1.0, temperature=0.5),
        Sampling(seed=4, top_k=5),
        Sampling(seed=5, top_p=0.6),
        Sampling(seed=6, min_p=0.1, top_k=40, top_p=0.9, repetition_penalty=0.8),
        Sampling(temperature=0, presence_penalty=2.0),
        Sampling(seed=8, temperature=2.0, top_k=10**9),
    ]
    requests = [
        tiny.request("the cat the cat sat", max_tokens=16, sampling=sampling, logprobs=1)
        for sampling in samplings
    ]
    _check(tiny, tiny_reference, requests)


@pytest.mark.case("E12")
@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-4])
def test_a_tiny_temperature_is_greedy(tiny: Bench, temperature: float) -> None:
    greedy = tiny.ask("The capital", max_tokens=6).tokens
    found = tiny.ask("The capital", max_tokens=6, sampling=Sampling(temperature=temperature))
    assert found.tokens == greedy


@pytest.mark.row("C-660")
def test_lower_priority_runs_first_and_equal_ones_in_order(tiny: Bench) -> None:
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, max_sequences=1, step_tokens=64))
    priorities = [3, 0, 5, 0, 3]
    requests = [bench.request("The cat", max_tokens=2, priority=p) for p in priorities]
    events = [event for request in requests for event in bench.core.accept(request, "w")]
    events += bench.finish()
    ends = [event.request_id for event in events if isinstance(event, Finished)]
    order = [requests[n].request_id for n in (1, 3, 0, 4, 2)]
    assert ends == order


@pytest.mark.row("C-096")
@pytest.mark.case("E01", "E02")
@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ((), "at least one token"),
        (((),), "at least one token"),
        (((5,), ()), "at least one token"),
        (((5, 384),), "Token id 384 is out of vocabulary"),
        (((-1,),), "Token id -1 is out of vocabulary"),
        (((5279552648203111001,),), "out of vocabulary"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_next_request_works(
    tiny: Bench, prompts: tuple[tuple[int, ...], ...], message: str
) -> None:
    failed = tiny.ask(*prompts).failed
    assert failed.code is FailureCode.INVALID_REQUEST
    assert message in failed.message
    assert failed.param == "prompt"
    assert tiny.ask([383]).finished.completion_tokens > 0


@pytest.mark.row("C-097")
@pytest.mark.case("E14")
def test_a_context_that_is_too_long_is_refused_with_its_numbers(tiny: Bench) -> None:
    failed = tiny.ask([5] * 4, max_tokens=509).failed
    assert failed.code is FailureCode.CONTEXT_LENGTH
    assert failed.message == (
        "This model's maximum context length is 512 tokens. However, you requested 509 output"
        " tokens and your prompt contains 4 input tokens, for a total of 513 tokens. Please reduce"
        " the length of the input prompt or the number of requested output tokens."
        " (parameter=input_tokens, value=4)"
    )
    assert failed.param == "prompt"
    assert tiny.ask([5] * 512, max_tokens=0, echo=True).failed.code is FailureCode.CONTEXT_LENGTH
    full = tiny.ask([5] * 4, max_tokens=508, stopping=Stopping(ignore_end=True))
    assert full.finished.completion_tokens == 508


def test_a_stop_id_outside_the_vocabulary_is_refused(tiny: Bench) -> None:
    assert tiny.ask([5], stopping=Stopping(token_ids=(9999,))).failed.param == "stop_token_ids"


@pytest.mark.parametrize("when", [0, 1, 4])
def test_an_abort_frees_everything(tiny: Bench, when: int) -> None:
    bench = tiny.fresh(SMALL, max_model_len=130)
    kept = bench.request("The capital", max_tokens=12)
    gone = bench.request(LONG[:80], n=3, max_tokens=20, sampling=SEEDED)
    events = [*bench.core.accept(gone, "w"), *bench.core.accept(kept, "w")]
    for _ in range(when):
        events += bench.core.step()
    bench.core.abort(gone.request_id)
    after = bench.finish()
    assert not [event for event in after if event.request_id == gone.request_id]
    assert (
        join(events + after, kept.request_id).tokens
        == tiny.ask("The capital", max_tokens=12).tokens
    )


def test_a_fault_of_one_request_fails_that_request_alone(
    tiny: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tiny.fresh()
    bad, good = bench.request("Bad", max_tokens=6), bench.request("The capital", max_tokens=6)
    run = bench.core._runner.run

    def broken(chunks):
        if any(chunk.sequence.job.request is bad for chunk in chunks):
            raise RuntimeError("this one cannot run")
        return run(chunks)

    monkeypatch.setattr(bench.core._runner, "run", broken)
    answers = bench.run([bad, good])
    assert answers[0].failed.code is FailureCode.SERVER_ERROR
    assert answers[1].tokens == tiny.ask("The capital", max_tokens=6).tokens


def test_out_of_memory_is_told_apart(tiny: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tiny.fresh()

    def broken(chunks):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(bench.core._runner, "run", broken)
    assert bench.ask("Big").failed.code is FailureCode.OUT_OF_MEMORY


def test_requests_beyond_the_bounds_are_refused(tiny: Bench) -> None:
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, max_requests=1, result_bytes=100_000))
    first = bench.request("The capital")
    bench.core.accept(first, "w")
    refused = bench.core.accept(bench.request("Two"), "w")[-1]
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.OUT_OF_MEMORY
    bench.finish()
    scored = bench.ask([5] * 40, prompt_logprobs=-1)
    assert scored.failed.code is FailureCode.OUT_OF_MEMORY


def test_results_in_memory_are_bounded(tiny: Bench, tiny_reference: Reference) -> None:
    """Two requests that fit one at a time run one after the other."""
    size = 30 * 384 * 12
    bench = tiny.fresh(EngineLimits(cache_bytes=64 << 20, result_bytes=size + 1000))
    requests = [bench.request([9] * 30, prompt_logprobs=-1, max_tokens=3) for _ in range(2)]
    events = [event for request in requests for event in bench.core.accept(request, "w")]
    events += bench.core.step()
    assert bench.core.figures.waiting == 1
    events += bench.finish()
    for request in requests:
        assert_equal(join(events, request.request_id), request, tiny_reference.answer(request))


def test_a_cache_too_small_for_one_sequence_is_refused_at_load(tiny: Bench) -> None:
    with pytest.raises(ValueError, match="too small for one sequence of 512 tokens"):
        tiny.fresh(EngineLimits(cache_bytes=1 << 16))
