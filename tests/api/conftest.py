"""Fixtures of the wire contract: callers without a key, and a web process with narrow limits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import pytest

from tests.conftest import Caller
from tests.live import Web, web_process

NARROW = {
    "KEEPALIVE_SECONDS": "0.2",
    "TRUSTED_PROXIES": "127.0.0.1",
    "EARLY_ANSWER_SECONDS": "0.6",
    "ANSWER_TIMEOUT": "2.5",
    "RATE_LIMIT_PER_MINUTE": "30",
    "MAX_INFLIGHT_PER_KEY": "2",
    "MAX_QUEUED_PER_KEY": "1",
    "MAX_INFLIGHT_PER_MODEL": "5",
    "BAD_KEY_LIMIT_PER_MINUTE": "3",
    "BREAKER_FAILURES": "2",
    "BREAKER_SECONDS": "1.5",
    "MAX_CAPTURE_NUMBERS": "600",
    "FULL_VOCAB_MAX_PROMPT_TOKENS": "20",
    "DEADLINE_MAX_TOKENS": "200",
}
"""Limits that a test can reach in a moment."""


def some_address() -> str:
    """An address that no other test comes from."""
    number = Random(uuid4().int)
    return ".".join(str(number.randrange(1, 255)) for _ in range(4))


@pytest.fixture(scope="session")
def narrow(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """A web process with narrow limits."""
    with web_process(logs / "narrow.log", **NARROW) as running:
        yield running


@pytest.fixture(scope="session")
def twin(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[Web]:
    """Another web process of the same instance, with the same narrow limits."""
    with web_process(logs / "twin.log", **NARROW) as running:
        yield running


@pytest.fixture
def anonymous(web: Web) -> Iterator[httpx.Client]:
    """A client without a key, at an address of its own."""
    with web.client(headers={"X-Forwarded-For": some_address()}) as client:
        yield client


@pytest.fixture
def narrow_caller(narrow: Web, make_caller: Callable[..., Caller]) -> Caller:
    """A User with 100,000 tokens who calls the process with narrow limits."""
    return make_caller(at=narrow)
