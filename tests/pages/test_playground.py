"""The Playground's page and its Runs over HTTP, with a runner and a scripted engine beside them."""

import base64
import io
import json
import re
from datetime import timedelta
from uuid import uuid4

import numpy as np
import pytest
import zstandard
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from accounts.keys import pause_key, revoke_key
from accounts.models import User
from billing import spend_stop
from billing.allowance import tokens_left
from billing.grants import grant, set_allowance, set_budget
from billing.models import Hold, Source
from inference import catalogue
from inference.engine.messages import FailureCode, Residuals
from inference.fleet import Boot, ModelState, Stage
from jobs.models import Run
from tests.accounts.factory import make_key
from tests.live import eventually
from tests.pages.client import send, signed_in
from tests.pages.test_usage import words


@pytest.fixture
def user(database: None) -> User:
    user = User.objects.create_user(f"{uuid4().hex}@example.org")
    set_allowance(user_id=user.id, tokens=0)
    grant(user_id=user.id, tokens=100_000, by=None)
    return user


@pytest.fixture
def browser(user: User, tiny_catalogue, no_work):
    return signed_in(user)


def started(browser, *bodies: dict[str, object]) -> list[dict[str, object]]:
    full = [
        {"model": "tiny", "prompt": "A bell", "max_tokens": 4} | body for body in bodies or [{}]
    ]
    answer = send(browser, "/playground/runs", {"runs": full})
    assert answer.status_code == 200, answer.content
    return answer.json()["results"]


def start(browser, **fields: object) -> dict[str, object]:
    [result] = started(browser, fields)
    assert result["run"], result
    return result["run"]


def refused(browser, **fields: object) -> dict[str, object]:
    [result] = started(browser, fields)
    assert result["run"] is None
    return result["error"]


def whole(browser, number: int = 1) -> dict[str, object]:
    return browser.get(f"/playground/runs/{number}").json()


def ended(browser, number: int = 1) -> dict[str, object]:
    eventually(lambda: whole(browser, number)["status"] not in ("waiting", "running"), 20)
    eventually(lambda: Run.objects.filter(number=number, owner__isnull=False).count() == 0)
    return whole(browser, number)


def state(browser) -> dict[str, object]:
    html = browser.get("/playground").content.decode()
    return json.loads(
        re.search(r'<script id="playground-state" type="application/json">(.*?)</script>', html)[1]
    )


@pytest.mark.row("A-091", "A-221", "A-223", "A-291", "A-231")
def test_the_page_has_prompt_settings_and_run_also_without_runs(browser) -> None:
    html = browser.get("/playground").content.decode()
    text = words(html.partition('<div class="work">')[2])
    for label in (
        "Prompt",
        "Run",
        "Model",
        "Max tokens",
        "Temperature",
        "Top p",
        "Top k",
        "Min p",
        "Presence penalty",
        "Frequency penalty",
        "Repetition penalty",
        "Stop texts",
        "Seed",
        "Choices",
        "Top logprobs shown",
        "Echo",
        "Special tokens",
        "Priority",
        "Read Layers",
        "Steer",
        "Heatmap",
        "Reset to default",
    ):
        assert label in text
    assert 'placeholder="The sky is"' in html
    assert "No Runs yet." in text
    assert re.search(r'id="runs-scroll" hidden', html)
    assert "Continue the text" not in text


@pytest.mark.row("A-119", "A-120", "A-570")
def test_every_user_is_offered_the_same_models_by_short_name_and_logo(browser) -> None:
    mine = state(browser)["models"]
    assert [model["id"] for model in mine] == [e.id for e in catalogue.current().enabled]
    assert all(model["label"] and model["logo"].endswith(".svg") for model in mine)
    other = signed_in(User.objects.create_user(f"{uuid4().hex}@example.org"))
    assert [m["id"] for m in state(other)["models"]] == [m["id"] for m in mine]


