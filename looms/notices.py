"""Tells readers of a Loom that there is something new: a hint, never the news themselves.

What is new stands in the database. A notice that is lost costs a reader a moment, because readers
look by themselves now and then.
"""

import contextlib
from collections.abc import Iterable
from functools import partial
from uuid import UUID

from django.db import transaction

from inference import valkey
from inference.client import LOST

CHANNEL = f"{valkey.PREFIX}looms"
"""Where the ids of Looms are said, 16 bytes each."""


def announce(loom_ids: Iterable[UUID]) -> None:
    """Say that these Looms have something new, once the transaction is committed."""
    transaction.on_commit(partial(_say, tuple(loom_ids)))


def _say(loom_ids: tuple[UUID, ...]) -> None:
    with contextlib.suppress(*LOST):
        for loom_id in loom_ids:
            valkey.connection().publish(CHANNEL, loom_id.bytes)
