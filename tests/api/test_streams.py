"""Sections 7 and 8: how an answer is written, as a stream and as one body."""

import json
import threading
import time

import numpy as np
import openai
import pytest

from inference.engine.messages import FailureCode, PackedLogprobs
from tests.contract.wire import conform
from tests.live import InBackground, events, eventually

BODY = {"prompt": [5, 6, 7], "max_tokens": 10}
STREAM = BODY | {"stream": True}


def packed(*rows: list[tuple[int, float, int]]) -> PackedLogprobs:
    """Rows of (token id, log probability, rank), the token's own first."""
    width = max(map(len, rows), default=1)
    filled = [row + [(-1, -np.inf, 0)] * (width - len(row)) for row in rows]
    ids, logprobs, ranks = (
        np.array([[entry[part] for entry in row] for row in filled]).reshape(len(rows), width)
        for part in range(3)
    )
    return PackedLogprobs(
        rows=len(rows),
        width=width,
        ids=ids.astype("<i4").tobytes(),
        logprobs=logprobs.astype("<f4").tobytes(),
        ranks=ranks.astype("<i4").tobytes(),
    )


# One body


@pytest.mark.row("C-193", "C-194", "C-195", "C-200", "C-054", "C-196")
def test_choices_are_ordered_by_prompt_then_number(caller, scripted):
    request = InBackground(
        caller.client, {"prompt": [[5], [6, 7]], "n": 2, "max_tokens": 3, "logprobs": None}
    )
    asked = scripted.next()
    for index in (3, 1, 0, 2):
        asked.say(f"text {index}", index=index, finish="length")
    asked.finish()
    body = request.json()
    conform(body, "Completion")
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == [f"text {i}" for i in range(4)]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert "activations" not in body
    assert abs(body["created"] - time.time()) < 60
    assert isinstance(body["created"], int)


@pytest.mark.row("C-197", "C-198", "C-199")
@pytest.mark.parametrize(
    ("finish", "stop_reason"), [("length", None), ("stop", None), ("stop", "END"), ("stop", 7)]
)
@pytest.mark.parametrize("streams", [False, True])
def test_why_a_choice_ended(caller, scripted, finish, stop_reason, streams):
    request = InBackground(caller.client, BODY | {"stream": streams})
    asked = scripted.next()
    asked.say("a")
    asked.say("b", finish=finish, stop_reason=stop_reason)
    asked.finish()
    body = events(request.done().text)[-2] if streams else request.json()
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish, stop_reason)


@pytest.mark.row("C-216")
def test_an_answer_in_time_has_its_real_status(caller, scripted):
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    time.sleep(0.3)
    assert request.status is None
    asked.fail(FailureCode.SERVER_ERROR)
    assert request.done().status == 502


@pytest.mark.row("C-217", "C-219", "C-220")
def test_a_late_answer_is_a_200_with_spaces_and_then_the_completion(narrow, make_caller, scripted):
    caller = make_caller(tokens=8, at=narrow)
    request = InBackground(caller.client, BODY)
    asked = scripted.next()
    eventually(lambda: request.status is not None)
    assert request.status == 200
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-acs-max-tokens-clamped"] == (
        "requested=10,applied=5,reason=budget,source=client"
    )
    assert "content-encoding" not in request.headers
    time.sleep(0.5)
    asked.answer("a", "b")
    text = request.done().text
    assert text.startswith("  ")
    assert text.lstrip(" ").startswith("{")
    conform(json.loads(text), "Completion")
    assert caller.left() == 3


# A stream


