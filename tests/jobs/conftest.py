"""A runner in this process, beside the scripted engine, and Jobs that tests submit."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from django.utils import timezone

from tests.conftest import Caller
from tests.live import eventually

IDS = [5, 6, 7, 8]
JOBS = "/v1/completion-jobs"
COMPLETION = json.dumps(
    {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "basalt/tiny-llama",
        "choices": [
            {
                "index": 0,
                "text": "x",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "prompt_logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
    }
).encode()


@dataclass
class Submitted:
    """A Job that a test submitted."""

    caller: Caller
    id: str

    def read(self) -> dict[str, object]:
        answer = self.caller.client.get(f"{JOBS}/{self.id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def result(self) -> httpx.Response:
        return self.caller.client.get(f"{JOBS}/{self.id}/result")

    def cancel(self) -> httpx.Response:
        return self.caller.client.post(f"{JOBS}/{self.id}/cancel")

    @property
    def status(self) -> str:
        return str(self.read()["status"])

    def wait(self, *statuses: str, seconds: float = 20) -> dict[str, object]:
        eventually(lambda: self.status in statuses, seconds)
        return self.read()

    def cancels(self) -> dict[str, object]:
        answer = self.cancel()
        assert answer.status_code == 200, answer.text
        return answer.json()

    def row(self):
        from jobs.models import Job

        return Job.objects.get(id=UUID(self.id))


def another_key(caller: Caller) -> Caller:
    """The same User with another key."""
    from accounts.keys import create_key
    from accounts.models import User

    user = User.objects.get(id=caller.user_id)
    key, secret = create_key(user=user, name=f"key {key_count(caller)}")
    client = httpx.Client(
        base_url=caller.client.base_url,
        headers={"Authorization": f"Bearer {secret}"},
        timeout=60,
        event_hooks=caller.client.event_hooks,
    )
    return Caller(caller.user_id, key.id, secret, client)


def key_count(caller: Caller) -> int:
    from accounts.models import ApiKey

    return ApiKey.objects.filter(user_id=caller.user_id).count()


def rows(caller: Caller, count: int, state: str = "queued", age: float = 0, **columns) -> list:
    """Make Jobs of a caller in the database alone, each older than the next."""
    from completions.kept import keep_request
    from completions.request import CompletionRequest
    from jobs.models import Job

    now = timezone.now() - timedelta(seconds=age)
    request = CompletionRequest(model="tiny", prompts=((5, 6, 7, 8),), max_tokens=3)
    ended = state in ("done", "failed", "cancelled")
    more = {
        "model": "tiny",
        "finished_at": now if ended else None,
        "started_at": now if state in ("running", "done") else None,
        "request": None if ended else keep_request("none", request).inline,
        "result": COMPLETION if state == "done" else None,
        "error": {"status": 502, "message": "m"} if state == "failed" else None,
    }
    return Job.objects.bulk_create(
        Job(
            user_id=caller.user_id,
            key_id=caller.key_id,
            state=state,
            created_at=now + timedelta(milliseconds=place),
            **(more | columns),
        )
        for place in range(count)
    )


def submit(caller: Caller, **fields: object) -> Submitted:
    """Submit a Job of four prompt tokens and three generated ones."""
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 3} | fields
    answer = caller.client.post(JOBS, json=body)
    assert answer.status_code == 202, answer.text
    return Submitted(caller, answer.json()["id"])


@pytest.fixture
def no_work(database: None) -> Iterator[None]:
    """Nothing of other tests waits."""
    from jobs.kinds import kinds

    for kind in kinds():
        kind.model._default_manager.all().delete()
    yield
    for kind in kinds():
        kind.model._default_manager.all().delete()


@pytest.fixture
def quick(settings) -> None:
    """Runners of this process look often, since nobody brings them rings."""
    settings.BASALT = settings.BASALT.model_copy(
        update={"work_poll_seconds": 0.05, "work_watch_seconds": 0.05, "run_stream_seconds": 0.05}
    )


@pytest.fixture
def make_runner(no_work: None, scripted, quick: None) -> Iterator[Callable[[], object]]:
    """Starts runners in this process, which end with the test."""
    from billing.models import OwnerKind
    from completions.owner import own_as
    from jobs.kinds import kinds
    from jobs.runner import RunnerThread

    owner = own_as(OwnerKind.RUNNER)
    running: list[RunnerThread] = []

    def make() -> RunnerThread:
        thread = RunnerThread(kinds())
        thread.start()
        running.append(thread)
        return thread

    yield make
    for thread in running:
        thread.stop(0)
    owner.close()


@pytest.fixture
def runner(make_runner):
    """One runner."""
    return make_runner()
