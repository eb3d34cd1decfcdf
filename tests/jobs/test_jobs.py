"""Jobs by their routes: submitted, read, run, cancelled (section 15)."""

import asyncio
import re
import time
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from inference.engine.messages import FailureCode
from tests.jobs.conftest import IDS, JOBS, Submitted, another_key, rows, submit
from tests.live import eventually

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")
FIELDS = {
    "id",
    "request_id",
    "model",
    "status",
    "cancel_requested",
    "created_at",
    "started_at",
    "finished_at",
    "expires_at",
    "result_expired",
    "status_url",
    "result_url",
    "usage_pending",
}


def refused(caller, status: int, **fields: object) -> dict[str, object]:
    """The error of a submission, which makes no Job."""
    from jobs.models import Job

    before = Job.objects.filter(user_id=caller.user_id).count()
    answer = caller.client.post(JOBS, json={"model": "tiny", "prompt": IDS} | fields)
    assert answer.status_code == status, answer.text
    assert Job.objects.filter(user_id=caller.user_id).count() == before
    return answer.json()["error"] | {"headers": answer.headers}


# Submit


@pytest.mark.row(
    "C-055",
    "C-411",
    "C-413",
    "C-419",
    "C-420",
    "C-421",
    "C-422",
    "C-423",
    "C-424",
    "C-425",
    "C-426",
)
def test_a_submitted_job_is_queued_and_holds_nothing(caller, no_work):
    answer = caller.client.post(
        JOBS, json={"model": "basalt/tiny-llama", "prompt": IDS, "max_tokens": 3}
    )
    assert answer.status_code == 202
    job = answer.json()
    assert set(job) == FIELDS
    assert job["request_id"] == "req_job_" + job["id"].replace("-", "")
    assert job["model"] == "tiny"
    assert job["status"] == "queued"
    assert job["status_url"] == f"{JOBS}/{job['id']}" == answer.headers["location"]
    assert job["result_url"] == f"{JOBS}/{job['id']}/result"
    assert TIME.fullmatch(job["created_at"])
    assert job["started_at"] is job["finished_at"] is job["expires_at"] is None
    assert job["usage_pending"] is job["cancel_requested"] is job["result_expired"] is False
    assert caller.left() == 100_000
    assert caller.open_holds() == 0


