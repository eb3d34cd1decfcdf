"""The lease under which this process owns its Holds.

The lease is renewed on a thread of its own. A process that was thought dead and comes back finds
its lease gone: what it owned was released, and it goes on under a new one.
"""

import threading
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from billing import owners
from billing.ledger import OwnerLost
from billing.models import OwnerKind

log = structlog.get_logger()

Made = TypeVar("Made")


class Ownership:
    """This process's lease, taken at the first Hold."""

    def __init__(self, kind: OwnerKind) -> None:
        self._kind = kind
        self._lease: owners.Lease | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def token(self) -> UUID:
        """Return the token of the living lease, taking one if there is none."""
        with self._lock:
            if self._lease is None:
                self._lease = owners.register(self._kind)
                threading.Thread(target=self._renew_forever, name="lease", daemon=True).start()
            return self._lease.token

    def close(self) -> None:
        """Give the lease back; whatever it still owned is released."""
        self._closing.set()
        with self._lock:
            if self._lease is not None:
                self._lease.release()
                self._lease = None

    def _renew_forever(self) -> None:
        while not self._closing.wait(settings.BASALT.heartbeat_seconds):
            try:
                self._renew()
            except DatabaseError as error:
                log.warning("lease not renewed", cause=str(error).strip().split("\n")[0])
            finally:
                connection.close()

    def _renew(self) -> None:
        lease = self._lease
        if lease is None or lease.renew() or self._closing.is_set():
            return
        self.replace(lease.token)

    def replace(self, lost: UUID) -> None:
        """Take a new lease after the one with this token was reaped."""
        with self._lock:
            if self._lease is not None and self._lease.token == lost:
                log.warning("lease lost: what this process held was released", owner=str(lost))
                self._lease = owners.register(self._kind)


_current: Ownership | None = None


def own_as(kind: OwnerKind) -> Ownership:
    """Say what this process is; call it once, before its first Hold."""
    global _current
    _current = Ownership(kind)
    return _current


def current_owner() -> UUID:
    """Return the token under which this process takes Holds.

    Raises:
        RuntimeError: in a process that did not say what it is.
    """
    if _current is None:
        raise RuntimeError("this process takes no Holds: own_as() was not called")
    return _current.token()


def replace_owner(lost: UUID) -> UUID:
    """Return a new token after the lease with this token was reaped."""
    if _current is not None:
        _current.replace(lost)
    return current_owner()


def owning(act: Callable[[UUID], Made]) -> Made:
    """Return `act(token)`, under a new lease when the present one turns out to be reaped.

    `act` does nothing when it raises `billing.ledger.OwnerLost`.

    Raises:
        OwnerLost: the new lease was reaped as well.
    """
    owner = current_owner()
    try:
        return act(owner)
    except OwnerLost:
        return act(replace_owner(owner))
