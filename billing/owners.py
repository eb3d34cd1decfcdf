"""Leases: which processes live, and what becomes of the Holds of one that died.

A process registers when it starts and renews its lease with each heartbeat. `reap` ends the leases
that ran out: it releases their open Holds and removes the row. Every Hold names its owner's token,
so a process that comes back late finds nothing of its own: `settle` and `release` answer False,
`take_hold` raises `OwnerLost`, and `renew` answers False, which tells it to register anew.
"""

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from billing.ledger import release as release_hold
from billing.models import Hold, Owner, OwnerKind

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to own Holds; `token` is what it passes as `owner`."""

    token: uuid.UUID
    kind: OwnerKind

    def renew(self) -> bool:
        """Put off the end of the lease; False when it was reaped and another must be taken."""
        renewed = Owner.objects.filter(token=self.token).update(expires_at=Now() + _length())
        return renewed == 1

    def release(self) -> None:
        """End the lease at a planned stop; Holds that are still open are released first (C-346)."""
        with transaction.atomic():
            owner = Owner.objects.select_for_update().filter(token=self.token).first()
            if owner is not None:
                _end(owner)


@dataclass(frozen=True, slots=True)
class ReapReport:
    """What a look for dead processes did: tokens of ended leases, and how many Holds it released.

    `waiting` says that the database came back less than one lease ago, so that nothing was judged.
    """

    ended: tuple[uuid.UUID, ...] = ()
    holds: int = 0
    waiting: bool = False


def register(kind: OwnerKind) -> Lease:
    """Take a lease of `lease_seconds` for this process."""
    owner = Owner.objects.create(
        token=uuid.uuid4(),
        kind=kind,
        host=socket.gethostname()[:255],
        pid=os.getpid(),
        started_at=Now(),
        expires_at=Now() + _length(),
    )
    return Lease(token=owner.token, kind=kind)


def reap(now: datetime | None = None) -> ReapReport:
    """Release the open Holds of processes whose lease ran out, and end those leases (C-608).

    `now` is the database's clock when left out. One transaction for each process; several reapers
    at once do not repeat each other's work. Within one lease after the database itself started,
    nothing is reaped: while it was away nobody could renew.
    """
    clock, up_since = _database_times()
    at = now or clock
    if at - up_since < _length():
        return ReapReport(waiting=True)
    ended: list[uuid.UUID] = []
    holds = 0
    for token in Owner.objects.filter(expires_at__lt=at).values_list("token", flat=True):
        with transaction.atomic():
            lapsed = Owner.objects.select_for_update(skip_locked=True)
            owner = lapsed.filter(token=token, expires_at__lt=at).first()
            if owner is None:
                continue
            released = _end(owner)
        log.warning("reaped a lost process", owner=str(owner), token=str(token), holds=released)
        ended.append(token)
        holds += released
    return ReapReport(ended=tuple(ended), holds=holds)


def _end(owner: Owner) -> int:
    """Release the open Holds of a locked Owner and remove it; return how many Holds there were.

    Accounts are locked in the order of their ids, so that two of these cannot wait in a ring.
    """
    holds = Hold.objects.filter(owner=owner).order_by("user_id", "id").values_list("id", flat=True)
    released = sum(release_hold(hold_id=hold, owner=owner.token) for hold in list(holds))
    owner.delete()
    return released


def _length() -> timedelta:
    return timedelta(seconds=settings.BASALT.lease_seconds)


def _database_times() -> tuple[datetime, datetime]:
    """Return the database's clock, and when its server started."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp(), pg_postmaster_start_time()")
        clock, up_since = cursor.fetchone()
    return clock, up_since