@pytest.mark.row("C-015", "C-428", "C-429")
def test_any_key_of_the_user_reads_a_job_and_no_other_user(caller, make_caller, no_work):
    job = submit(caller)
    assert another_key(caller).client.get(f"{JOBS}/{job.id}").json() == job.read()
    other = make_caller().client
    for method, path in (("GET", ""), ("GET", "/result"), ("POST", "/cancel")):
        for client, job_id in ((other, job.id), (caller.client, str(uuid4()))):
            answer = client.request(method, f"{JOBS}/{job_id}{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "job_not_found"
    assert job.status == "queued"


@pytest.mark.row("C-044", "C-072", "C-429", "C-444")
@pytest.mark.parametrize("path", ["", "/result", "/cancel"])
def test_an_id_that_is_none_is_400(caller, path):
    method = "POST" if path == "/cancel" else "GET"
    answer = caller.client.request(method, f"{JOBS}/not-an-id{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "job_id"


@pytest.mark.row("C-152", "C-160")
def test_a_job_takes_a_number_without_a_bound(caller, runner, scripted):
    for sent in (2**64, 1e300):
        job = submit(caller, top_k=sent, priority=sent)
        asked = scripted.next()
        assert asked.request.sampling.top_k == 2**31 - 1
        assert asked.request.priority == 2**63 - 1
        asked.answer("x")
        job.wait("succeeded")


@pytest.mark.row("C-406", "C-407", "C-410", "C-412", "C-048")
def test_a_job_is_checked_as_a_completion(caller, no_work):
    assert refused(caller, 400, stream=True)["param"] == "stream"
    assert refused(caller, 400, stream_options={"include_usage": True})["param"] == "stream_options"
    assert refused(caller, 400, requests=[{"prompt": IDS}])["param"] == "requests"
    assert refused(caller, 400, temperature=3)["param"] == "temperature"
    assert refused(caller, 400, model="gpt-2")["code"] == "model_not_found"
    assert refused(caller, 400, n=129, max_tokens=1)["param"] == "n"
    assert refused(caller, 400, output_residual_stream=[4])["param"] == "output_residual_stream"
    assert refused(caller, 400, max_tokens=600)["code"] == "context_length_exceeded"
    answer = caller.client.post(JOBS, content=b'[{"prompt": [5]}]')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert caller.client.get(JOBS).headers["allow"] == "POST"
    submit(caller, stream=False, stream_options=None)


@pytest.mark.row("C-408", "C-409", "C-677")
def test_what_a_body_leaves_out(caller, no_work):
    from jobs.job_kind import JobRecord

    answer = caller.client.post(JOBS, json={"prompt": IDS, "max_tokens": None})
    job = Submitted(caller, answer.json()["id"])
    assert job.read()["model"] == "tiny"
    assert JobRecord(job.row()).request().max_tokens == 16
    several = submit(caller, prompt=[IDS, IDS], n=2, max_tokens=None)
    assert JobRecord(several.row()).request().max_tokens == 16


@pytest.mark.row("C-678", "C-313")
def test_a_job_without_max_tokens_is_checked_as_one_of_sixteen(caller, no_work, settings):
    """Four tokens of the prompt and sixteen more, of which the last never runs."""
    from api.bodies import completion_request, job_request
    from completions.admission import LIVE, check_submission
    from completions.failures import Failure
    from jobs.job_kind import JOB

    vector = {"layer_indices": [0], "activations": [[[0.5] * 64]], "position_indices": [18]}
    submit(caller, max_tokens=None, apply_steering_vectors=[vector])
    beyond = [vector | {"position_indices": [19]}]
    error = refused(caller, 400, max_tokens=None, apply_steering_vectors=beyond)
    assert error["param"] == "apply_steering_vectors"

    body = {"model": "tiny", "prompt": IDS, "output_residual_stream": True}
    for positions, fits in ((20, True), (19, False)):
        most = {"max_capture_numbers": 4 * 64 * positions}
        settings.BASALT = settings.BASALT.model_copy(update=most)
        checking = check_submission(job_request(body), payer=caller, policy=JOB)
        if fits:
            asyncio.run(checking)
            # A live one would read what its context has room for.
            checking = check_submission(completion_request(body), payer=caller, policy=LIVE)
        with pytest.raises(Failure) as refusal:
            asyncio.run(checking)
        assert refusal.value.param == "output_residual_stream"


@pytest.mark.row("C-409")
def test_a_job_has_no_deadline(caller, no_work, settings):
    """What is refused for the deadline of a live answer is refused for the context at most."""
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 15_601}
    live = caller.client.post("/v1/completions", json=body)
    assert live.json()["error"]["code"] == "deadline_infeasible"
    assert refused(caller, 400, max_tokens=15_601)["code"] == "context_length_exceeded"
    assert refused(caller, 400, max_tokens=32_001)["param"] == "max_tokens"


@pytest.mark.row("C-361", "C-412", "C-413")
def test_tokens_are_checked_at_submission(make_caller, no_work):
    caller = make_caller(tokens=6)
    error = refused(caller, 429, max_tokens=3)
    assert error["code"] == "budget_exceeded"
    assert "can use up to 7 tokens" in error["message"]
    assert error["headers"]["x-should-retry"] == "false"
    submit(caller, max_tokens=2)
    submit(caller, max_tokens=2)


@pytest.mark.row("C-412", "C-619", "A-490")
def test_the_spend_stop_refuses_jobs(caller, no_work):
    from billing import spend_stop

    spend_stop.lock(by=None)
    try:
        error = refused(caller, 429)
        assert error["code"] == "spend_cap"
        assert error["headers"]["retry-after"] == "3600"
    finally:
        spend_stop.clear(by=None)


@pytest.mark.row("C-087", "C-415", "C-417")
def test_caps_on_jobs_that_have_not_ended(caller, make_caller, no_work):
    made = rows(caller, 8)
    error = refused(caller, 429)
    assert error["code"] == "job_capacity"
    assert "8 Jobs of this API key" in error["message"]
    assert error["headers"]["x-should-retry"] == "false"
    assert "retry-after" not in error["headers"]
    second = another_key(caller)
    submit(second)
    rows(another_key(caller), 23)
    assert "32 Jobs of yours" in refused(second, 429)["message"]
    Submitted(caller, str(made[0].id)).cancels()
    rows(make_caller(), 96)
    submit(second)
    assert "128 Jobs of all Users" in refused(make_caller(), 429)["message"]


@pytest.mark.row("C-416", "C-417")
@pytest.mark.parametrize("state", ["done", "failed"])
def test_caps_on_jobs_with_kept_results(caller, make_caller, no_work, state):
    from jobs.models import Job

    made = rows(caller, 100, state)
    rows(caller, 50, "cancelled")
    error = refused(caller, 429)
    assert error["code"] == "job_capacity"
    assert "100 ended Jobs of yours" in error["message"]
    Job.objects.filter(id=made[0].id).update(
        created_at=made[0].created_at - timedelta(days=31),
        finished_at=made[0].created_at - timedelta(days=30, seconds=1),
    )
    submit(caller)
    rows(make_caller(), 901, state)
    assert "1000 ended Jobs of all Users" in refused(make_caller(), 429)["message"]


@pytest.mark.row("C-365", "C-418", "C-430")
def test_submissions_count_in_the_work_bucket_and_reads_in_the_other(caller, no_work):
    from inference import valkey

    def empty(bucket: str) -> None:
        name = f"{valkey.PREFIX}rate:{bucket}:{caller.key_id}"
        valkey.connection().set(name, (time.time() + 120) * 1000)

    empty("work")
    answer = caller.client.post(JOBS, json={"prompt": IDS})
    assert answer.json()["error"]["code"] == "rate_limited"
    read, cancel = f"{JOBS}/{uuid4()}", f"{JOBS}/{uuid4()}/cancel"
    assert caller.client.get(read).status_code == 404
    assert caller.client.post(cancel).status_code == 404
    empty("other")
    assert caller.client.get(read).json()["error"]["code"] == "rate_limited"
    assert caller.client.post(cancel).json()["error"]["code"] == "rate_limited"


@pytest.mark.row("C-418", "C-374")
def test_a_job_takes_no_place_of_its_key(caller, scripted, runner):
    from completions.places import places
    from inference import valkey

    for _ in range(3):
        submit(caller)
    running = [scripted.next() for _ in range(3)]
    assert places().running(str(caller.key_id)) == 0
    assert valkey.connection().zcard(f"{valkey.PREFIX}places:line:{caller.key_id}") == 0
    for asked in running:
        asked.answer("a")
    eventually(lambda: caller.open_holds() == 0)


@pytest.mark.row("C-383", "C-392", "C-414")
def test_a_repeat_answers_the_job_as_it_is_now(caller, scripted, runner):
    headers = {"Idempotency-Key": "once"}
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 3}
    first = caller.client.post(JOBS, json=body, headers=headers)
    assert first.status_code == 202
    job = Submitted(caller, first.json()["id"])
    scripted.next().answer("a", "b", "c")
    done = job.wait("succeeded")
    again = caller.client.post(JOBS, json=body, headers=headers)
    assert again.status_code == 200
    assert again.json() == done
    assert again.headers["location"] == done["status_url"]
    other = caller.client.post(JOBS, json=body | {"max_tokens": 4}, headers=headers)
    assert other.json()["error"]["code"] == "idempotency_conflict"
    assert caller.left() == 100_000 - 7


