"""Fixtures of Looms: a runner in this process, and Looms by the API."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
from django.conf import settings

from tests.conftest import Caller
from tests.live import Web, eventually, web_process

QUICK = {"work_poll_seconds": 0.05, "work_watch_seconds": 0.05}


@pytest.fixture(scope="session")
def runner(database: None, tiny_catalogue) -> Iterator[object]:
    """A runner of Nodes in this process, quick to see what is new."""
    from billing.models import OwnerKind
    from completions.owner import own_as
    from jobs.runner import RunnerThread
    from looms.growth import Nodes

    before = settings.BASALT
    settings.BASALT = before.model_copy(update=QUICK)
    owner = own_as(OwnerKind.RUNNER)
    thread = RunnerThread((Nodes(),))
    thread.start()
    yield thread
    thread.stop(0)
    owner.close()
    settings.BASALT = before


@pytest.fixture
def grows(runner, scripted):
    """The scripted engine, with a runner that brings it the Nodes."""
    from jobs import queue
    from looms.models import Growth

    yield scripted
    queue.cancel(Growth.objects.all())
    for asked in list(scripted.running.values()):
        asked.aborted.set()
        asked.answer("over")
    eventually(lambda: not queue.in_hand(Growth).exists())


@dataclass
class LoomApi:
    """One Loom, as a client of the API sees it."""

    client: httpx.Client
    id: str

    @property
    def path(self) -> str:
        return f"/v1/looms/{self.id}"

    def read(self) -> dict:
        answer = self.client.get(self.path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def nodes(self) -> list[dict]:
        return self.read()["nodes"]

    @property
    def root(self) -> str:
        return self.nodes()[0]["id"]

    def node(self, node_id: str) -> dict:
        return next(node for node in self.nodes() if node["id"] == node_id)

    def post(self, path: str = "", body: object = None, **headers: str) -> httpx.Response:
        return self.client.post(f"{self.path}{path}", json=body, headers=headers)

    def on(self, node_id: str, what: str = "", body: object = None, **headers: str):
        return self.post(f"/nodes/{node_id}{what}", body, **headers)

    def branch(self, node_id: str, **fields: object) -> list[dict]:
        answer = self.on(node_id, "/branch", {"model": "tiny", **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def until(self, node_id: str, *statuses: str) -> dict:
        """Wait until a Node has one of these statuses."""
        return eventually(
            lambda: (node := self.node(node_id))["status"] in statuses and node, seconds=15
        )

    def path_text(self, node_id: str) -> str:
        nodes = {node["id"]: node for node in self.nodes()}
        text, at = "", node_id
        while at is not None:
            text, at = nodes[at]["text"] + text, nodes[at]["parent_id"]
        return text


@pytest.fixture
def make_loom(caller: Caller) -> Callable[..., LoomApi]:
    """Makes Looms by the API."""

    def make(prompt: str = "Once", client: httpx.Client | None = None) -> LoomApi:
        client = client or caller.client
        answer = client.post("/v1/looms", json={"prompt": prompt})
        assert answer.status_code == 200, answer.text
        return LoomApi(client, answer.json()["id"])

    return make


@pytest.fixture
def loom(make_loom) -> LoomApi:
    """A Loom whose root is `Once`."""
    return make_loom()


@pytest.fixture
def plant(caller: Caller) -> Callable[..., LoomApi]:
    """Makes a Loom of a file of Nodes: each is `id`, `parent_id`, `text` and more."""

    def make(*nodes: dict, title: str | None = None) -> LoomApi:
        answer = caller.client.post(
            "/v1/looms/import", json={"loom": {"title": title}, "nodes": list(nodes)}
        )
        assert answer.status_code == 200, answer.text
        return LoomApi(caller.client, answer.json()["id"])

    return make


@pytest.fixture
def unchecked(web: Web) -> Iterator[Callable[[LoomApi], LoomApi]]:
    """Gives a Loom a client that leaves answers unchecked: checking thousands of Nodes is slow."""
    clients: list[httpx.Client] = []

    def wrap(loom: LoomApi) -> LoomApi:
        clients.append(httpx.Client(base_url=web.address, headers=loom.client.headers, timeout=60))
        return LoomApi(clients[-1], loom.id)

    yield wrap
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def narrow(database: None, tiny_catalogue, logs) -> Iterator[Web]:
    """A web process in which few requests empty a bucket."""
    with web_process(logs / "looms-narrow.log", RATE_LIMIT_PER_MINUTE="30") as running:
        yield running
