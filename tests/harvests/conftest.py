"""A catalogue with small, large and unharvested models, a web process, and a runner of harvests.

The harvest worker of most tests is the test itself: a run is a row, and `runs.take`, `runs.finish`
and `runs.fail` are all that a worker does to it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from django.conf import settings

from tests.conftest import Caller, new_caller
from tests.live import Web, eventually, web_process

SMALL, LARGE, OTHER_LARGE, UNHARVESTED = "reads", "reads-large", "reads-larger", "reads-nothing"
ENTRY = """
[[models]]
id = "{id}"
served_name = "basalt/{id}"
default = {default}
source = {{ kind = "folder", path = "{folder}" }}
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0
idle_seconds = 600
start_seconds = 5
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384
harvest = {{ {harvest} }}
"""
HARVEST = {
    SMALL: "max_tokens = 60",
    LARGE: 'size = "large", minutes = 150',
    OTHER_LARGE: 'size = "large", minutes = 150',
    UNHARVESTED: "enabled = false",
}


@pytest.fixture(scope="package")
def harvest_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four models over the tiny Llama; in use in this process while the package's tests run."""
    from inference import catalogue
    from inference.preparation import prepare
    from tests.engine.tiny_models import make_llama

    folder = tmp_path_factory.mktemp("harvest-catalogue")
    make_llama(folder / "source")
    path = folder / "catalogue.toml"
    path.write_text(
        "".join(
            ENTRY.format(
                id=name,
                default=str(name == SMALL).lower(),
                folder=folder / "source",
                harvest=harvest,
            )
            for name, harvest in HARVEST.items()
        )
    )
    before = settings.BASALT
    settings.BASALT = before.model_copy(
        update={
            "catalogue_path": path,
            "models_dir": folder / "models",
            "work_poll_seconds": 0.1,
            "work_watch_seconds": 0.1,
            "harvest_threads": 1,
        }
    )
    for entry in catalogue.current().enabled:
        prepare(entry, settings.BASALT.models, lambda progress: None)
    yield path
    settings.BASALT = before


@pytest.fixture(scope="package")
def harvest_web(database: None, harvest_catalogue: Path, logs: Path) -> Iterator[Web]:
    with web_process(logs / "harvest-web.log", TRUSTED_PROXIES="127.0.0.1") as running:
        yield running


@pytest.fixture
def nothing_live(harvest_web: Web) -> Iterator[None]:
    """No harvest of another test is left to take a place or a worker."""
    from harvests.models import Harvest
    from jobs.states import LIVE

    yield
    eventually(lambda: not Harvest.objects.filter(owner__isnull=False).exists(), 15)
    Harvest.objects.filter(state__in=LIVE).delete()


@pytest.fixture
def reader(harvest_web: Web, nothing_live: None) -> Iterator[Caller]:
    """A User with 100,000 tokens and a key."""
    caller = new_caller(harvest_web, 100_000)
    yield caller
    caller.client.close()


@pytest.fixture
def another(harvest_web: Web) -> Iterator[Callable[..., Caller]]:
    """Makes more Users."""
    made: list[Caller] = []

    def make(tokens: int = 100_000, **fields: object) -> Caller:
        made.append(new_caller(harvest_web, tokens, **fields))
        return made[-1]

    yield make
    for caller in made:
        caller.client.close()


@pytest.fixture(scope="package")
def ownership(database: None) -> Iterator[object]:
    from billing.models import OwnerKind
    from completions.owner import own_as

    owner = own_as(OwnerKind.RUNNER)
    yield owner
    owner.close()


@dataclass
class Runners:
    """Starts and stops the runner, as restarts of the API do."""

    thread: object = None

    def start(self) -> None:
        from harvests.following import HarvestKind
        from jobs.runner import RunnerThread

        self.thread = RunnerThread((HarvestKind(),))
        self.thread.start()

    def stop(self) -> None:
        """As SIGTERM with no time to end."""
        if self.thread is not None:
            self.thread.stop(0)
            self.thread = None


@pytest.fixture
def runner(nothing_live: None, ownership: object) -> Iterator[Runners]:
    """A runner that follows harvests."""
    runners = Runners()
    runners.start()
    yield runners
    runners.stop()


def submitted(caller: Caller, **fields: object) -> dict:
    """Submit a harvest and return it."""
    body = {"model": SMALL, "prompts": ["Paris", "the house"], **fields}
    answer = caller.client.post("/v1/harvest", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def read(caller: Caller, harvest: dict) -> dict:
    answer = caller.client.get(f"/v1/harvest/{harvest['job_id']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def until(caller: Caller, harvest: dict, status: str, seconds: float = 15) -> dict:
    """Wait for a status."""

    def reached() -> dict | None:
        seen = read(caller, harvest)
        return seen if seen["status"] == status else None

    return eventually(reached, seconds)


def taken(harvest: dict, model: str = SMALL):
    """Take the run of a harvest, as a worker does."""
    from harvests import runs

    found = eventually(lambda: runs.take(model), 15)
    assert found.harvest_id == UUID(harvest["job_id"])
    return found


def outcome(tokens: int = 7, **fields: object):
    from inference.harvest.outcome import Outcome

    told = {"n_shards": 1, "bytes_written": 5000, "stats_positions": 5}
    times = {"forward_s": 1.5, "save_s": 0.25, "upload_s": 0.125}
    return Outcome(**{"tokens": tokens, **told, **times, **fields})
