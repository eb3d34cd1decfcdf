"""Jobs by their routes: submitted, run, read, cancelled (section 15)."""

import pytest

from tests.jobs.conftest import IDS, JOBS, Submitted, submit
from tests.live import eventually


def test_a_job_runs(caller, scripted, runner):
    job = submit(caller)
    assert job.wait("running")["usage_pending"]
    asked = scripted.next()
    asked.answer("a", "b", "c")
    done = job.wait("succeeded")
    assert done["usage_pending"] is False
    result = job.result()
    assert result.status_code == 200
    assert result.json()["choices"][0]["text"] == "abc"
    assert caller.left() == 100_000 - 7