@pytest.mark.row("C-398")
def test_a_refused_submission_frees_its_key(make_caller, no_work):
    from billing.grants import grant

    caller = make_caller(tokens=1)
    headers = {"Idempotency-Key": "once"}
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 3}
    assert caller.client.post(JOBS, json=body, headers=headers).status_code == 429
    grant(user_id=caller.user_id, tokens=100, by=None)
    assert caller.client.post(JOBS, json=body, headers=headers).status_code == 202


# Running and results


@pytest.mark.row("C-422", "C-423", "C-424", "C-427", "C-428", "C-431", "C-432", "C-451", "C-604")
def test_a_job_runs_and_its_result_is_the_completion(caller, scripted, runner):
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 3, "logprobs": None}
    job = submit(caller, **body)
    asked = scripted.next()
    assert asked.request.max_tokens == 3
    running = job.wait("running")
    assert running["usage_pending"] is True
    assert TIME.fullmatch(str(running["started_at"]))
    waiting = job.result()
    assert waiting.status_code == 202
    assert waiting.headers["retry-after"] == "1"
    assert waiting.json() == job.read()
    assert caller.left() == 100_000 - 7
    asked.answer("a", "b")
    done = job.wait("succeeded")
    assert done["usage_pending"] is False
    ends = [datetime.fromisoformat(str(done[name])) for name in ("finished_at", "expires_at")]
    assert ends[1] - ends[0] == timedelta(days=30)
    answer = job.result()
    assert answer.status_code == 200
    whole = answer.json()
    assert set(whole) == {"id", "object", "created", "model", "choices", "usage"}
    assert whole["model"] == "basalt/tiny-llama"
    assert whole["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_logprobs": None,
        }
    ]
    assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    assert caller.left() == 100_000 - 6


