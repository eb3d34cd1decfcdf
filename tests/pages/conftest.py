"""Fixtures of the pages' tests."""

import pytest

from billing.models import OwnerKind
from billing.owners import Lease, register
from tests.jobs.conftest import make_runner, no_work, quick, runner

__all__ = ["make_runner", "no_work", "quick", "runner"]


@pytest.fixture
def lease(db) -> Lease:
    return register(OwnerKind.WEB)
