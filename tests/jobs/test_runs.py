"""Runs of the Playground as a service: numbered, followed, stopped, deleted, kept."""

import asyncio
import time
from datetime import timedelta

import msgspec
import numpy as np
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from inference.engine.messages import FailureCode, PackedLogprobs, Residuals
from tests.accounts.at_once import at_once
from tests.billing.leases import lose
from tests.jobs.conftest import IDS
from tests.live import eventually


def start(caller, *bodies: dict[str, object], **fields: object):
    """Start a Run for each body."""
    from api.bodies import completion_request
    from completions.admission import check_submission
    from completions.payer import AppUser
    from jobs import runs
    from jobs.run_kind import RUN

    async def ask():
        asked = []
        for body in bodies or ({},):
            full = {"model": "tiny", "prompt": IDS, "max_tokens": 3} | body | fields
            request = completion_request(full | {"stream": True})
            counted = await check_submission(request, payer=AppUser(caller.user_id), policy=RUN)
            asked.append(
                runs.Asked(body=full, request=request, model=counted.model.id, prompt="shown")
            )
        return asked

    return runs.start(user_id=caller.user_id, asked=asyncio.run(ask()))


def read(run):
    from jobs.models import Run

    return Run.objects.get(id=run.id)


def wait(run, *states: str, seconds: float = 20):
    eventually(lambda: read(run).state in states and read(run).owner is None, seconds)
    return read(run)


def output(run) -> dict:
    from jobs import runs

    return msgspec.json.decode(runs.output_of(read(run)))


def test_a_run_runs(caller, scripted, runner):
    [run] = start(caller)
    scripted.next().answer("a", "b", "c")
    done = wait(run, "done")
    assert output(run)["choices"][0]["text"] == "abc"
    assert done.completion_tokens == 3


def followed(run, after: str = "", stop_at: int | None = None) -> list:
    """The news of a Run after an event, until its end or so many of them."""
    from jobs.run_events import follow

    async def read_all():
        news = []
        async for each in follow(run.id, after):
            news.append(each)
            if stop_at is not None and len(news) == stop_at:
                break
        return news

    return asyncio.run(asyncio.wait_for(read_all(), 20))


def text_of(news: list) -> str:
    """The text of the first choice that a follower has put together."""
    text = ""
    for each in news:
        if each.anew:
            text = ""
        for piece in each.pieces:
            text += "".join(gain["choice"]["text"] for gain in msgspec.json.decode(piece))
    return text


@pytest.mark.row("A-236", "A-243", "A-244")
def test_a_run_needs_no_key_and_keeps_what_it_came_to(caller, scripted, runner):
    from billing.models import DailyUsage

    [run] = start(caller)
    asked = scripted.next()
    asked.say("a")
    asked.say("b", finish="stop", stop_reason="X")
    asked.finish()
    done = wait(run, "done")
    whole = output(run)
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", "X")
    assert whole["prompt_token_ids"] == [IDS]
    assert choice["token_ids"] == [7, 7]
    assert whole["model"] == "basalt/tiny-llama"
    assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 2}
    assert (done.prompt_tokens, done.completion_tokens) == (4, 2)
    assert (done.key_id, done.output_start, done.prompt_start) == (None, "ab", "shown")
    assert done.request is None
    usage = DailyUsage.objects.get(user_id=caller.user_id)
    assert (usage.source, usage.key_id, usage.completions) == ("playground", None, 1)
    assert caller.left() == 100_000 - 6


@pytest.mark.row("A-245")
def test_a_run_with_several_choices_keeps_each(caller, scripted, runner):
    [run] = start(caller, n=2)
    asked = scripted.next()
    asked.say("b", index=1, finish="length")
    asked.say("a", index=0, finish="length")
    asked.finish()
    wait(run, "done")
    assert [(each["index"], each["text"]) for each in output(run)["choices"]] == [
        (0, "a"),
        (1, "b"),
    ]