@pytest.mark.row("C-432")
def test_a_result_is_what_a_live_completion_answers(caller, scripted, runner):
    body = {"model": "tiny", "prompt": "the sky", "max_tokens": 2, "echo": True}
    scripted.answers = ("a", "b")
    job = submit(caller, **body)
    live = caller.client.post("/v1/completions", json=body).json()
    job.wait("succeeded")
    kept = job.result().json()
    for answer in (live, kept):
        answer.pop("id")
        answer.pop("created")
    assert kept == live


@pytest.mark.row("C-439")
def test_a_result_is_zipped_as_any_answer(caller, scripted, runner):
    scripted.answers = ("x" * 600,)
    job = submit(caller)
    job.wait("succeeded")
    path = f"{JOBS}/{job.id}/result"
    zipped = caller.client.get(path, headers={"Accept-Encoding": "gzip"})
    plain = caller.client.get(path, headers={"Accept-Encoding": "identity"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert zipped.json() == plain.json()


@pytest.mark.row("C-432", "C-637")
def test_a_large_result_and_a_large_request_lie_in_the_file_storage(
    caller, scripted, runner, settings
):
    from django.core.files.storage import default_storage

    vector = {"layer_indices": [0], "activations": [[0.5] * 64]}
    fields = {"apply_steering_vectors": [vector] * 8}
    settings.BASALT = settings.BASALT.model_copy(update={"inline_answer_bytes": 100})
    job = submit(caller, **fields)
    scripted.next().answer("y" * 5000)
    job.wait("succeeded")
    row = job.row()
    assert row.result is None
    assert default_storage.exists(row.result_file)
    assert job.result().json()["choices"][0]["text"] == "y" * 5000


@pytest.mark.row("C-026", "C-422", "C-427", "C-428", "C-433", "C-434")
@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        (FailureCode.INVALID_REQUEST, 400, "invalid_request"),
        (FailureCode.SERVER_ERROR, 502, "upstream_server_error"),
        (FailureCode.OUT_OF_MEMORY, 502, "vllm_oom"),
        (FailureCode.DEADLINE, 504, "upstream_deadline"),
    ],
)
def test_a_failure_of_inference_is_the_result(caller, scripted, runner, code, status, name):
    job = submit(caller)
    asked = scripted.next()
    asked.say("a")
    asked.fail(code, "it broke")
    ended = job.wait("failed")
    answer = job.result()
    assert answer.status_code == status
    body = answer.json()
    assert body["error"]["code"] == name
    assert body["error"]["message"] == "it broke"
    assert body["request_id"] == ended["request_id"] != answer.headers["x-request-id"]
    assert "retry-after" not in answer.headers
    assert caller.left() == 100_000


@pytest.mark.row("C-362", "C-433", "C-448")
def test_too_few_tokens_at_the_start_fail_the_job(make_caller, scripted, runner):
    from billing.grants import set_budget

    caller = make_caller(tokens=100)
    made = rows(caller, 1)
    set_budget(user_id=caller.user_id, tokens=6, by=None)
    job = Submitted(caller, str(made[0].id))
    job.wait("failed")
    answer = job.result()
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "budget_exceeded"
    assert "up to 7 tokens" in answer.json()["error"]["message"]
    assert scripted.asked.empty()
    assert caller.left() == 6


@pytest.mark.row("C-093", "C-427", "C-437", "C-656", "C-345")
def test_a_result_that_cannot_be_kept_fails_the_job_for_good(caller, scripted, runner, monkeypatch):
    from jobs import job_kind

    def broken(name, body):
        raise OSError("the disk is full")

    monkeypatch.setattr(job_kind, "keep", broken)
    job = submit(caller)
    scripted.next().answer("a")
    job.wait("failed")
    answer = job.result()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "job_failed"
    assert answer.json()["request_id"] == job.read()["request_id"]
    assert answer.headers["x-should-retry"] == "false"
    assert caller.left() == 100_000
    assert scripted.asked.empty()


@pytest.mark.row("C-437")
def test_a_result_whose_file_is_gone_is_job_failed(caller, no_work):
    [row] = rows(caller, 1, "done", result=None, result_file="job-results/gone")
    answer = Submitted(caller, str(row.id)).result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "job_failed")


