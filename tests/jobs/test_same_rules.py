"""Background work keeps the rules of a Completion where it has none of its own."""

import time
from dataclasses import replace
from uuid import UUID

import msgspec
import numpy as np
import pytest
from django.conf import settings

from completions.admission import LIVE, Policy
from completions.kept import KeptBody, keep_request, read_request
from inference.client import Patience
from inference.engine.messages import Residuals
from jobs.job_kind import JOB
from jobs.models import Job
from jobs.run_kind import RUN
from looms.growth import POLICY as NODE
from tests.api.tensors import decode
from tests.jobs.conftest import submit

HIDDEN = 64
TIMED_OUT = "Could not reach Inference: Request timed out."


@pytest.mark.row("C-222", "C-669", "C-221")
@pytest.mark.parametrize("policy", [JOB, RUN, NODE])
def test_background_work_waits_45_minutes_for_a_start_and_14_between_chunks(policy: Policy):
    assert policy.patience == Patience(start=45 * 60, gap=14 * 60)
    assert LIVE.patience == Patience(start=14 * 60, gap=14 * 60)


@pytest.fixture
def impatient():
    """A second between two chunks, and as many to a start as the test says."""
    before = settings.BASALT
    yield lambda start: setattr(
        settings,
        "BASALT",
        before.model_copy(update={"background_answer_timeout": start, "answer_timeout": 1.0}),
    )
    settings.BASALT = before


@pytest.mark.row("C-222")
def test_the_start_of_a_job_may_take_longer_than_a_live_one(caller, scripted, runner, impatient):
    impatient(60.0)
    job = submit(caller)
    asked = scripted.next()
    time.sleep(1.5)
    asked.answer("a", "b", "c")
    assert job.wait("succeeded", "failed")["status"] == "succeeded"


@pytest.mark.row("C-222", "C-669")
@pytest.mark.parametrize(("start", "said"), [(1.0, False), (60.0, True)])
def test_a_job_ends_when_inference_is_silent(caller, scripted, runner, impatient, start, said):
    impatient(start)
    job = submit(caller)
    asked = scripted.next()
    if said:
        asked.say("a")
    job.wait("failed")
    error = job.result().json()["error"]
    assert (error["message"], error["code"]) == (TIMED_OUT, "upstream_deadline")
    assert asked.aborted.wait(10)
    assert caller.left() == 100_000


@pytest.mark.row("C-257")
def test_the_result_of_a_job_has_what_was_read_and_steered(caller, scripted, runner):
    vector = {"activations": [[0.5] * HIDDEN], "layer_indices": [1]}
    job = submit(caller, output_residual_stream=[0, 1], apply_steering_vectors=[vector])
    asked = scripted.next()
    assert asked.request.read_layers == (0, 1)
    assert asked.request.steering[0].layers == (1,)
    array = np.arange(2 * 6 * HIDDEN, dtype="<f4").reshape(2, 6, HIDDEN)
    for place, text in enumerate("abc"):
        asked.say(text, finish="length" if place == 2 else None)
    asked.finish(residuals=Residuals(shape=array.shape, dtype="float32", data=array.tobytes()))
    job.wait("succeeded")
    assert np.array_equal(decode(job.result().json()["activations"]), array)


@pytest.mark.row("C-178")
def test_a_waiting_job_of_a_wider_range_is_read_and_inference_decides(
    caller, scripted, make_runner
):
    job = submit(caller)
    row = Job.objects.get(id=UUID(job.id))
    asked = read_request(KeptBody(bytes(row.request), ""))
    older = msgspec.structs.replace(asked.sampling, temperature=5.0)
    kept = keep_request("tests", replace(asked, sampling=older))
    Job.objects.filter(id=row.id).update(request=kept.inline)
    assert job.read()["status"] == "queued"
    make_runner()
    reached = scripted.next()
    assert reached.request.sampling.temperature == 5.0
    reached.answer("a", "b", "c")
    job.wait("succeeded")
    refused = caller.client.post(
        "/v1/completion-jobs", json={"prompt": [5], "max_tokens": 1, "temperature": 5}
    )
    assert refused.status_code == 400