@pytest.mark.row("C-202", "C-203", "C-204", "C-205", "C-667", "C-668")
def test_a_stream_is_data_lines_alone(caller, scripted):
    scripted.answers = ("é", "\U0001f336\n", "c")
    answer = caller.client.post("/v1/completions", json=STREAM)
    lines = answer.content.decode().split("\n")
    assert all(line == "" or line.startswith("data: ") for line in lines)
    assert lines[-3:] == ["data: [DONE]", "", ""]
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "é\U0001f336\nc"
    for chunk in chunks:
        assert set(chunk) == {"id", "object", "created", "model", "choices"}
        (choice,) = chunk["choices"]
        assert set(choice) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
        assert chunk["object"] == "text_completion"
        assert choice["logprobs"] is None
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1


@pytest.mark.row("C-204", "C-205", "C-207", "C-208", "C-674")
@pytest.mark.case("S01", "S02")
@pytest.mark.parametrize("include", [True, False])
def test_choices_come_mixed_with_their_usage_so_far(caller, scripted, include):
    options = {"include_usage": include, "continuous_usage_stats": True}
    body = {"prompt": [5, 6, 7, 8, 9], "n": 2, "max_tokens": 5}
    request = InBackground(caller.client, body | {"stream": True, "stream_options": options})
    asked = scripted.next()
    for step in range(5):
        for index in (1, 0):
            asked.say("x", index=index, finish="length" if step == 4 else None)
    asked.finish()
    *chunks, done = events(request.done().text)
    assert done == "[DONE]"
    if include:
        assert chunks.pop()["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 10,
            "total_tokens": 15,
        }
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [1, 0] * 5
    for index in (0, 1):
        counts = [c["usage"] for c in chunks if c["choices"][0]["index"] == index]
        assert [usage["completion_tokens"] for usage in counts] == [1, 2, 3, 4, 5]
        assert {usage["prompt_tokens"] for usage in counts} == {5}
        assert all(u["total_tokens"] == u["completion_tokens"] + 5 for u in counts)
    assert caller.left() == 100_000 - 15


@pytest.mark.row("C-207")
@pytest.mark.case("S02")
def test_without_the_option_no_chunk_has_the_usage(caller, scripted):
    scripted.answers = ("a",)
    for options in (None, {}, {"include_usage": False}):
        answer = caller.client.post("/v1/completions", json=STREAM | {"stream_options": options})
        *chunks, _ = events(answer.text)
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.row("C-210", "C-211")
@pytest.mark.case("S06")
def test_a_silent_stream_is_kept_alive_from_its_start_on(caller, scripted):
    request = InBackground(caller.client, STREAM)
    asked = scripted.next()
    time.sleep(0.7)
    assert request.status is None
    asked.say("a")
    request.line()
    assert [request.keepalive() for _ in range(3)] == [": keepalive"] * 3
    asked.say("b", finish="stop")
    asked.finish()
    *chunks, done = events(request.done().text)
    assert len(chunks) == 2
    assert done == "[DONE]"


@pytest.mark.row("C-214", "C-344")
@pytest.mark.case("S07")
def test_a_client_that_leaves_before_the_start_stops_its_request(caller, scripted):
    request = InBackground(caller.client, STREAM)
    asked = scripted.next()
    request.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: caller.open_holds() == 0)


@pytest.mark.case("S11")
def test_five_hundred_tokens_arrive_in_order(caller, scripted):
    request = InBackground(caller.client, {"prompt": [5], "max_tokens": 500, "stream": True})
    asked = scripted.next()
    for number in range(500):
        asked.say(f"{number} ", finish="length" if number == 499 else None)
    asked.finish()
    *chunks, _ = events(request.done().text)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == "".join(f"{number} " for number in range(500))


@pytest.mark.case("S03")
def test_the_openai_client_sees_a_broken_stream_as_an_error(web, caller, scripted):
    def break_off() -> None:
        asked = scripted.next()
        asked.say("a")
        asked.fail(FailureCode.SERVER_ERROR, "it broke")

    engine = threading.Thread(target=break_off)
    engine.start()
    client = openai.OpenAI(base_url=f"{web.address}/v1", api_key=caller.secret, max_retries=0)
    stream = client.completions.create(model="tiny", prompt=[5], max_tokens=9, stream=True)
    texts = []
    with pytest.raises(openai.APIError, match="it broke"):
        for chunk in stream:
            texts.append(chunk.choices[0].text)
    engine.join()
    assert texts == ["a"]
    assert caller.left() == 100_000 - 2


