"""Runs of the Playground as a service: numbered, followed, stopped, deleted, kept."""

import asyncio
import threading
from uuid import UUID

import msgspec
import pytest

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
