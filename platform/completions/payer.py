"""Who pays for a request, and whether they still may when it starts."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from accounts.keys import KeyState, read_key
from accounts.models import User
from completions.failures import (
    check_key,
    key_was_revoked,
    unknown_key,
    user_was_suspended,
)


class Payer(Protocol):
    """Whose tokens a request takes: a User's, and those of a key where one asked."""

    @property
    def user_id(self) -> UUID:
        """The User."""

    @property
    def key_id(self) -> UUID | None:
        """The API key; None for what a User started in the App (C-615)."""


@dataclass(frozen=True)
class AppUser:
    """A User who asks in the App, without a key (C-615, U-46)."""

    user_id: UUID
    key_id: None = None


class NotYet(Exception):
    """Background work cannot start now and goes on waiting; it holds nothing."""

    def __init__(self, why: str, *, model: str | None = None) -> None:
        super().__init__(why)
        self.model = model
        """The model without a free place, where that is why."""


def check_live(payer: Payer) -> None:
    """Refuse a request whose key was revoked or paused while it waited in line (C-008).

    Raises:
        Failure: the contract's 401.
    """
    state = _key(payer)
    if state is None:
        raise unknown_key()
    check_key(state)


def check_background(payer: Payer) -> None:
    """Refuse work whose key was revoked or whose User was suspended since (C-613, C-614).

    Raises:
        Failure: 401 `invalid_api_key` (U-15).
        NotYet: the key is paused (C-612).
    """
    if payer.key_id is None:
        if User.objects.filter(id=payer.user_id, suspended_at=None).exists():
            return
        raise user_was_suspended()
    state = _key(payer)
    if state is None or state.revoked:
        raise key_was_revoked()
    if state.suspended:
        raise user_was_suspended()
    if state.paused:
        raise NotYet("the API key is paused")


def _key(payer: Payer) -> KeyState | None:
    return read_key(payer.key_id) if payer.key_id is not None else None
