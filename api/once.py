"""Writes that end at once and may carry an `Idempotency-Key` (C-392 to C-401, C-402)."""

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

import msgspec
from django.db import transaction

from api import idempotency
from api.idempotency import StoredAnswer
from completions.failures import running_elsewhere
from completions.generation import RecordLost

Made = TypeVar("Made", bound=msgspec.Struct)


def once(
    act: Callable[[], Made],
    kind: type[Made],
    *,
    user_id: UUID,
    headers: Iterable[tuple[bytes, bytes]],
    method: str,
    path: str,
    value: object,
) -> Made:
    """Run a write, or return what the request with the same key made.

    What is kept with the key says what was made, so that a repeat shows it as it is by then. It is
    written in the transaction of the write itself: either both are there or neither is. `value` is
    the JSON value of the body.

    Raises:
        Failure: 400 for a bad header, 409 `idempotency_conflict` or `running`; and whatever `act`
            raises, with the key free again.
    """
    key = idempotency.read_header(headers)
    if key is None:
        return act()
    same = idempotency.fingerprint(method, path, value)
    taken = idempotency.take(user_id=user_id, key=key, fingerprint=same)
    if isinstance(taken, StoredAnswer):
        assert isinstance(taken.body, bytes)
        return msgspec.json.decode(taken.body, type=kind)
    try:
        with transaction.atomic():
            made = act()
            taken.prepare(StoredAnswer(200, msgspec.json.encode(made), {}))
            taken.paid()
    except RecordLost:
        raise running_elsewhere() from None
    except BaseException:
        taken.released()
        raise
    return made
