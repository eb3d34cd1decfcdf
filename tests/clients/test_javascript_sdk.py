"""The `openai` SDK for JavaScript, on a page of another origin in Chromium."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import PROGRAMS, run_client, told
from tests.conftest import DEFAULT_MODEL, Caller, new_caller
from tests.live import Web

SKY = [" a", " canvas", " of", " colors", ",", " a", " canvas", " of"]
ID = re.compile(r"req_[0-9a-f]{32}")


@pytest.fixture(scope="module")
def page(
    clients: Path,
    default_web: Web,
    researcher: Caller,
    spender: Caller,
    tmp_path_factory: pytest.TempPathFactory,
):
    """What the page saw, by case; a case that broke fails its own test."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a browser: install the package chromium")
    small = new_caller(default_web, tokens=10)
    small.client.close()
    cases = told(
        run_client(
            sys.executable,
            PROGRAMS / "browser.py",
            folder=tmp_path_factory.mktemp("page"),
            CHROMIUM=chromium,
            SDK=str(clients / "page" / "node_modules" / "openai"),
            BASE_URL=f"{default_web.address}/v1",
            KEY=researcher.secret,
            SMALL_KEY=small.secret,
            SPENT_KEY=spender.secret,
            MODEL=DEFAULT_MODEL,
        )
    )

    def result(name: str):
        assert "result" in cases[name], cases[name]
        return cases[name]["result"]

    return result


@pytest.mark.row("C-028", "C-029", "C-031")
def test_a_page_lists_models_with_a_key(page, default_web: Web) -> None:
    """The key makes the browser ask first, without the key."""
    assert page("models") == [DEFAULT_MODEL, f"{DEFAULT_MODEL}-bf16"]
    assert re.search(r"method=OPTIONS .*path=/v1/models .*status=204", default_web.log.read_text())


@pytest.mark.row("C-028", "C-030")
def test_a_page_completes_a_text_and_reads_its_id(page) -> None:
    seen = page("text")
    assert seen["text"] == "".join(SKY)
    assert seen["usage"]["total_tokens"] == 11
    assert ID.fullmatch(seen["id"])


@pytest.mark.row("C-028")
def test_a_page_streams(page) -> None:
    seen = page("stream")
    assert seen["texts"] == SKY
    assert seen["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}


def test_a_page_leaves_a_stream_and_goes_on(page) -> None:
    assert page("leftStream") == {"first": " a", "afterwards": "".join(SKY)}


@pytest.mark.row("C-029", "C-030", "C-022")
def test_a_page_sends_a_key_for_repeats_and_an_id(page) -> None:
    assert page("ownHeaders") == {"text": "".join(SKY), "id": "from-a-page"}


@pytest.mark.row("C-030")
def test_a_page_reads_that_it_was_clamped(page) -> None:
    assert page("clamped") == "requested=30,applied=7,reason=budget,source=client"


@pytest.mark.row("C-028", "C-030")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unknownField", ("BadRequestError", 400, "invalid_request", "temprature")),
        ("wrongKey", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("chat", ("BadRequestError", 400, "chat_completions_unsupported", None)),
        ("running", ("ConflictError", 409, "running", None)),
    ],
)
def test_a_page_reads_a_refusal_with_its_id(page, name: str, expected: tuple) -> None:
    seen = page(name)
    assert (seen["class"], seen["status"], seen["code"], seen["param"]) == expected
    assert ID.fullmatch(seen["id"])


@pytest.mark.row("C-030")
def test_a_page_reads_when_to_come_again(page) -> None:
    assert page("running")["after"] == "1"


@pytest.mark.row("C-030")
@pytest.mark.case("B06")
def test_a_spent_budget_is_asked_once_from_a_page(page) -> None:
    seen = page("spent")
    assert (seen["code"], seen["retry"], seen["sent"]) == ("budget_exceeded", "false", 1)
