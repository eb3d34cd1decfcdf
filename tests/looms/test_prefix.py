"""Branches of one Node share its path in the engine's cache: by the counts of a real engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest
from celery import Celery, current_app
from django.conf import settings

from completions.payer import AppUser
from inference import bell
from inference import worker as workers
from inference.engine.limits import EngineLimits
from inference.engine.loop import Engine
from inference.fleet import queue_of
from inference.tokenizers import counter_for
from inference.worker import EngineWorker, load_engine
from looms import edits
from looms.branches import branch
from looms.models import Node
from looms.options import BranchOptions, NodeRequest
from tests.conftest import TINY
from tests.live import eventually

BLOCK = EngineLimits().block_tokens
PATH = "Once upon a time there was a king, and the king had a house by the sea. " * 3


@dataclass(frozen=True)
class Site:
    """A model of this module's own, with its engine in this process."""

    engine: Engine
    model: str

    def computed(self) -> int:
        """Prompt tokens that ran through the model so far."""
        return self.engine.load_figures().prompt_tokens

    def length(self, text: str) -> int:
        from inference import catalogue

        entry = catalogue.current().entry(self.model)
        assert entry is not None
        return counter_for(entry).encode_texts([text])[0].count

    def own(self, text: str) -> int:
        """Tokens of a text that every request runs for itself: those after the last full block
        that is not the end."""
        length = self.length(text)
        return length - (length - 1) // BLOCK * BLOCK

    def grow(self, user: AppUser, loom: UUID, node: UUID, n: int) -> list[Node]:
        """Branch, and wait for the Nodes."""
        request = NodeRequest(model=self.model, max_tokens=6, seed=3)
        _, ids = branch(
            payer=user, loom_id=loom, node_id=node, options=BranchOptions(request=request, n=n)
        )

        def grown() -> list[Node]:
            nodes = list(Node.objects.filter(id__in=ids, status="completed"))
            return nodes if len(nodes) == n else []

        return eventually(grown, 60)


@pytest.fixture(scope="module")
def site(
    database: None, runner: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A worker with a real engine, beside the runner of this process."""
    from inference import catalogue
    from inference.preparation import prepare
    from tests.engine.tiny_models import make_llama

    folder: Path = tmp_path_factory.mktemp("prefix")
    make_llama(folder / "source")
    path = folder / "catalogue.toml"
    path.write_text(TINY.format(folder=folder / "source").replace('id = "tiny"', 'id = "prefix"'))
    before = settings.BASALT
    settings.BASALT = before.model_copy(
        update={
            "catalogue_path": path,
            "models_dir": folder / "models",
            "engine_memory_gib": 0.1,
        }
    )
    entry = catalogue.current().default
    files = prepare(entry, settings.BASALT.models, lambda progress: None)
    engines: list[Engine] = []

    def load(report) -> Engine:
        engine = load_engine(entry, files.folder, report)
        assert isinstance(engine, Engine)
        engines.append(engine)
        return engine

    # A process has one Celery consumer, the scripted worker's: this one is rung by hand.
    rung_for = workers._current
    worker = EngineWorker(entry, load)
    worker.start()
    workers._current = rung_for
    app = bell.current_app
    bell.current_app = cast("Celery", Bell(worker, queue_of(entry.id)))
    worker.announce_serving()
    yield Site(engines[0], entry.id)
    bell.current_app = app
    worker.stop(0)
    settings.BASALT = before


@dataclass(frozen=True)
class Bell:
    """Celery's application, but for the tasks of one queue."""

    worker: EngineWorker
    queue: str

    def send_task(self, name: str, *, args: list[str], queue: str, **options: object) -> None:
        if queue == self.queue:
            self.worker.take_all(args)
        else:
            current_app.send_task(name, args=args, queue=queue, **options)


@pytest.fixture
def user(site: Site) -> AppUser:
    return new_user()


def new_user() -> AppUser:
    from accounts.models import User
    from billing.grants import grant

    made = User.objects.create_user(email=f"{uuid4().hex}@example.org")
    grant(user_id=made.id, tokens=100_000, by=None)
    return AppUser(made.id)


def planted(user: AppUser, text: str) -> tuple[UUID, UUID]:
    """A Loom whose root is a text, and the root."""
    loom = edits.create_loom(user_id=user.user_id, prompt=text)
    return loom.id, Node.objects.get(loom=loom).id


@pytest.mark.row("C-551")
def test_the_nodes_of_a_branch_compute_their_path_once(site: Site, user: AppUser) -> None:
    length = site.length(PATH)
    assert length > 4 * BLOCK
    own = site.own(PATH)
    loom, root = planted(user, PATH)

    before = site.computed()
    nodes = site.grow(user, loom, root, 6)
    assert site.computed() - before == length + 5 * own
    assert {node.prompt_tokens for node in nodes} == {length}

    # A later Branch of the Node, and one in another Loom of the User with this path.
    before = site.computed()
    site.grow(user, loom, root, 2)
    site.grow(user, *planted(user, PATH), 1)
    assert site.computed() - before == 3 * own

    # A Branch of one of its Nodes goes on from the path that is there.
    node = nodes[0]
    deeper = site.length(PATH + node.text)
    before = site.computed()
    site.grow(user, loom, node.id, 2)
    assert site.computed() - before <= 2 * (deeper - length + own)


def test_another_path_and_another_user_compute_their_own(site: Site, user: AppUser) -> None:
    length = site.length(PATH)
    own = site.own(PATH)
    site.grow(user, *planted(user, PATH), 1)

    before = site.computed()
    stranger = new_user()
    site.grow(stranger, *planted(stranger, PATH), 3)
    assert site.computed() - before == length + 2 * own

    other = "A" + PATH[1:]
    before = site.computed()
    site.grow(user, *planted(user, other), 3)
    assert site.computed() - before == site.length(other) + 2 * site.own(other)