def test_log_probabilities_are_kept_with_the_ids_of_the_alternatives(caller, scripted, runner):
    packed = PackedLogprobs(
        rows=1,
        width=3,
        ids=np.array([[7, 9, -1]], "<i4").tobytes(),
        logprobs=np.array([[-0.5, -1.5, -np.inf]], "<f4").tobytes(),
        ranks=np.array([[1, 2, 0]], "<i4").tobytes(),
    )
    [run] = start(caller, logprobs=2, max_tokens=2)
    asked = scripted.next()
    asked.say("a", logprobs=packed)
    asked.say("b", logprobs=packed, finish="length")
    asked.finish()
    wait(run, "done")
    [choice] = output(run)["choices"]
    lists = choice["logprobs"]
    assert set(lists) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert lists["token_logprobs"] == [-0.5, -0.5]
    assert [len(each) for each in lists["top_logprobs"]] == [2, 2]
    assert lists["text_offset"][0] == 0
    assert choice["alternatives"] == [[7, 9], [7, 9]]


@pytest.mark.row("A-270", "A-271", "A-252")
def test_runs_are_numbered_and_a_number_is_never_given_twice(make_caller, no_work):
    from completions.failures import Failure
    from jobs import runs
    from jobs.models import Run

    caller, other = make_caller(), make_caller()
    assert [run.number for run in start(caller, {}, {})] == [1, 2]
    [third] = start(caller)
    runs.delete(Run.objects.of(caller.user_id).filter(id=third.id))
    for fields in ({"max_tokens": 500_000}, {"max_tokens": 600}, {"output_residual_stream": [9]}):
        with pytest.raises(Failure):
            start(caller, **fields)
    assert [run.number for run in start(caller)] == [4]
    assert [run.number for run in start(other)] == [1]
    at_once([lambda: start(other)] * 6)
    numbers = Run.objects.filter(user_id=other.user_id).values_list("number", flat=True)
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.row("A-237", "A-239", "A-240")
@pytest.mark.case("S11")
def test_who_follows_loses_and_doubles_no_character(caller, scripted, runner):
    [run] = start(caller, max_tokens=40)
    asked = scripted.next()
    texts = [f"<{number}>" for number in range(30)]
    for text in texts[:10]:
        asked.say(text)
    first = eventually(lambda: [n for n in followed(run, stop_at=2) if n.pieces])
    seen, place = text_of(first), str(first[-1].place)
    for text in texts[10:20]:
        asked.say(text)
    eventually(lambda: text_of(followed(run, stop_at=1)) == "".join(texts[:20]))
    again = followed(run, after=place, stop_at=1)
    assert seen + text_of(again) == "".join(texts[:20])
    beginning = followed(run, stop_at=1)
    assert text_of(beginning) == "".join(texts[:20])
    for text in texts[20:]:
        asked.say(text)
    asked.say("", finish="length")
    asked.finish()
    wait(run, "done")
    assert output(run)["choices"][0]["text"] == "".join(texts)
    last = followed(run, after=place)
    assert [each.ended for each in last] == [True]
    assert read(run).pieces.count() == 0


@pytest.mark.row("A-238", "C-339", "C-355")
def test_a_stopped_run_keeps_its_text_and_pays_for_it(caller, scripted, runner):
    from billing.models import Hold
    from jobs import runs
    from jobs.models import Run

    [run] = start(caller)
    asked = scripted.next()
    asked.say("a")
    asked.say("b")
    eventually(lambda: read(run).pieces.exists())
    assert runs.stop(Run.objects.of(caller.user_id).filter(id=run.id)) == 1
    assert asked.aborted.wait(10)
    stopped = wait(run, "cancelled")
    assert output(run)["choices"][0]["text"] == "ab"
    assert output(run)["choices"][0]["finish_reason"] is None
    assert (stopped.prompt_tokens, stopped.completion_tokens) == (4, 2)
    assert caller.left() == 100_000 - 6
    hold = Hold.objects.get(user_id=caller.user_id)
    assert (hold.status, hold.counted, hold.source) == ("stopped", "partial", "playground")
    assert runs.stop(Run.objects.of(caller.user_id)) == 0


