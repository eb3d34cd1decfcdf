"""Fixtures for every surface: two models, web processes, keys, and the scripted engine."""

import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from django.conf import settings
from django.test.utils import setup_databases

from tests.live import ROOT, Web, end, eventually, start_process, web_process

DEFAULT_MODEL = "smollm2-135m-instruct-q4"

TINY = """
[[models]]
id = "tiny"
served_name = "basalt/tiny-llama"
default = true
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

[[models]]
id = "tiny-other"
served_name = "basalt/tiny-llama-other"
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
"""


LONG = ("operations", "browser", "served", "harvests", "server", "inference", "engine")
"""Folders whose files take long, the longest first."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files into the order in which workers of xdist take them.

    First come those whose every test is rolled back, because they may claim something of whole
    tables, and those that empty the tables; then what takes long, so that no worker is left alone
    with it at the end.
    """
    if not hasattr(config, "workerinput"):
        return
    keeps: dict[Path, int] = {}
    for item in items:
        keeps[item.path] = max(keeps.get(item.path, 0), _how_much_it_keeps(item))

    def place(item: pytest.Item) -> tuple[int, int]:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return keeps[item.path], LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


def _how_much_it_keeps(item: pytest.Item) -> int:
    """0 for a test that is rolled back, 1 for one that empties the tables, 2 for any other."""
    marker = item.get_closest_marker("django_db")
    if marker is None:
        return 2
    return 1 if marker.kwargs.get("transaction") else 0


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the logs of processes."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def tiny_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue of two tiny models, prepared, and in use in this process too."""
    from inference import catalogue
    from inference.preparation import prepare
    from tests.engine.tiny_models import make_llama

    folder = tmp_path_factory.mktemp("tiny-catalogue")
    make_llama(folder / "source")
    path = folder / "catalogue.toml"
    path.write_text(TINY.format(folder=folder / "source"))
    assert tomllib.loads(path.read_text())
    before = settings.BASALT
    settings.BASALT = before.model_copy(
        update={"catalogue_path": path, "models_dir": folder / "models"}
    )
    for entry in catalogue.current().enabled:
        prepare(entry, settings.BASALT.models, lambda progress: None)
    yield path
    settings.BASALT = before


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker, django_db_modify_db_settings: None
) -> None:
    """The test database, made also for tests that no mark of pytest-django names.

    It goes with the server, which is the test run's own.
    """
    with django_db_blocker.unblock():
        setup_databases(verbosity=0, interactive=False, keepdb=True)


@pytest.fixture(scope="session")
def database(django_db_setup: None, django_db_blocker) -> Iterator[None]:
    """The test database, open to processes that the tests start: nothing is rolled back."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="session")
def web(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """A web process with the contract's settings, but quick to keep alive.

    It believes `X-Forwarded-For`, so that each test can come from an address of its own.
    """
    with web_process(
        logs / "web.log", KEEPALIVE_SECONDS="0.3", TRUSTED_PROXIES="127.0.0.1"
    ) as running:
        yield running


@pytest.fixture(scope="session")
def default_web(database: None, logs: Path) -> Iterator[Web]:
    """A web process and a worker of the default model, prepared by `script/test`."""
    places = {
        "CATALOGUE_PATH": str(ROOT / "deploy" / "catalogue.toml"),
        "MODELS_DIR": os.environ["MODELS_DIR"],
        "ENGINE_MEMORY_GIB": "0.5",
    }
    log = logs / "default-worker.log"
    worker = start_process("worker", f"engine.{DEFAULT_MODEL}", log=log, **places)
    try:
        with web_process(logs / "default-web.log", **places) as web:
            eventually(lambda: "serving" in log.read_text(), 90)
            yield web
    finally:
        end(worker)


@pytest.fixture(scope="session")
def scripted_session(database: None, tiny_catalogue: Path):
    from inference import catalogue
    from tests.scripted import scripted_worker

    with scripted_worker(catalogue.current().default) as engine:
        yield engine


@pytest.fixture
def scripted(scripted_session):
    """The scripted engine of the default model, with nothing left over from other tests."""
    from completions.places import places
    from inference import valkey

    engine = scripted_session
    engine.answers = None
    eventually(lambda: places().in_flight("tiny") == 0)
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}breaker:*"):
        valkey.connection().delete(name)
    yield engine
    engine.answers = None
    for asked in list(engine.running.values()):
        asked.answer("over")
    while not engine.asked.empty():
        engine.asked.get_nowait()


@dataclass(frozen=True)
class Caller:
    """A User of a test, with a key."""

    user_id: object
    key_id: object
    secret: str
    client: httpx.Client

    def left(self) -> int:
        """Tokens left in the Budget."""
        from billing.allowance import tokens_left

        return tokens_left(user_id=self.user_id, key_id=self.key_id).budget_left

    def open_holds(self) -> int:
        from billing.models import Hold

        return Hold.objects.open().filter(user_id=self.user_id).count()


def new_caller(at: Web, tokens: int, allowance: int = 0) -> Caller:
    """Make a User with a key, a Budget of `tokens`, and `allowance` each month."""
    from accounts.keys import create_key
    from accounts.models import User
    from billing.grants import grant, set_allowance

    user = User.objects.create_user(email=f"{uuid4().hex}@example.org")
    key, secret = create_key(user=user, name="test")
    set_allowance(user_id=user.id, tokens=allowance)
    if tokens:
        grant(user_id=user.id, tokens=tokens, by=None)
    return Caller(user.id, key.id, secret, at.client(secret))


@pytest.fixture
def make_caller(web: Web) -> Iterator[Callable[..., Caller]]:
    """Makes Users with a key, a Budget, and no allowance unless asked for."""
    clients: list[httpx.Client] = []

    def make(tokens: int = 100_000, allowance: int = 0, at: Web = web) -> Caller:
        caller = new_caller(at, tokens, allowance)
        clients.append(caller.client)
        return caller

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def caller(make_caller: Callable[..., Caller]) -> Caller:
    """A User with 100,000 tokens."""
    return make_caller()
