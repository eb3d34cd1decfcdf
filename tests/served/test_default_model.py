"""The default model over HTTP, by the `openai` SDK as a researcher uses it."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.conftest import DEFAULT_MODEL as MODEL
from tests.live import Web

GOLDEN = Path(__file__).parents[1] / "golden" / "answers.jsonl"
PARIS = "The capital of France is"


@pytest.fixture
def sdk(default_web: Web, make_caller) -> Iterator[OpenAI]:
    caller = make_caller(tokens=1_000_000, at=default_web)
    with OpenAI(base_url=f"{default_web.address}/v1", api_key=caller.secret) as client:
        yield client


def recorded(name: str) -> dict[str, object]:
    """One recording of a real vLLM on the same weights."""
    with GOLDEN.open() as lines:
        return next(r for r in map(json.loads, lines) if r["name"] == name)


def test_the_sdk_gets_the_recorded_greedy_text(sdk: OpenAI) -> None:
    golden = recorded("greedy_text")
    answer = sdk.completions.create(model=MODEL, prompt=PARIS, max_tokens=24, temperature=0)
    assert answer.choices[0].text == golden["choices"][0]["text"]
    assert [answer.usage.prompt_tokens, answer.usage.completion_tokens] == golden["usage"]


def test_the_same_comes_streamed(sdk: OpenAI) -> None:
    golden = recorded("greedy_text")
    stream = sdk.completions.create(
        model=MODEL, prompt=PARIS, max_tokens=24, temperature=0, stream=True
    )
    chunks = list(stream)
    assert len(chunks) > 10
    assert "".join(chunk.choices[0].text for chunk in chunks) == golden["choices"][0]["text"]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_sdk_reads_a_first_answer_of_the_readme(sdk: OpenAI) -> None:
    answer = sdk.completions.create(model=MODEL, prompt="The sky is", max_tokens=8, temperature=0)
    streamed = sdk.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=8, temperature=0, stream=True
    )
    assert answer.choices[0].text == " a canvas of colors, a canvas of"
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_a_seeded_sample_is_the_recorded_one(sdk: OpenAI) -> None:
    golden = recorded("sample_seed1")
    answer = sdk.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=24, temperature=1.0, seed=1
    )
    assert answer.choices[0].text == golden["choices"][0]["text"]


@pytest.mark.row("C-194")
def test_two_prompts_with_two_choices_come_in_the_contracts_order(sdk: OpenAI) -> None:
    prompts = [PARIS, "Once upon a time"]
    answer = sdk.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=6, seed=42)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    alone = [
        sdk.completions.create(model=MODEL, prompt=prompt, max_tokens=6, seed=42 + choice)
        .choices[0]
        .text
        for prompt in prompts
        for choice in range(2)
    ]
    assert [choice.text for choice in answer.choices] == alone


def test_32_requests_at_once_are_all_answered(
    default_web: Web, make_caller, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two Users with 16 places each; prints how much quicker they are together than in turn."""
    callers = [make_caller(tokens=1_000_000, at=default_web) for _ in range(2)]

    def ask(number: int) -> str:
        answer = callers[number % 2].client.post(
            "/v1/completions",
            json={"prompt": f"Number {number} is", "max_tokens": 16, "temperature": 0},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    ask(0)
    began = time.monotonic()
    alone = [ask(number) for number in range(8)]
    in_turn = (time.monotonic() - began) / 8
    began = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    at_once = (time.monotonic() - began) / 32
    assert together[:8] == alone
    assert all(together)
    with capsys.disabled():
        print(f"\n32 at once are {in_turn / at_once:.1f} times as fast as one by one")


@pytest.mark.row("C-223")
def test_the_same_request_gives_the_same_tokens_again(sdk: OpenAI) -> None:
    for settings in ({"temperature": 0}, {"temperature": 1, "seed": 11}):
        answers = [
            sdk.completions.create(model=MODEL, prompt=PARIS, max_tokens=12, **settings)
            .choices[0]
            .text
            for _ in range(3)
        ]
        assert len(set(answers)) == 1


@pytest.mark.case("P01")
@pytest.mark.row("C-240")
def test_a_prompt_is_scored_without_generating(sdk: OpenAI) -> None:
    answer = sdk.completions.create(
        model=MODEL, prompt="Your answer: Yes", max_tokens=0, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text == "Your answer: Yes"
    assert choice.finish_reason == "length"
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == 4
    assert lists.token_logprobs[0] is None
    assert lists.top_logprobs[0] is None
    assert all(value < 0 for value in lists.token_logprobs[1:])


@pytest.mark.case("P04", "P06")
@pytest.mark.parametrize("prompt", ["correct horse battery staple", "\n1. Carol has 20"])
def test_echoed_tokens_join_to_the_text_and_their_numbers_are_finite(
    sdk: OpenAI, prompt: str
) -> None:
    raw = sdk.completions.with_raw_response.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=3,
        echo=True,
        logprobs=5,
        temperature=1,
        seed=4,
        extra_body={"top_k": 1},
    )

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    choice = json.loads(raw.text, parse_constant=refuse)["choices"][0]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert choice["text"].startswith(prompt)
    lengths = [len(token) for token in lists["tokens"]]
    assert lists["text_offset"] == [sum(lengths[:place]) for place in range(len(lengths))]
    assert all(-1000 < value <= 0 for value in lists["token_logprobs"][1:])