def test_a_waiting_run_that_is_stopped_never_runs(caller, scripted, no_work, make_runner):
    from jobs import runs
    from jobs.models import Run

    [run] = start(caller)
    runs.stop(Run.objects.of(caller.user_id))
    make_runner()
    [other] = start(caller)
    scripted.next().answer("a")
    wait(other, "done")
    assert runs.output_of(read(run)) is None
    assert read(run).request is None
    assert scripted.asked.empty()
    assert [each.ended for each in followed(run)] == [True]


@pytest.mark.row("A-241", "C-605", "C-607")
def test_a_planned_stop_begins_a_run_anew(caller, scripted, make_runner):
    [run] = start(caller)
    first = make_runner()
    asked = scripted.next()
    asked.say("old")
    eventually(lambda: read(run).pieces.exists())
    seen = followed(run, stop_at=1)
    first.stop(0)
    assert read(run).state == "queued"
    assert read(run).pieces.count() == 0
    assert caller.left() == 100_000
    make_runner()
    asked = scripted.next()
    asked.say("new")
    eventually(lambda: read(run).pieces.exists())
    news = eventually(lambda: [*seen, *followed(run, after=str(seen[-1].place), stop_at=1)])
    assert news[-1].anew
    assert text_of(news) == "new"
    asked.say("er", finish="length")
    asked.finish()
    wait(run, "done")
    assert output(run)["choices"][0]["text"] == "newer"
    assert caller.left() == 100_000 - 6


