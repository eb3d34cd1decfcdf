"""Fixtures of the pages' tests."""

import pytest

from billing.models import OwnerKind
from billing.owners import Lease, register


@pytest.fixture
def lease(db) -> Lease:
    return register(OwnerKind.WEB)