def joined(chunks: list[dict[str, list]]) -> dict[str, list]:
    """The lists of all chunks of a choice, one after the other."""
    return {name: [each for chunk in chunks for each in chunk[name]] for name in chunks[0]}


# Log probabilities and echo


@pytest.mark.row("C-206", "C-224", "C-225", "C-226", "C-227")
@pytest.mark.case("P12")
def test_a_streams_lists_are_those_of_the_whole_answer(caller, scripted):
    steps = [
        (" a", [(10, -0.5, 1), (11, -1.5, 2)]),
        ("", [(12, -3.5, 9), (10, -0.25, 1), (11, -2.0, 2)]),
    ]

    def run(streams: bool) -> dict:
        body = {"prompt": [5], "max_tokens": 9, "logprobs": 2, "stream": streams}
        request = InBackground(caller.client, body)
        asked = scripted.next()
        asked.say(steps[0][0], token_ids=(10,), logprobs=packed(steps[0][1]))
        # A text that was held back comes with two tokens at once.
        asked.say(
            "bc", token_ids=(12, 11), logprobs=packed(steps[1][1], [(11, -1.0, 1)]), finish="stop"
        )
        asked.finish()
        request.done()
        if not streams:
            return request.json()["choices"][0]["logprobs"]
        chunks = [event["choices"][0]["logprobs"] for event in events(request.text)[:-1]]
        assert [len(chunk["tokens"]) for chunk in chunks] == [1, 2]
        return joined(chunks)

    whole, streamed = run(False), run(True)
    assert streamed == whole
    assert {len(entries) for entries in whole.values()} == {3}
    assert [len(top) for top in whole["top_logprobs"]] == [2, 3, 1]
    assert whole["token_logprobs"] == [-0.5, -3.5, -1.0]
    assert whole["text_offset"][0] == 0
    lengths = [len(token) for token in whole["tokens"]]
    assert whole["text_offset"] == [0, lengths[0], lengths[0] + lengths[1]]


@pytest.mark.row("C-229", "C-230", "C-231", "C-233", "C-236")
def test_each_choice_has_the_log_probabilities_of_its_own_prompt(caller, scripted):
    body = {"prompt": [[5, 6], [7]], "max_tokens": 1, "prompt_logprobs": 1}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    asked.say("x", index=0, prompt_logprobs=packed([(6, -2.0, 5), (9, -0.5, 1)]), finish="length")
    asked.say("y", index=1, prompt_logprobs=packed(), finish="length")
    asked.finish()
    body = request.json()
    conform(body, "Completion")
    first, second = (choice["prompt_logprobs"] for choice in body["choices"])
    assert first[0] is None
    assert {key: (value["logprob"], value["rank"]) for key, value in first[1].items()} == {
        "6": (-2.0, 5),
        "9": (-0.5, 1),
    }
    assert second == [None]


@pytest.mark.row("C-237", "C-238")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("The cap", ["The cap"]),
        ("<|start|>é\n", ["<|start|>é\n"]),
        (["The", "Once"], ["The", "Once"]),
    ],
)
def test_an_echo_begins_with_the_prompts_own_text(caller, scripted, prompt, shown, streams):
    body = {"prompt": prompt, "max_tokens": 2, "echo": True, "stream": streams}
    scripted.answers = (" x", " y")
    answer = caller.client.post("/v1/completions", json=body)
    if streams:
        chunks = [event["choices"][0] for event in events(answer.text)[:-1]]
        texts = [
            "".join(chunk["text"] for chunk in chunks if chunk["index"] == index)
            for index in range(len(shown))
        ]
    else:
        body = answer.json()
        texts = [choice["text"] for choice in body["choices"]]
        assert body["usage"]["completion_tokens"] == 2 * len(shown)
    assert texts == [f"{text} x y" for text in shown]