@pytest.mark.row("C-082", "C-436", "C-637")
@pytest.mark.parametrize("erased", [False, True])
@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_a_result_expires_30_days_after_the_end(caller, no_work, state, erased):
    from jobs.completion_jobs import erase_expired
    from jobs.models import Job

    [late, early] = rows(caller, 2, state, age=30 * 86_400 - 30)
    Job.objects.filter(id=early.id).update(finished_at=late.finished_at - timedelta(minutes=1))
    if erased:
        assert erase_expired() == (0 if state == "cancelled" else 1)
        assert Job.objects.get(id=early.id).result is None
    gone = Submitted(caller, str(early.id))
    answer = gone.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "job_result_expired")
    assert gone.read()["result_expired"] is True
    kept = Submitted(caller, str(late.id))
    assert kept.read()["result_expired"] is False
    assert kept.result().status_code in (200, 502, 409)


@pytest.mark.row("C-257", "C-438")
def test_a_job_reads_the_residual_stream(caller, scripted, runner):
    from inference.engine.messages import Residuals

    job = submit(caller, max_tokens=2, output_residual_stream=[1])
    asked = scripted.next()
    asked.say("a")
    asked.say("b", finish="length")
    asked.finish(residuals=Residuals(shape=(1, 5, 64), dtype="float32", data=bytes(4 * 5 * 64)))
    job.wait("succeeded")
    stream = job.result().json()["activations"]["residual_stream"]
    assert stream["shape"] == [1, 5, 64]


@pytest.mark.row("C-201", "C-433")
def test_an_answer_that_does_not_fit_is_the_result(caller, scripted, runner):
    job = submit(caller)
    asked = scripted.next()
    asked.say("a")
    asked.finish()
    job.wait("failed")
    answer = job.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_server_error")
    assert caller.left() == 100_000


@pytest.mark.case("T11")
def test_a_result_may_hold_the_nul_character(caller, scripted, runner):
    job = submit(caller)
    scripted.next().answer("a", "\0", "b")
    job.wait("succeeded")
    assert job.result().json()["choices"][0]["text"] == "a\0b"


# Cancel


@pytest.mark.row("C-081", "C-422", "C-425", "C-428", "C-435", "C-440", "C-442", "C-443", "C-050")
@pytest.mark.case("J03")
def test_a_queued_job_that_is_cancelled_never_runs(caller, scripted, no_work, make_runner):
    job = submit(caller)
    cancelled = job.cancels()
    assert cancelled["status"] == "cancelled"
    assert cancelled["cancel_requested"] is True
    assert TIME.fullmatch(str(cancelled["finished_at"]))
    assert job.cancels() == cancelled
    answer = job.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_cancelled")
    assert answer.headers["x-should-retry"] == "false"
    make_runner()
    other = submit(caller)
    scripted.next().answer("a")
    other.wait("succeeded")
    assert job.read() == cancelled
    assert job.row().request is None
    assert scripted.asked.empty()
    assert caller.left() == 100_000 - 5


@pytest.mark.row("C-340", "C-355", "C-440", "C-441")
@pytest.mark.case("J03")
def test_a_running_job_that_is_cancelled_stops_and_pays_its_hold(caller, scripted, runner):
    from billing.models import Hold

    job = submit(caller)
    asked = scripted.next()
    asked.say("a")
    job.wait("running")
    assert job.cancels()["status"] == "cancelled"
    assert asked.aborted.wait(10)
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000 - 7
    hold = Hold.objects.get(user_id=caller.user_id)
    assert (hold.status, hold.counted) == ("stopped", "held")
    eventually(lambda: job.row().owner is None)
    assert job.row().request is None
    assert job.read()["status"] == "cancelled"
    assert job.result().status_code == 409


@pytest.mark.row("C-440", "C-344")
def test_a_job_that_is_cancelled_while_it_waits_for_a_worker_is_free(
    caller, scripted, runner, make_caller
):
    job = submit(caller, model="tiny-other")
    job.wait("running")
    job.cancels()
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000


@pytest.mark.row("C-384", "C-422", "C-443")
@pytest.mark.case("J03")
def test_an_ended_job_is_not_cancelled(caller, scripted, runner):
    job = submit(caller)
    scripted.next().answer("a")
    done = job.wait("succeeded")
    assert job.cancels() == done
    headers = {"Idempotency-Key": "again"}
    path = f"{JOBS}/{job.id}/cancel"
    for client in (caller.client, caller.client):
        assert client.post(path, headers=headers).json() == done
    assert job.result().json()["choices"][0]["text"] == "a"