@pytest.mark.row("A-119")
def test_the_contracts_models_have_their_short_names() -> None:
    from inference.catalogue import load_catalogue

    contracts = load_catalogue(settings.BASE_DIR / "deploy" / "catalogue-acs.toml")
    assert {entry.id: entry.label for entry in contracts.models} == {
        "llama-8b": "Llama 3.1 8B",
        "llama-405b": "Llama 3.1 405B",
        "trinity-truebase": "Trinity Large",
    }


@pytest.mark.row("A-247", "A-248", "A-558")
def test_the_page_knows_what_is_warm_and_how_far_a_start_is(
    browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.fleet import Fleet

    boots = {
        "tiny": ModelState(warm=True, boot=None),
        "tiny-other": ModelState(
            warm=False, boot=Boot(Stage.WEIGHTS_LOADING, timezone.now().timestamp() - 2)
        ),
    }
    monkeypatch.setattr(Fleet, "state", lambda self, entry: boots[entry.id])
    first, second = browser.get("/playground/models").json()["models"]
    assert (first["warm"], first["stage"], first["left_seconds"]) == (True, None, None)
    assert (second["warm"], second["stage"]) == (False, "Loading model weights")
    assert second["left_seconds"] == 60


@pytest.mark.row("A-236", "A-237", "A-243", "A-244", "A-118", "A-239")
def test_a_run_needs_no_key_and_tells_how_each_choice_ended(
    browser, user: User, runner, scripted
) -> None:
    run = start(browser, n=2, temperature=1, stop=["."], max_tokens=4)
    assert (run["number"], run["status"]) == (1, "waiting")
    asked = scripted.next()
    assert asked.request.stopping.texts == (".",)
    asked.say(" rings", index=0, finish="stop", stop_reason=".")
    asked.say(" tolls", index=1, finish="length")
    asked.finish()
    found = ended(browser)
    assert found["status_label"] == "Completed"
    assert [(c["text"], c["finish_reason"], c["stop_reason"]) for c in found["choices"]] == [
        (" rings", "stop", "."),
        (" tolls", "length", None),
    ]
    assert found["usage"] == {
        "prompt_tokens": found["usage"]["prompt_tokens"],
        "completion_tokens": 2,
    }
    hold = Hold.objects.get(user=user)
    assert (hold.source, hold.key_id) == (Source.PLAYGROUND, None)


@pytest.mark.row("A-231")
def test_a_run_may_pass_the_limit_of_answers_without_a_stream(browser, user: User) -> None:
    grant(user_id=user.id, tokens=1_000_000, by=None)
    error = refused(browser, max_tokens=settings.BASALT.deadline_max_tokens + 1)
    assert error["code"] == "context_length_exceeded"


@pytest.mark.row("A-227", "A-574", "A-232")
@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 2], [-0.1, 2.1]),
        ("top_p", [0.01, 1], [0, 1.01]),
        ("top_k", [-1, 40], [-2, 1.5]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 9], [0]),
        ("seed", [0], [-1]),
        ("logprobs", [0, 100], [-1, 101]),
        ("n", [1, 128], [0, 129]),
        ("priority", [0, 7], [-1]),
        ("stop", [["a"] * 4], [["a"] * 5]),
    ],
)
def test_ranges_are_those_of_the_api_and_a_refusal_names_the_setting(
    browser, name: str, inside: list, outside: list
) -> None:
    for value in inside:
        run = start(browser, **{name: value})
        assert run["request"][name] == value
    for value in outside:
        assert refused(browser, **{name: value})["param"] == name
    too_much = refused(browser, n=100, max_tokens=321)
    assert "32000" in too_much["message"]


@pytest.mark.row("A-574")
def test_the_priority_reaches_the_engine(browser, runner, scripted) -> None:
    start(browser, priority=7)
    assert scripted.next().request.priority == 7