@pytest.mark.row("C-237", "C-235")
def test_an_echo_of_token_ids_is_their_text_without_the_start_token(caller, scripted):
    from inference import catalogue
    from inference.tokenizers import counter_for

    (encoded,) = counter_for(catalogue.current().default).encode_texts(["The cap é"])
    assert encoded.ids[0] == 1
    scripted.answers = ("x",)
    for ids in (encoded.ids, encoded.ids[1:]):
        body = {"prompt": list(ids), "max_tokens": 1, "echo": True}
        answer = caller.client.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == "The cap éx"
        assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.row("C-225")
@pytest.mark.case("P08")
@pytest.mark.parametrize("order", [1, -1])
def test_alternatives_that_read_alike_keep_the_likelier_number(caller, scripted, order):
    from inference import catalogue
    from inference.tokenizers import counter_for

    model = catalogue.current().default
    counter = counter_for(model)
    texts = counter.decode_alternatives((), range(model.vocab_size))
    # Bytes of characters that are not whole: apart they read as nothing.
    parts = [token_id for token_id, text in enumerate(texts) if text == ""][:2]
    assert len(parts) == 2
    alike = list(zip(parts, [-1.0, -0.75][::order], [2, 3], strict=True))
    request = InBackground(caller.client, {"prompt": [60], "max_tokens": 1, "logprobs": 5})
    asked = scripted.next()
    asked.say(
        "x",
        token_ids=(62,),
        logprobs=packed([(62, -0.5, 1), *alike, (0, -3.0, 4), (63, -4.0, 5)]),
        finish="length",
    )
    asked.finish()
    (tops,) = request.json()["choices"][0]["logprobs"]["top_logprobs"]
    assert tops == {texts[62]: -0.5, "": -0.75, texts[0]: -3.0, texts[63]: -4.0}
    assert texts[0] != "", "an end token has a name"


@pytest.mark.row("C-239", "C-227", "C-206")
@pytest.mark.case("P09")
@pytest.mark.parametrize("streams", [False, True])
def test_echoed_lists_begin_with_the_prompts_tokens(caller, scripted, streams):
    body = {"prompt": [60, 61], "max_tokens": 2, "echo": True, "logprobs": 1, "stream": streams}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    asked.say(
        "x",
        token_ids=(62,),
        prompt_logprobs=packed([(61, -2.0, 2), (70, -0.5, 1)]),
        logprobs=packed([(62, -0.5, 1)]),
    )
    asked.say("y", token_ids=(63,), logprobs=packed([(63, -0.25, 1)]), finish="length")
    asked.finish()
    request.done()
    if streams:
        chunks = [event["choices"][0]["logprobs"] for event in events(request.text)[:-1]]
        lists = joined(chunks)
    else:
        lists = request.json()["choices"][0]["logprobs"]
    assert lists["token_logprobs"] == [None, -2.0, -0.5, -0.25]
    assert lists["top_logprobs"][0] is None
    assert [len(top) for top in lists["top_logprobs"][1:]] == [2, 1, 1]
    lengths = [len(token) for token in lists["tokens"]]
    assert lists["text_offset"] == [sum(lengths[:place]) for place in range(4)]


@pytest.mark.row("C-240")
def test_an_echo_alone_holds_and_counts_one_token(caller, scripted):
    body = {"prompt": [60, 61], "max_tokens": 0, "echo": True}
    request = InBackground(caller.client, body)
    asked = scripted.next()
    assert asked.request.max_tokens == 0
    assert caller.left() == 100_000 - 3
    asked.say("", token_ids=(), finish="length")
    asked.finish(completion_tokens=1)
    answer = request.json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"
    assert caller.left() == 100_000 - 3