def database_age() -> float:
    """Seconds since PostgreSQL started."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM now() - pg_postmaster_start_time())")
        return float(cursor.fetchone()[0])


@pytest.mark.row("A-242", "C-609")
def test_a_crash_fails_a_run_which_keeps_its_text_and_is_free(caller, scripted, make_runner):
    """Its process is gone: the lease was reaped, and with it the Hold was released."""
    from jobs.models import Run

    # No lease is judged so soon after the database itself started.
    eventually(lambda: database_age() > settings.BASALT.lease_seconds, 30)
    [run] = start(caller)
    first = make_runner()
    asked = scripted.next()
    asked.say("half a ")
    asked.say("text")
    eventually(lambda: read(run).pieces.exists())
    assert caller.open_holds() == 1
    row = read(run)
    # The runner of this process is held up; its lease runs out, and another one looks.
    first._loop.call_soon_threadsafe(time.sleep, 3)

    lose(row.owner)
    assert caller.left() == 100_000
    make_runner()
    failed = wait(run, "failed")
    assert output(run)["choices"][0]["text"] == "half a text"
    assert failed.error["code"] == "job_failed"
    eventually(lambda: asked.aborted.is_set())
    assert caller.left() == 100_000
    assert Run.objects.get(id=run.id).state == "failed"
    assert scripted.asked.empty()


@pytest.mark.row("C-112", "C-337")
def test_a_failure_of_inference_keeps_the_text_and_pays_for_it(caller, scripted, runner):
    [run] = start(caller)
    asked = scripted.next()
    asked.say("a")
    asked.fail(FailureCode.ENGINE_DEAD, "it died")
    failed = wait(run, "failed")
    assert failed.error["code"] == "vllm_engine_dead"
    assert output(run)["choices"][0]["text"] == "a"
    assert caller.left() == 100_000 - 5


@pytest.mark.row("C-615", "A-166")
def test_a_key_does_not_matter_to_a_run_and_a_suspension_does(caller, scripted, make_runner):
    from accounts.keys import pause_key, revoke_key
    from accounts.models import User

    [run] = start(caller)
    pause_key(key_id=caller.key_id)
    revoke_key(key_id=caller.key_id)
    make_runner()
    scripted.next().answer("a")
    wait(run, "done")
    User.objects.filter(id=caller.user_id).update(suspended_at=timezone.now())
    [later] = start(caller)
    failed = wait(later, "failed")
    assert failed.error["status"] == 401
    assert "suspended" in failed.error["message"]
    assert scripted.asked.empty()


@pytest.mark.row("A-575")
def test_a_run_that_finds_too_few_tokens_fails_with_its_settings_as_they_were(
    make_caller, scripted, no_work, make_runner
):
    from billing.grants import set_budget

    caller = make_caller(tokens=100)
    [run] = start(caller, max_tokens=50)
    set_budget(user_id=caller.user_id, tokens=20, by=None)
    make_runner()
    failed = wait(run, "failed")
    assert failed.error["code"] == "budget_exceeded"
    assert "54 tokens" in failed.error["message"]
    assert failed.settings["max_tokens"] == 50
    assert caller.left() == 20
    assert scripted.asked.empty()


@pytest.mark.row("A-250", "C-616")
def test_a_run_waits_for_a_place_of_its_model(caller, scripted, make_runner, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"max_inflight_per_model": 1})
    first, second = start(caller, {}, {})
    make_runner()
    asked = scripted.next()
    waiting = second if read(first).state == "running" else first
    assert read(waiting).state == "queued"
    assert caller.open_holds() == 1
    asked.answer("a")
    scripted.next().answer("b")
    for run in (first, second):
        wait(run, "done")


@pytest.mark.row("A-251", "C-380")
def test_a_run_of_a_model_with_an_open_breaker_fails_at_once(caller, scripted, runner):
    from completions.breaker import breakers

    for _ in range(5):
        breakers()._failed("tiny", 0)
    [run] = start(caller)
    assert wait(run, "failed").error["code"] == "circuit_open"
    assert scripted.asked.empty()


@pytest.mark.row("A-249", "C-222")
def test_a_run_waits_for_its_model_and_then_fails(caller, scripted, make_runner, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"background_answer_timeout": 1.0})
    [run] = start(caller, model="tiny-other")
    make_runner()
    failed = wait(run, "failed")
    assert failed.error["message"] == "Could not reach Inference: Request timed out."
    assert caller.left() == 100_000


@pytest.mark.row("C-669")
def test_once_it_has_started_a_run_waits_as_long_as_a_live_stream(
    caller, scripted, make_runner, settings
):
    settings.BASALT = settings.BASALT.model_copy(update={"answer_timeout": 0.5})
    [run] = start(caller)
    make_runner()
    scripted.next().say("a")
    failed = wait(run, "failed")
    assert failed.error["code"] == "upstream_deadline"
    assert caller.left() == 100_000 - 5


@pytest.mark.row("A-273", "A-274", "A-127")
def test_the_list_has_the_newest_and_cuts_no_comparison(make_caller, no_work, settings):
    from jobs import runs
    from jobs.models import Run

    caller = make_caller(tokens=10_000_000)
    compared = start(caller, {}, {}, {})
    for _ in range(33):
        start(caller, {}, {}, {})
    start(make_caller())
    listed = runs.newest(caller.user_id)
    assert [run.number for run in listed] == list(range(102, 0, -1))
    assert len({run.comparison for run in compared}) == 1
    assert compared[0].comparison is not None
    runs.delete(Run.objects.of(caller.user_id).filter(number=102))
    assert [run.number for run in runs.newest(caller.user_id)] == list(range(101, 0, -1))
    assert start(caller)[0].comparison is None


@pytest.mark.row("C-638", "A-246", "A-287", "A-576")
def test_what_a_run_read_is_kept_for_7_days(caller, scripted, runner):
    from django.core.files.storage import default_storage

    from jobs import runs
    from jobs.models import Run

    [run] = start(caller, max_tokens=2, output_residual_stream=[1])
    asked = scripted.next()
    asked.say("a")
    asked.say("b", finish="length")
    asked.finish(residuals=Residuals(shape=(1, 5, 64), dtype="float32", data=bytes(4 * 5 * 64)))
    done = wait(run, "done")
    assert done.activations_shape == [1, 5, 64]
    with runs.activations_of(done) as kept:
        tensor = msgspec.json.decode(kept.read())["residual_stream"]
    assert tensor["shape"] == [1, 5, 64]
    file, week = done.activations_file, timedelta(days=7)
    runs.erase_expired()
    assert default_storage.exists(file)
    Run.objects.filter(id=run.id).update(finished_at=timezone.now() - week)
    assert runs.activations_of(read(run)) is None
    runs.erase_expired()
    assert not default_storage.exists(file)
    assert read(run).activations_shape is None
    Run.objects.filter(id=run.id).update(finished_at=timezone.now() - timedelta(days=3650))
    runs.erase_expired()
    assert output(run)["choices"][0]["text"] == "ab"


@pytest.mark.row("C-639", "A-285", "A-286")
def test_a_deleted_run_is_unreadable_at_once_and_erased_14_days_later(
    caller, scripted, runner, settings
):
    from django.core.files.storage import default_storage

    from jobs import runs
    from jobs.models import Run

    settings.BASALT = settings.BASALT.model_copy(update={"inline_answer_bytes": 10})
    [run] = start(caller)
    asked = scripted.next()
    asked.say("a" * 100)
    eventually(lambda: read(run).pieces.exists())
    assert runs.delete(Run.objects.of(caller.user_id).filter(id=run.id)) == 1
    assert not Run.objects.of(caller.user_id).exists()
    assert followed(run) == []
    assert asked.aborted.wait(10)
    gone = wait(run, "cancelled")
    assert caller.left() == 100_000 - 5
    Run.objects.filter(id=run.id).update(deleted_at=timezone.now() - timedelta(days=13, hours=23))
    assert runs.erase_expired() == 0
    Run.objects.filter(id=run.id).update(deleted_at=timezone.now() - timedelta(days=14))
    assert runs.erase_expired() == 1
    assert not Run.objects.filter(id=run.id).exists()
    for file in (gone.body_file, gone.output_file):
        assert file
        assert not default_storage.exists(file)
    assert [each.number for each in start(caller)] == [2]


@pytest.mark.row("A-278", "A-305")
def test_a_run_keeps_what_was_asked_for_in_the_apis_form(caller, no_work):
    from jobs import runs

    vectors = [{"layer_indices": [0], "activations": [[0.5] * 64]}]
    body = {"temperature": 0.5, "seed": 7, "apply_steering_vectors": vectors}
    [run] = start(caller, body)
    assert runs.body_of(read(run)) == {"model": "tiny", "prompt": IDS, "max_tokens": 3} | body
    listed = read(run).settings
    assert listed.pop("apply_steering_vectors") == [{"layer_indices": [0]}]
    assert listed == {"max_tokens": 3, "temperature": 0.5, "seed": 7}


@pytest.mark.row("A-240")
def test_the_page_follows_a_run_by_events_that_go_on_after_a_break(
    caller, scripted, runner, make_caller
):
    """The view itself: its bytes, and who may read them."""
    from django.http import Http404
    from django.test import RequestFactory

    from accounts.models import User
    from pages.run_events import events

    [run] = start(caller, max_tokens=40)
    asked = scripted.next()
    asked.say("one ")
    eventually(lambda: read(run).pieces.exists())
    user = User.objects.get(id=caller.user_id)
    other = User.objects.get(id=make_caller().user_id)

    async def ask(who: User | None, until: str, after: str = "") -> str:
        request = RequestFactory().get("/", headers={"Last-Event-ID": after} if after else {})

        async def auser() -> User | None:
            return who

        request.auser = auser
        answer = await events(request, run.number)
        if answer.status_code != 200:
            return str(answer.status_code)
        told = b""
        async for part in answer.streaming_content:
            told += part
            if until.encode() in told and told.endswith(b"\n\n"):
                break
        return told.decode()

    def told(*args: object) -> str:
        return asyncio.run(asyncio.wait_for(ask(*args), 20))

    first = told(user, '"one "')
    place = first.rpartition("id: ")[2].partition("\n")[0]
    asked.say("two", finish="length")
    asked.finish()
    wait(run, "done")
    assert told(user, "event: end", place).count("one ") == 0
    assert 'event: end\ndata: {"state": "done"}' in told(user, "event: end")
    assert told(None, "") == "401"
    with pytest.raises(Http404):
        told(other, "")
