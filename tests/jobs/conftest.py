"""A runner in this process, beside the scripted engine, and Jobs that tests submit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import httpx
import pytest

from tests.conftest import Caller
from tests.live import eventually

IDS = [5, 6, 7, 8]
JOBS = "/v1/completion-jobs"


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

    def row(self):
        from jobs.models import Job

        return Job.objects.get(id=UUID(self.id))


def submit(caller: Caller, **fields: object) -> Submitted:
    """Submit a Job of four prompt tokens and three generated ones."""
    body = {"model": "tiny", "prompt": IDS, "max_tokens": 3} | fields
    answer = caller.client.post(JOBS, json=body)
    assert answer.status_code == 202, answer.text
    return Submitted(caller, answer.json()["id"])


@pytest.fixture
def no_work(database: None) -> Iterator[None]:
    """Nothing of other tests waits."""
    from jobs.models import Job

    Job.objects.all().delete()
    yield
    Job.objects.all().delete()


@pytest.fixture
def make_runner(no_work: None, scripted) -> Iterator[Callable[[], object]]:
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
