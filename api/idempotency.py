"""Requests with an `Idempotency-Key`: one runs, the others get its answer (section 14).

A key is taken by one statement before any work starts. Its row ends in the transaction that ends
the Hold: with the answer where the request was paid, freed where it was not. A process that dies
takes its lease with it, and a key whose lease is gone can be taken again; if the lost run comes
back late, it finds the row no longer its own and is not paid.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from api.authentication import header
from api.models import KEY_LENGTH, IdempotencyKey, KeyState
from api.numbers import whole
from completions.failures import Failure, invalid, running_elsewhere
from completions.generation import RecordLost
from completions.kept import KeptBody, forget_files, keep
from completions.owner import current_owner, replace_owner

log = structlog.get_logger()

FOLDER = "idempotency"
LOOKS = 5
"""Tries to take a key that is freed at the same moment, before it counts as running."""
ITEMS_AT_ONCE = 1000
"""Items of a list that are written at once."""
NESTED = frozenset({dict, list})

# The lease is locked against the reaper, and a dead one takes nothing.
_TAKE = """
INSERT INTO api_idempotencykey AS held
    (user_id, key, fingerprint, state, attempt, owner, file, headers, created_at, expires_at)
SELECT %(user)s, %(key)s, %(fingerprint)s, 'running', %(attempt)s, token, '', '{}',
    now(), now() + make_interval(secs => %(life)s)
FROM (SELECT token FROM billing_owner WHERE token = %(owner)s FOR KEY SHARE) AS lease
ON CONFLICT (user_id, key) DO UPDATE SET
    fingerprint = EXCLUDED.fingerprint, state = EXCLUDED.state, attempt = EXCLUDED.attempt,
    owner = EXCLUDED.owner, status = NULL, body = NULL, file = '', headers = '{}',
    created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at
