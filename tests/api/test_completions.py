"""`POST /v1/completions` over HTTP, with an engine that the test moves."""

import json

import pytest

from inference.engine.messages import Given
from tests.live import InBackground, events, eventually


@pytest.mark.row("C-193", "C-194", "C-195", "C-200", "C-327", "C-336")
def test_a_completion_is_answered_and_paid_by_its_usage(caller, scripted):
    scripted.answers = (" a", " b")
    answer = caller.client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 10})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": " a b",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_logprobs": None,
        }
    ]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert caller.left() == 100_000 - 5
    assert caller.open_holds() == 0


@pytest.mark.row("C-325", "C-327")
def test_the_hold_counts_as_spent_while_the_completion_runs(caller, scripted):
    request = InBackground(caller.client, {"prompt": [5, 6, 7], "max_tokens": 10})
    asked = scripted.next()
    assert caller.left() == 100_000 - 13
    asked.answer("x")
    assert request.done().status == 200
    assert caller.left() == 100_000 - 4


@pytest.mark.row("C-152", "C-160")
@pytest.mark.parametrize("sent", [2**31, 2**63, 2**64, 10**40, 1e300])
def test_a_number_without_a_bound_reaches_the_engine_as_one_that_it_holds(caller, scripted, sent):
    fields = {"prompt": [5], "max_tokens": 1, "top_k": sent, "priority": sent}
    request = InBackground(caller.client, fields)
    asked = scripted.next()
    assert asked.request.sampling.top_k == 2**31 - 1
    assert asked.request.priority == min(int(sent), 2**63 - 1)
    asked.answer("x")
    assert request.done().status == 200


@pytest.mark.row("C-666")
@pytest.mark.parametrize("stream", [False, True])
def test_id_and_time_are_those_that_inference_gave(caller, scripted, stream):
    body = {"prompt": [5], "max_tokens": 2, "stream": stream}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    asked.given = Given(id="cmpl-told", created=1_796_030_700)
    asked.answer("a", "b")
    text = request.done().text
    answers = events(text)[:-1] if stream else [json.loads(text)]
    assert {(each["id"], each["created"]) for each in answers} == {("cmpl-told", 1_796_030_700)}


@pytest.mark.row("C-106", "C-666")
def test_an_answer_without_an_id_does_not_fit(caller, scripted):
    request = InBackground(caller.client, {"prompt": [5], "max_tokens": 2})
    asked = scripted.next()
    asked.given = None
    asked.answer("a", "b")
    assert request.done().status == 502
    assert "its id is missing" in request.text
    assert caller.left() == 100_000


@pytest.mark.row("C-161")
def test_the_user_reaches_inference(caller, scripted):
    request = InBackground(caller.client, {"prompt": [5], "max_tokens": 1, "user": "lab-3"})
    asked = scripted.next()
    assert asked.request.user == "lab-3"
    asked.answer("a")
    assert request.done().status == 200


@pytest.mark.row("C-202", "C-203", "C-205", "C-207", "C-667")
def test_a_stream_sends_chunks_then_usage_then_done(caller, scripted):
    scripted.answers = (" a", " b")
    body = {
        "prompt": [5],
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = caller.client.post("/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(answer.text)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [" a", " b"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert len({(c["id"], c["object"], c["created"], c["model"]) for c in [*chunks, usage]}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-214", "C-337")
@pytest.mark.case("S07", "B05")
def test_a_client_that_leaves_a_stream_stops_the_engine_and_pays_what_was_sent(caller, scripted):
    request = InBackground(caller.client, {"prompt": [5, 6], "max_tokens": 100, "stream": True})
    asked = scripted.next()
    for word in ("one", "two", "three"):
        asked.say(word)
        assert word in request.line()
    request.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000 - 2 - 3
