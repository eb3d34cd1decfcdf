"""Fixtures of the pages' tests."""

import pytest

from billing.models import OwnerKind
from billing.owners import Lease, register
from tests.jobs.conftest import make_runner, no_work, runner

__all__ = ["make_runner", "no_work", "runner"]


@pytest.fixture
def lease(db) -> Lease:
    return register(OwnerKind.WEB)


@pytest.fixture
def quick(settings) -> None:
    """Runners of this process look often, since nobody brings them rings."""
    settings.BASALT = settings.BASALT.model_copy(
        update={"work_poll_seconds": 0.05, "work_watch_seconds": 0.05, "run_stream_seconds": 0.05}
    )
