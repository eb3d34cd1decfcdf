"""API keys: made, found by their secret, paused, resumed, revoked.

A key carries 256 bits from the system's random source. Such a secret cannot be guessed or listed,
so one SHA-256 of it is enough: the slow, salted hashes that passwords need would add nothing but
time to each request. A key is looked up by its hash, so what the database compares is a value that
a caller cannot steer byte by byte, and the time of a look-up tells nothing about a real key.
"""

import hashlib
import secrets
import string
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import ApiKey, User

NEW_PREFIX = "sk-acs-"
"""How a new key starts (C-009)."""

OLD_PREFIX = "acs-bm-"
"""How the keys of the old platform start, which are accepted on the same terms (C-009)."""

SHOWN_CHARACTERS = 4
"""Characters of a secret that lists show after its prefix (C-010)."""

SECRET_LENGTH = 43
"""Letters and digits after the prefix: 62 to the power 43 is just over 2 to the power 256."""

USE_NOTED_EVERY = timedelta(minutes=1)
"""`last_used_at` is written once in so long, so that a busy key is not a busy row."""

_ALPHABET = string.ascii_letters + string.digits


class TooManyKeys(Exception):
    """The User has as many keys as a User may have (C-011)."""


class KeyNameTaken(Exception):
    """The User has a key of this name that is not revoked (C-012)."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """What a request must know of the key that came with it; the fields are those of `_READ`."""

    key_id: UUID
    user_id: UUID
    email: str
    paused: bool
    revoked: bool
    suspended: bool

    @property
    def usable(self) -> bool:
        """Whether a request with this key may go on."""
        return not (self.paused or self.revoked or self.suspended)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a key in hex, as `ApiKey.digest` keeps it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create_key(*, user: User, name: str) -> tuple[ApiKey, str]:
    """Make a key and return it with its secret, which is kept nowhere (C-009 to C-012).

    `name` has 1 to 32 characters. The User's row is locked, so two calls at once cannot pass the
    limit together. Raises `TooManyKeys` at `max_keys_per_user` keys that are not revoked, and
    `KeyNameTaken` when one of them has this name, whatever the letter case.
    """
    secret = NEW_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(SECRET_LENGTH))
    with transaction.atomic():
        _check_name(user.id, name)
        if ApiKey.objects.filter(user=user, revoked_at=None).count() >= _most_keys():
            raise TooManyKeys(f"a User may have {_most_keys()} API keys")
        key = ApiKey.objects.create(
            user=user,
            name=name,
            prefix=secret[: len(NEW_PREFIX) + SHOWN_CHARACTERS],
            digest=digest_of(secret),
        )
    return key, secret


def rename_key(*, key_id: UUID, name: str) -> None:
    """Rename a key that is not revoked; `name` as for `create_key`, raises `KeyNameTaken`."""
    with transaction.atomic():
        user_id = ApiKey.objects.values_list("user_id", flat=True).get(id=key_id)
        _check_name(user_id, name, but=key_id)
        ApiKey.objects.filter(id=key_id, revoked_at=None).update(name=name)


def pause_key(*, key_id: UUID) -> None:
    """Refuse the key until it is resumed; one that is paused or revoked stays as it is (C-013)."""
    ApiKey.objects.filter(id=key_id, revoked_at=None, paused_at=None).update(
        paused_at=timezone.now()
    )


def resume_key(*, key_id: UUID) -> None:
    """Accept a paused key again; a revoked one stays revoked (C-013)."""
    ApiKey.objects.filter(id=key_id, revoked_at=None).update(paused_at=None)


def revoke_key(*, key_id: UUID) -> None:
    """End a key for good; its row stays for what it used (C-013, C-642)."""
    ApiKey.objects.filter(id=key_id, revoked_at=None).update(revoked_at=timezone.now())


def find_key(secret: str) -> KeyState | None:
    """Return the state of the key with this secret, or None when there is no such key.

    One query and no cache, so a revoke, a pause or a suspension counts from the next request on,
    in every process (C-005 to C-007). Once a minute the use of a usable key is noted as well.
    """
    if not secret.startswith((NEW_PREFIX, OLD_PREFIX)):
        return None
    return _state(_BY_DIGEST, digest_of(secret))


def read_key(key_id: UUID) -> KeyState | None:
    """Return the state of a key by its id, for work that waited or runs later (C-008)."""
    return _state(_BY_ID, key_id)


_READ = """
SELECT k.id, k.user_id, u.email, k.paused_at IS NOT NULL, k.revoked_at IS NOT NULL,
       u.suspended_at IS NOT NULL, k.last_used_at
FROM accounts_apikey k JOIN accounts_user u ON u.id = k.user_id
"""
_BY_DIGEST = _READ + "WHERE k.digest = %s"
_BY_ID = _READ + "WHERE k.id = %s"


def _state(sql: str, value: str | UUID) -> KeyState | None:
    """Read the one key, or none, that `sql` names: written out, since every request comes here."""
    with connection.cursor() as cursor:
        cursor.execute(sql, [value])
        row = cursor.fetchone()
    if row is None:
        return None
    *known, last_used_at = row
    state = KeyState(*known)
    if state.usable:
        _note_use(state.key_id, last_used_at)
    return state


def _note_use(key_id: UUID, last_used_at: datetime | None) -> None:
    now = timezone.now()
    if last_used_at is None or now - last_used_at >= USE_NOTED_EVERY:
        ApiKey.objects.filter(id=key_id).update(last_used_at=now)


def _check_name(user_id: UUID, name: str, *, but: UUID | None = None) -> None:
    """Lock the User, then compare `name` with those of the other live keys.

    The database's own constraint folds only the letters that its locale knows, so it stands
    behind this comparison and does not replace it.
    """
    User.objects.select_for_update(no_key=True).get(id=user_id)
    others = ApiKey.objects.filter(user_id=user_id, revoked_at=None)
    if but is not None:
        others = others.exclude(id=but)
    if name.casefold() in {other.casefold() for other in others.values_list("name", flat=True)}:
        raise KeyNameTaken(f"the User has an API key named {name!r}")


def _most_keys() -> int:
    return settings.BASALT.max_keys_per_user