WHERE held.expires_at <= now() OR (
    held.state = 'running'
    AND NOT EXISTS (SELECT 1 FROM billing_owner WHERE token = held.owner)
)
RETURNING attempt
"""


@dataclass(frozen=True)
class StoredAnswer:
    """An answer as it can be sent again; each has a request id of its own (C-391)."""

    status: int
    body: bytes | IO[bytes]
    """A large one is a file, from its beginning to be read by one reader."""
    headers: dict[str, str]


def read_header(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the request's `Idempotency-Key`, or None when it has none (C-385, C-388).

    Raises:
        Failure: 400, for one that is empty or too long.
    """
    key = header(headers, b"idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_LENGTH:
        raise invalid("Idempotency-Key", f"An Idempotency-Key has 1 to {KEY_LENGTH} characters.")
    return key


def fingerprint(method: str, path: str, value: object) -> str:
    """Return what two requests have in common when they are the same (U-54).

    `value` is the JSON value of the body: the order of names, white space and `2` for `2.0` make
    no difference.
    """
    digest = hashlib.sha256(f"{method} {path}\n".encode())
    for piece in _canonical(value):
        digest.update(piece.encode())
    return digest.hexdigest()


def _canonical(value: object) -> Iterator[str]:
    """Yield the value's one text in pieces, so that other threads run in between."""
    if isinstance(value, dict):
        separator = "{"
        for name in sorted(value):
            yield f"{separator}{json.dumps(name)}:"
            yield from _canonical(value[name])
            separator = ","
        yield "{}" if separator == "{" else "}"
    elif isinstance(value, list):
        separator = "["
        for start in range(0, len(value), ITEMS_AT_ONCE):
            some = value[start : start + ITEMS_AT_ONCE]
            if NESTED & set(map(type, some)):
                for each in some:
                    yield separator
                    yield from _canonical(each)
                    separator = ","
            else:
                plain = json.dumps([whole(each) for each in some], separators=(",", ":"))
                yield separator + plain[1:-1]
                separator = ","
        yield "[]" if separator == "[" else "]"
    else:
        yield json.dumps(whole(value))


class Attempt:
    """The one run of a request with a key: what becomes of the key when its Hold ends."""

    def __init__(self, attempt_id: UUID) -> None:
        self.id = attempt_id
        self._answer: StoredAnswer | None = None
        self._kept = KeptBody(None)

    def prepare(self, answer: StoredAnswer) -> None:
        """Note the answer to keep; one that is large goes to the file storage at once.

        A storage that fails costs the repeat its answer, not the request (U-46).
        """
        try:
            self._kept = keep(f"{FOLDER}/{self.id}", answer.body)
        except OSError as error:
            log.error("an answer was not kept", attempt=str(self.id), cause=str(error))
            return
        self._answer = answer

    def held(self) -> None:
        """Nothing changes when the Hold is taken: the key is this run's already."""

    def paid(self) -> None:
        """Keep the answer, inside the transaction that settles the Hold.

        Raises:
            RecordLost: when another run has the key by now.
        """
        answer = self._answer
        ended: dict[str, object] = {"state": KeyState.NO_ANSWER}
        if answer is not None:
            ended = {
                "state": KeyState.ANSWERED,
                "status": answer.status,
                "body": self._kept.inline,
                "file": self._kept.file,
                "headers": answer.headers,
            }
        if not self._running().update(**ended):
            self._kept.drop()
            raise RecordLost(f"another run has the key of attempt {self.id}")

    def released(self) -> None:
        """Free the key: nothing was paid, so the same request may run (C-398)."""
        self._kept.drop()
        self._running().delete()

    def _running(self) -> QuerySet[IdempotencyKey]:
        return IdempotencyKey.objects.filter(attempt=self.id, state=KeyState.RUNNING)


def take(*, user_id: UUID, key: str, fingerprint: str) -> Attempt | StoredAnswer:
    """Take a key for a new run, or return the answer of the run that had it (C-389, C-403).

    Raises:
        Failure: 409 `idempotency_conflict`, `running` or `no_answer`.
    """
    for _ in range(LOOKS):
        attempt = _try(user_id, key, fingerprint)
        if attempt is not None:
            return attempt
        row = IdempotencyKey.objects.filter(user_id=user_id, key=key).first()
        if row is None:
            continue
        if row.fingerprint != fingerprint:
            raise _refused(
                "This Idempotency-Key came with another request. Use a new key for a new request.",
                "idempotency_conflict",
            )
        if row.state == KeyState.RUNNING:
            break
        if row.state == KeyState.ANSWERED and (answer := _stored(row)) is not None:
            return answer
        raise _refused(
            "The request with this Idempotency-Key ran, and its answer cannot be sent again.",
            "no_answer",
        )
    raise running_elsewhere()


def _try(user_id: UUID, key: str, fingerprint: str) -> Attempt | None:
    """Take the key if it is free; None when it is not, or when the lease has to be renewed."""
    owner, attempt = current_owner(), uuid4()
    values: dict[str, str | UUID | float] = {
        "user": user_id,
        "key": key,
        "fingerprint": fingerprint,
        "attempt": attempt,
        "owner": owner,
        "life": settings.BASALT.idempotency_seconds,
    }
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, values)
        if cursor.fetchone() is not None:
            return Attempt(attempt)
        cursor.execute("SELECT 1 FROM billing_owner WHERE token = %s", [owner])
        if cursor.fetchone() is None:
            replace_owner(owner)
    return None


def _stored(row: IdempotencyKey) -> StoredAnswer | None:
    """Return the kept answer, or None when its file is gone."""
    assert row.status is not None
    try:
        body = KeptBody(None if row.body is None else bytes(row.body), row.file).read()
    except OSError as error:
        log.error("a kept answer cannot be read", file=row.file, cause=str(error))
        return None
    return StoredAnswer(row.status, body, row.headers)


def _refused(message: str, code: str) -> Failure:
    return Failure(409, message, code, may_retry=False)


def forget_expired(now: datetime | None = None) -> int:
    """Remove keys past their day and the files that no key has; returns how many keys (C-386)."""
    at = now or timezone.now()
    expired = IdempotencyKey.objects.filter(expires_at__lte=at)
    count = 0
    for row in list(expired[:1000]):
        gone, _ = IdempotencyKey.objects.filter(attempt=row.attempt, expires_at__lte=at).delete()
        count += gone
    forget_files(FOLDER, at - timedelta(seconds=settings.BASALT.idempotency_seconds))
    return count