@pytest.mark.row("A-126", "A-572")
def test_a_prompt_has_no_nul_and_lf_line_breaks(browser, user: User) -> None:
    error = refused(browser, prompt="a\0b")
    assert error["message"] == "A text cannot hold the character U+0000 (NUL)."
    assert not Run.objects.filter(user=user).exists()
    start(browser, prompt="one\r\ntwo")
    assert whole(browser)["prompt"] == "one\ntwo"


@pytest.mark.row("A-122", "A-123", "A-571", "C-369")
def test_a_user_starts_so_many_runs_a_minute_and_reads_do_not_count(
    browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = settings.BASALT.model_copy(update={"rate_limit_per_minute": 3})
    monkeypatch.setattr(settings, "BASALT", limited)
    for _ in range(10):
        browser.get("/playground")
        browser.get("/playground/models")
    results = started(browser, {}, {}, {}, {})
    assert [result["run"] is not None for result in results] == [True, True, True, False]
    assert results[3]["error"]["code"] == "rate_limited"
    assert re.search(r"Try again in \d+ seconds?\.", results[3]["error"]["message"])


@pytest.mark.row("A-124")
def test_while_gpu_work_is_paused_nothing_starts_and_what_waits_goes_on_later(
    browser, runner, scripted
) -> None:
    stop = spend_stop.lock(by=None)
    try:
        error = refused(browser)
        assert error["code"] == "spend_cap"
        assert "paused" in error["message"]
    finally:
        spend_stop.clear(by=None)
    assert stop.reason
    start(browser)
    scripted.next().answer("a")
    assert ended(browser)["status"] == "completed"


@pytest.mark.row("A-125", "A-253", "A-252")
def test_a_run_that_the_tokens_cannot_hold_is_refused_and_makes_nothing(
    browser, user: User
) -> None:
    set_budget(user_id=user.id, tokens=12, by=None)
    error = refused(browser, max_tokens=400)
    assert error["code"] == "budget_exceeded"
    assert re.search(
        r"can use up to \d+ tokens, more than your token budget has left", error["message"]
    )
    set_allowance(user_id=user.id, tokens=10)
    assert re.search(r"refills on 1 \w+ \d{4} \(UTC\)", refused(browser, max_tokens=400)["message"])
    assert not Run.objects.filter(user=user).exists()
    assert not Hold.objects.filter(user=user).exists()


@pytest.mark.row("A-575")
def test_a_run_that_finds_too_few_tokens_when_it_starts_fails_and_costs_nothing(
    browser, user: User, make_runner, scripted
) -> None:
    start(browser, max_tokens=40)
    set_budget(user_id=user.id, tokens=5, by=None)
    make_runner()
    found = ended(browser)
    assert (found["status"], found["error"]["code"]) == ("failed", "budget_exceeded")
    assert found["request"]["max_tokens"] == 40
    assert scripted.asked.empty()
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 5


@pytest.mark.row("A-166")
def test_a_paused_or_revoked_key_does_not_touch_runs(
    browser, user: User, make_runner, scripted
) -> None:
    paused, _ = make_key(user, "paused")
    revoked, _ = make_key(user, "revoked")
    start(browser)
    pause_key(key_id=paused.id)
    revoke_key(key_id=revoked.id)
    make_runner()
    scripted.next().answer("a")
    assert ended(browser)["status"] == "completed"


@pytest.mark.row("A-242")
def test_a_failure_while_it_runs_keeps_the_text_and_costs_nothing(
    browser, user: User, runner, scripted
) -> None:
    start(browser)
    asked = scripted.next()
    asked.say(" rings")
    asked.fail(FailureCode.ENGINE_DEAD, "the engine died")
    found = ended(browser)
    assert found["status"] == "failed"
    assert found["choices"][0]["text"] == " rings"


def test_a_stopped_run_opens_as_a_loom_whose_node_was_stopped(
    browser, user: User, runner, scripted
) -> None:
    start(browser)
    asked = scripted.next()
    asked.say(" rings")
    eventually(lambda: whole(browser)["status"] == "running", 20)
    assert send(browser, "/playground/runs/1/stop").status_code in (200, 204)
    assert ended(browser)["status"] == "stopped"
    path = send(browser, "/playground/runs/1/loom").json()["path"]
    root, grown = browser.get(f"{path}/state").json()["nodes"]
    assert (root["text"], root["status"]) == ("A bell", "completed")
    assert (grown["parent"], grown["text"], grown["status"]) == (root["id"], " rings", "cancelled")


@pytest.mark.row("A-241")
def test_a_run_that_is_put_back_by_a_planned_restart_begins_anew(
    browser, user: User, make_runner, scripted
) -> None:
    first = make_runner()
    start(browser, max_tokens=2)
    scripted.next().say(" half")
    first.stop(0)
    assert whole(browser)["status"] == "waiting"
    assert not Hold.objects.open().filter(user=user).exists()
    make_runner()
    scripted.next().answer(" a", " whole")
    assert ended(browser)["choices"][0]["text"] == " a whole"
    assert Hold.objects.listed().filter(user=user).count() == 1


@pytest.mark.row("A-249")
def test_a_run_of_a_model_that_never_starts_fails_after_its_patience(
    browser, user: User, make_runner, quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.BASALT.background_answer_timeout == 45 * 60
    hasty = settings.BASALT.model_copy(update={"background_answer_timeout": 0.5})
    monkeypatch.setattr(settings, "BASALT", hasty)
    start(browser, model="tiny-other")
    make_runner()
    found = ended(browser)
    assert found["status"] == "failed"
    assert found["error"]["message"] == "Could not reach Inference: Request timed out."
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 100_000


@pytest.mark.row("A-250")
def test_a_run_waits_for_a_place_of_its_model(
    browser, make_runner, quick, scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = settings.BASALT.model_copy(update={"max_inflight_per_model": 1})
    monkeypatch.setattr(settings, "BASALT", narrow)
    make_runner()
    start(browser)
    asked = scripted.next()
    start(browser)
    assert whole(browser, 2)["status"] == "waiting"
    asked.answer("a")
    scripted.next().answer("b")
    assert ended(browser, 2)["status"] == "completed"


@pytest.mark.row("A-251")
def test_after_failures_in_a_row_a_run_of_that_model_fails_at_once(
    browser, runner, scripted
) -> None:
    for number in range(1, settings.BASALT.breaker_failures + 1):
        start(browser)
        scripted.next().fail(FailureCode.SERVER_ERROR)
        assert ended(browser, number)["status"] == "failed"
    start(browser)
    number += 1
    assert ended(browser, number)["error"]["code"] == "circuit_open"
    assert scripted.asked.empty()
    start(browser, model="tiny-other")
    assert whole(browser, number + 1)["status"] in ("waiting", "running")


@pytest.mark.row("A-270", "A-271", "A-273", "A-127", "A-286", "A-576")
def test_runs_are_numbered_for_each_user_and_a_number_is_never_given_twice(
    browser, user: User
) -> None:
    assert [start(browser)["number"] for _ in range(3)] == [1, 2, 3]
    assert send(browser, "/playground/runs/3/delete").status_code == 200
    assert browser.get("/playground/runs/3").status_code == 404
    assert start(browser)["number"] == 4
    rows = state(browser)["runs"]
    assert [row["number"] for row in rows] == [4, 2, 1]
    assert {"status_label", "model", "request", "text", "usage", "time"} <= rows[0].keys()
    stranger = signed_in(User.objects.create_user(f"{uuid4().hex}@example.org"))
    for path in ("", "/norms", "/activations.npy"):
        assert stranger.get(f"/playground/runs/1{path}").status_code == 404
    for path in ("/stop", "/delete", "/branch", "/loom"):
        assert send(stranger, f"/playground/runs/1{path}", {}).status_code == 404
    assert start(stranger)["number"] == 1
    Run.objects.filter(user=user).update(created_at=F("created_at") - timedelta(days=400))
    assert [row["number"] for row in state(browser)["runs"]] == [4, 2, 1]


@pytest.mark.row("A-273", "A-274")
def test_the_newest_100_are_listed_with_the_rest_of_a_cut_comparison(browser, user: User) -> None:
    started(browser, {}, {}, {})
    first = Run.objects.get(user=user, number=3)
    Run.objects.bulk_create(
        Run(
            user=user,
            number=number,
            model="tiny",
            created_at=timezone.now(),
            settings={},
            request=bytes(first.request),
            body=bytes(first.body),
        )
        for number in range(4, 103)
    )
    numbers = [row["number"] for row in state(browser)["runs"]]
    assert numbers == [*range(102, 0, -1)]


@pytest.mark.row("A-280", "A-577")
def test_a_run_with_a_value_outside_todays_ranges_lists_opens_exports_and_runs(
    browser, user: User, make_runner, scripted
) -> None:
    start(browser)
    run = Run.objects.get(user=user)
    body = json.loads(bytes(run.body)) | {"temperature": 5}
    from msgspec.structs import replace

    from completions.kept import keep_request
    from jobs.run_kind import RunRecord

    request = RunRecord(run).request()
    import dataclasses

    wide = dataclasses.replace(request, sampling=replace(request.sampling, temperature=5.0))
    Run.objects.filter(id=run.id).update(
        body=json.dumps(body).encode(),
        settings=F("settings"),
        request=keep_request("x", wide).inline,
    )
    assert whole(browser)["request"]["temperature"] == 5
    make_runner()
    asked = scripted.next()
    assert asked.request.sampling.temperature == 5
    asked.answer("a")
    ended(browser)
    [exported] = json.loads(b"".join(browser.get("/playground/export?format=json")))
    assert exported["request"]["temperature"] == 5


def residuals(tokens: int) -> Residuals:
    numbers = np.arange(2 * tokens * 64, dtype="<f4").reshape(2, tokens, 64)
    return Residuals(shape=(2, tokens, 64), dtype="float32", data=numbers.tobytes())


@pytest.fixture
def read_run(browser, runner, scripted):
    """A Run that read two Layers."""
    start(browser, output_residual_stream=[1, 3], max_tokens=2)
    asked = scripted.next()
    prompt = sum(map(len, asked.request.prompts))
    asked.say(" rings")
    asked.say(" on", finish="length")
    asked.finish(residuals=residuals(prompt + 1))
    return ended(browser), prompt


@pytest.mark.row("A-246", "A-305", "A-287", "A-301")
def test_what_was_read_is_shown_handed_out_and_gone_after_seven_days(
    browser, user: User, read_run
) -> None:
    found, prompt = read_run
    assert found["activations"] is True
    norms = browser.get("/playground/runs/1/norms").json()
    numbers = np.arange(2 * (prompt + 1) * 64, dtype="f4").reshape(2, prompt + 1, 64)
    assert norms["layers"] == [1, 3]
    assert (norms["hidden"], norms["input_tokens"], norms["output_tokens"]) == (64, prompt, 1)
    assert np.allclose(norms["norms"], np.linalg.norm(numbers.astype("f8"), axis=2), atol=1e-6)
    file = b"".join(browser.get("/playground/runs/1/activations.npy"))
    assert np.array_equal(np.load(io.BytesIO(file)), numbers)
    chosen = json.loads(b"".join(browser.get("/playground/export?format=json&runs=1")))
    tensor = chosen[0]["completion"]["activations"]["residual_stream"]
    frame = zstandard.ZstdDecompressor().decompress(base64.b64decode(tensor["data"]))
    assert np.array_equal(np.frombuffer(frame, "<f4").reshape(tensor["shape"]), numbers)
    every = json.loads(b"".join(browser.get("/playground/export?format=json")))
    assert "activations" not in every[0]["completion"]
    Run.objects.filter(user=user).update(finished_at=timezone.now() - timedelta(days=7, seconds=1))
    later = whole(browser)
    assert later["activations"] is False
    assert later["choices"][0]["text"] == " rings on"
    assert browser.get("/playground/runs/1/norms").status_code == 410


def test_bfloat16_is_widened_exactly() -> None:
    from completions.activations import activation_pieces
    from completions.kept_activations import KeptActivations

    bits = np.arange(0x3F00, 0x3F00 + 2 * 3 * 4, dtype="<u2").reshape(2, 3, 4)
    read = Residuals(shape=(2, 3, 4), dtype="bfloat16", data=bits.tobytes())
    file = io.BytesIO(b"".join(activation_pieces(read)))
    kept = KeptActivations.open(file)
    found = np.concatenate(list(kept.rows())).reshape(2, 3, 4)
    assert np.array_equal(found, (bits.astype("<u4") << 16).view("<f4"))


@pytest.mark.row("A-302", "A-303", "A-304", "A-305", "A-306", "A-301")
def test_exports_keep_the_apis_shapes_and_name_the_model_by_its_id(
    browser, runner, scripted
) -> None:
    start(browser, n=2, temperature=1, max_tokens=1)
    scripted.next().answer(" rings")
    ended(browser)
    start(browser, prompt="Another", max_tokens=1)
    scripted.next().answer(" one")
    ended(browser, 2)
    answer = browser.get("/playground/export?format=json")
    first, second = json.loads(b"".join(answer))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="playground-runs.json"'
    assert [first["number"], second["number"]] == [1, 2]
    assert (first["model"], first["status"]) == ("tiny", "Completed")
    assert first["request"] == {
        "model": "tiny",
        "prompt": "A bell",
        "max_tokens": 1,
        "n": 2,
        "temperature": 1,
    }
    completion = first["completion"]
    assert completion["object"] == "text_completion"
    assert completion["choices"][0] == {
        "index": 0,
        "text": " rings",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert completion["usage"]["completion_tokens"] == first["usage"]["completion_tokens"] == 2
    lines = b"".join(browser.get("/playground/export?format=jsonl")).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["run"], row["choice"], row["text"]) for row in rows] == [
        (1, 0, " rings"),
        (1, 1, " rings"),
        (2, 0, " one"),
    ]
    assert {row["model"] for row in rows} == {"tiny"}
    assert len({tuple(row) for row in rows}) == 1
    text = b"".join(browser.get("/playground/export?format=txt")).decode()
    assert "A bell rings" in text
    assert "Another one" in text
    assert browser.get("/playground/export?format=xml").status_code == 400
    assert browser.get("/playground/export?format=json&runs=1;drop").status_code == 400


def test_an_export_of_nothing_is_an_empty_list(browser) -> None:
    assert json.loads(b"".join(browser.get("/playground/export?format=json"))) == []


@pytest.mark.row("A-294")
@pytest.mark.parametrize(
    ("at", "says"),
    [
        ({"choice": 1, "place": 0, "token": 5}, "no such token"),
        ({"choice": 0, "place": 9, "token": 5}, "no such token"),
        ({"choice": 0, "place": 0, "token": 5}, "no such token"),
    ],
)
def test_a_run_without_such_a_token_goes_on_from_nowhere(
    browser, runner, scripted, at: dict[str, int], says: str
) -> None:
    start(browser, max_tokens=1)
    scripted.next().answer(" rings")
    ended(browser)
    answer = send(browser, "/playground/runs/1/branch", at)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert Run.objects.filter(number=2).count() == 0


def test_the_number_of_queries_of_the_page_is_fixed(browser, django_assert_num_queries) -> None:
    for _ in range(2):
        start(browser)
    with django_assert_num_queries(6):
        browser.get("/playground")
    for _ in range(4):
        start(browser)
    with django_assert_num_queries(6):
        browser.get("/playground")
