"""A real browser on a real web process, with the runner, an engine, and a scripted one.

Playwright keeps an event loop in this thread, beside which Django's database calls refuse to run,
so both last for this folder's tests alone.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from accounts.models import User
from tests.accounts.sessions import sign_in as with_session
from tests.live import Web, end, eventually, start_process, web_process

CATALOGUE = """
[[models]]
id = "desk"
served_name = "basalt/desk-llama"
short_name = "Desk Llama"
maker = "meta"
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
id = "told"
served_name = "basalt/told-llama"
short_name = "Told Llama"
maker = "eleutherai"
source = {{ kind = "folder", path = "{folder}" }}
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0
idle_seconds = 600
start_seconds = 120
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384

[[models]]
id = "cold"
served_name = "basalt/cold-llama"
short_name = "Cold Llama"
source = {{ kind = "folder", path = "{folder}" }}
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0
idle_seconds = 600
start_seconds = 240
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384
"""
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
WAIT_MS = 15_000


@dataclass(frozen=True)
class Desk:
    """Where the App is served for browser tests."""

    web: Web
    catalogue: Path
    logs: Path

    @property
    def address(self) -> str:
        return self.web.address

    def environment(self) -> dict[str, str]:
        return {
            "CATALOGUE_PATH": str(self.catalogue),
            "MODELS_DIR": str(self.catalogue.parent / "models"),
        }


@pytest.fixture(scope="package")
def desk(database: None, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A web process whose models are the tests' own; nothing runs them yet."""
    from inference.catalogue import load_catalogue
    from inference.preparation import prepare
    from tests.engine.tiny_models import make_llama

    folder = tmp_path_factory.mktemp("desk")
    make_llama(folder / "source")
    catalogue = folder / "catalogue.toml"
    catalogue.write_text(CATALOGUE.format(folder=folder / "source"))
    for entry in load_catalogue(catalogue).enabled:
        prepare(entry, folder / "models", lambda progress: None)
    places = {"CATALOGUE_PATH": str(catalogue), "MODELS_DIR": str(folder / "models")}
    with web_process(logs / "desk-web.log", **places) as web:
        yield Desk(web, catalogue, logs)


def _worker(desk: Desk, role: str, ready: str) -> Iterator[None]:
    log = desk.logs / f"desk-{role}.log"
    process = start_process("worker", role, log=log, **desk.environment())
    try:
        eventually(lambda: ready in log.read_text(), 120)
        yield
    finally:
        end(process)


@pytest.fixture(scope="package")
def runner(desk: Desk) -> Iterator[None]:
    """The runner of background work."""
    yield from _worker(desk, "runner", "consuming")


@pytest.fixture(scope="package")
def engine(desk: Desk) -> Iterator[None]:
    """A real engine of `desk`."""
    yield from _worker(desk, "engine.desk", "serving")


@pytest.fixture(scope="package")
def told_session(desk: Desk) -> Iterator[object]:
    from inference.catalogue import load_catalogue
    from tests.scripted import scripted_worker

    model = load_catalogue(desk.catalogue).entry("told")
    assert model is not None
    with scripted_worker(model) as scripted:
        yield scripted


@pytest.fixture
def told(told_session):
    """The scripted engine of `told`: the test says what it answers."""
    yield told_session
    told_session.answers = told_session.policy = None
    for asked in list(told_session.running.values()):
        asked.answer("over")
    while not told_session.asked.empty():
        told_session.asked.get_nowait()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, one for all."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs a browser: install the package chromium")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    expect.set_options(timeout=WAIT_MS)
    try:
        with sync_playwright() as playwright:
            yield playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def sign_in(context: BrowserContext, user: User, address: str) -> None:
    """Give a browser the session of a User."""
    client = with_session(Client(), user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": address}])


@contextmanager
def browsing(
    chromium: Browser, desk: Desk, user: User | None = None, **options: object
) -> Iterator[BrowserContext]:
    """A browser of its own, signed in as `user`; a script's error fails the test."""
    context = chromium.new_context(
        **{"base_url": desk.address, "viewport": WIDE, "locale": "en-GB", **options}
    )
    context.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    context.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type == "error" and "Content Security Policy" in message.text
            else None
        ),
    )
    try:
        if user is not None:
            sign_in(context, user, desk.address)
        yield context
    finally:
        context.close()
    assert not errors, errors


PageFor = Callable[..., Page]


@pytest.fixture
def page_for(chromium: Browser, desk: Desk) -> Iterator[PageFor]:
    """Opens pages: `page_for(user, "/usage", phone=True)`; each in a browser of its own.

    Further options are those of Playwright's contexts.
    """
    with ExitStack() as stack:

        def open_page(user: User | None, path: str, *, phone: bool = False, **options) -> Page:
            if phone:
                options = {"viewport": PHONE, "has_touch": True, **options}
            context = stack.enter_context(browsing(chromium, desk, user, **options))
            page = context.new_page()
            page.goto(path)
            return page

        yield open_page


def serious_faults(page: Page) -> list[str]:
    """What axe finds serious or critical on a page, in lines."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:160]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def is_too_wide(page: Page) -> bool:
    """Whether the page as a whole scrolls sideways (A-133)."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
