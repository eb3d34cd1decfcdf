"""The `openai` package of today, and the one of about two years ago."""

from pathlib import Path

import pytest

from tests.clients.conftest import PROGRAMS, run_client, told
from tests.conftest import DEFAULT_MODEL, Caller
from tests.live import Web

BLUE = " a canvas of colors, a canvas of"
SDKS = {"today": ("bin/python", "3."), "two years ago": ("old/bin/python", "1.57.")}


@pytest.fixture(scope="module", params=SDKS)
def sdk(
    request: pytest.FixtureRequest,
    clients: Path,
    default_web: Web,
    researcher: Caller,
    spender: Caller,
    tmp_path_factory: pytest.TempPathFactory,
):
    """What one version of the package saw, by case; a case that broke fails its own test."""
    python, version = SDKS[request.param]
    cases = told(
        run_client(
            clients / python,
            PROGRAMS / "python_sdk.py",
            folder=tmp_path_factory.mktemp("sdk"),
            BASE_URL=f"{default_web.address}/v1",
            KEY=researcher.secret,
            SPENT_KEY=spender.secret,
            MODEL=DEFAULT_MODEL,
        )
    )
    assert cases["version"]["result"].startswith(version)

    def result(name: str):
        assert "result" in cases[name], cases[name]
        return cases[name]["result"]

    return result


@pytest.mark.row("M-003")
def test_it_lists_and_finds_models(sdk) -> None:
    seen = sdk("models")
    assert seen == {
        "ids": [DEFAULT_MODEL, f"{DEFAULT_MODEL}-bf16"],
        "found": DEFAULT_MODEL,
    }


@pytest.mark.row("M-003", "C-020")
def test_it_completes_a_text(sdk) -> None:
    seen = sdk("text")
    assert seen.pop("request_id").startswith("req_")
    assert seen == {
        "text": BLUE,
        "finish_reason": "length",
        "usage": [3, 8],
        "object": "text_completion",
    }


def test_it_streams_with_usage(sdk) -> None:
    assert sdk("stream") == {"text": BLUE, "chunks": 9, "ids": 1, "usage": [3, 8]}


def test_it_leaves_a_stream_and_goes_on(sdk) -> None:
    assert sdk("left_stream") == {"first": " a", "afterwards": BLUE}


def test_it_gets_several_choices_of_several_prompts(sdk) -> None:
    seen = sdk("choices")
    assert [index for index, _ in seen] == [0, 1, 2, 3]
    assert len({text for _, text in seen}) == 4


def test_it_scores_a_text(sdk) -> None:
    seen = sdk("score")
    assert seen["text"] == "The sky is blue"
    assert seen["tokens"] == ["The", " sky", " is", " blue"]
    assert seen["text_offset"] == [0, 3, 7, 10]
    assert seen["token_logprobs"][0] is seen["top"][0] is None
    assert all(number < 0 for number in seen["token_logprobs"][1:])


@pytest.mark.row("M-003")
def test_it_takes_what_only_basalt_has(sdk) -> None:
    seen = sdk("extensions")
    assert seen["shape"] == [2, 3, 576]
    assert seen["prompt_logprobs"][0] is None
    assert [len(entry) for entry in seen["prompt_logprobs"][1:]] == [1, 1]


def test_a_repeat_gets_the_first_answer(sdk) -> None:
    assert sdk("repeat") == {"same": True}


@pytest.mark.row("C-022")
def test_it_names_its_request(sdk) -> None:
    assert sdk("raw_answer") == {"header": "from-the-sdk", "text": BLUE}


def test_it_streams_four_answers_at_once(sdk) -> None:
    assert sdk("at_once") == [BLUE] * 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unknown_field", ("BadRequestError", 400, "invalid_request", "temprature")),
        ("unknown_field_of_a_stream", ("BadRequestError", 400, "invalid_request", "temprature")),
        ("wrong_key", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("chat", ("BadRequestError", 400, "chat_completions_unsupported", None)),
    ],
)
def test_a_refusal_keeps_its_code_and_its_id(sdk, name: str, expected: tuple) -> None:
    seen = sdk(name)
    assert (seen["class"], seen["status"], seen["code"], seen["param"]) == expected
    assert seen["ids"][0] == seen["ids"][1]
    assert seen["ids"][0].startswith("req_")


@pytest.mark.case("B06")
def test_a_spent_budget_is_asked_once(sdk) -> None:
    seen = sdk("spent")
    assert seen["sent"] == 1
    assert (seen["refused"]["class"], seen["refused"]["code"]) == (
        "RateLimitError",
        "budget_exceeded",
    )
