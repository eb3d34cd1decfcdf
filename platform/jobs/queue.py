"""The queue: PostgreSQL's rows, taken in the contract's order by any number of runners.

A row waits while it is `queued` and nobody's. Taking one writes the runner's lease on it, under an
advisory lock of its kind, so that no two runners pass a cap together. A message only rings.
"""

from collections.abc import Collection, Iterable
from uuid import UUID
from zlib import crc32

import structlog
from celery import current_app
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from billing import spend_stop
from billing.ledger import OwnerLost
from billing.models import Owner
from inference.client import LOST
from jobs.models import Work
from jobs.states import LIVE, WorkState, before

log = structlog.get_logger()

RING = "jobs.ring"
"""The Celery task that rings at a runner."""
LOCKS = 0x776F726B
"""The first number of the advisory locks of claims; the second is the kind's."""

# Each lane (a key, or a User of the App, and a model) is found by one probe of an index, and so is
# the first of each, so that a paused key's thousand rows cost as much as one.
_LANES = """
WITH RECURSIVE lanes AS (
  (SELECT lane, model, user_id, key_id FROM {table}
   WHERE state = 'queued' AND owner IS NULL ORDER BY lane, model LIMIT 1)
  UNION ALL
  (SELECT next.* FROM lanes, LATERAL (
     SELECT w.lane, w.model, w.user_id, w.key_id FROM {table} w
     WHERE w.state = 'queued' AND w.owner IS NULL AND (w.lane, w.model) > (lanes.lane, lanes.model)
     ORDER BY w.lane, w.model LIMIT 1) next)
)
"""
_FIRST = """
{lanes}, first AS (
  SELECT f.id, f.created_at, lanes.user_id FROM lanes
  JOIN accounts_user u ON u.id = lanes.user_id
  LEFT JOIN accounts_apikey k ON k.id = lanes.key_id
  CROSS JOIN LATERAL (
    SELECT w.id, w.created_at FROM {table} w
    WHERE w.state = 'queued' AND w.owner IS NULL
      AND w.lane = lanes.lane AND w.model = lanes.model
    ORDER BY w.created_at, w.id LIMIT 1) f
  WHERE lanes.model <> ALL(%(full)s)
    AND (k.paused_at IS NULL OR k.revoked_at IS NOT NULL OR u.suspended_at IS NOT NULL)
)
UPDATE {table} SET owner = %(owner)s, attempt = gen_random_uuid() WHERE id = (
  SELECT id FROM {table}
  WHERE id = (SELECT id FROM first ORDER BY {order} first.created_at, first.id LIMIT 1)
    AND state = 'queued' AND owner IS NULL
  FOR UPDATE SKIP LOCKED
) RETURNING id
"""
_BARRED = """
{lanes}, barred AS MATERIALIZED (
  SELECT mine.id FROM lanes
  JOIN accounts_user u ON u.id = lanes.user_id
  LEFT JOIN accounts_apikey k ON k.id = lanes.key_id
  CROSS JOIN LATERAL (
    SELECT w.id FROM {table} w
    WHERE w.state = 'queued' AND w.owner IS NULL
      AND w.lane = lanes.lane AND w.model = lanes.model
    ORDER BY w.created_at, w.id LIMIT %(most)s FOR UPDATE SKIP LOCKED) mine
  WHERE u.suspended_at IS NOT NULL OR k.revoked_at IS NOT NULL
  LIMIT %(most)s
)
UPDATE {table} SET owner = %(owner)s, attempt = gen_random_uuid()
WHERE id IN (SELECT id FROM barred) RETURNING id
"""
_TURNS = """EXISTS (
  SELECT 1 FROM {table} busy WHERE busy.user_id = first.user_id
    AND busy.owner IS NOT NULL AND busy.state IN ('queued', 'running')),"""


def ring(kind: str) -> None:
    """Wake a runner once the running transaction is committed; a lost ring is found by a look."""
    transaction.on_commit(lambda: _ring(kind))


def _ring(kind: str) -> None:
    try:
        current_app.send_task(
            RING, args=[kind], queue="runner", expires=60, ignore_result=True, retry=False
        )
    except LOST as lost:
        log.warning("a runner was not woken", kind=kind, cause=str(lost))


def claim(
    model: type[Work],
    *,
    owner: UUID,
    room: int,
    most: int | None,
    by_turns: bool,
    full: Collection[str] = (),
) -> list[Work]:
    """Take up to `room` pieces of waiting work in hand, in one transaction.

    The oldest first; with `by_turns`, the oldest of a User who has none in hand comes before all of
    the others (C-446). Work of a paused key is passed over (C-447), and so is that of the models
    in `full`, which have no place free (C-450). While the spend stop is on, nothing is taken
    (C-621). `most` bounds what all runners have in hand together; None is no bound.

    Raises:
        OwnerLost: the lease `owner` was reaped; work under it would be put back at once.
    """
    if room < 1 or not waiting(model).exists():
        return []
    statement = _statement(_FIRST, model, by_turns=by_turns)
    taken: list[UUID] = []
    with transaction.atomic(), connection.cursor() as cursor:
        number = crc32(model._meta.label.encode()) - 2**31
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCKS, number])
        if spend_stop.is_on():
            return []
        _check_lease(owner)
        if most is not None:
            room = min(room, most - in_hand(model).filter(state__in=LIVE).count())
        while len(taken) < room:
            cursor.execute(statement, {"owner": owner, "full": list(full)})
            row = cursor.fetchone()
            if row is None:
                break
            taken.append(row[0])
    rows = model._default_manager.in_bulk(taken)
    return [rows[each] for each in taken if each in rows]


def _check_lease(owner: UUID) -> None:
    if not Owner.objects.filter(token=owner).exists():
        raise OwnerLost(f"the lease {owner} was reaped")


def _statement(template: str, model: type[Work], *, by_turns: bool = False) -> str:
    """Return a statement for the table of a kind of work."""
    table = connection.ops.quote_name(model._meta.db_table)
    turns = _TURNS.format(table=table) if by_turns else ""
    return template.format(lanes=_LANES.format(table=table), table=table, order=turns)


def claim_barred(model: type[Work], *, owner: UUID, most: int) -> list[Work]:
    """Take waiting work of revoked keys and suspended Users in hand, to end it (C-613, C-614).

    It takes nobody's turn and no room, so it need not wait for either, and a User who is restored
    a moment later finds it ended.

    Raises:
        OwnerLost: as `claim`.
    """
    if not waiting(model).exists():
        return []
    statement = _statement(_BARRED, model)
    with transaction.atomic(), connection.cursor() as cursor:
        _check_lease(owner)
        cursor.execute(statement, {"owner": owner, "most": most})
        taken = [row[0] for row in cursor.fetchall()]
    return list(model._default_manager.filter(id__in=taken))


def waiting(model: type[Work]) -> QuerySet[Work]:
    """Return the work that nobody has in hand."""
    return model._default_manager.filter(state=WorkState.QUEUED, owner__isnull=True)


def in_hand(model: type[Work]) -> QuerySet[Work]:
    """Return the work that some process has in hand, cancelled work that settles included."""
    return model._default_manager.filter(owner__isnull=False)


def lost(model: type[Work]) -> QuerySet[Work]:
    """Return the work whose process is gone: its lease was reaped, so its Hold is released."""
    living = Owner.objects.filter(token=OuterRef("owner"))
    return in_hand(model).filter(~Exists(living))


def cancel(rows: QuerySet[Work]) -> int:
    """Cancel what has not ended of `rows`, and return how much that was.

    Work in hand is stopped by its runner, which sees the row within `WORK_WATCH_SECONDS`; until it
    has written the last of it, the row keeps its `owner`.
    """
    return rows.filter(state__in=before(WorkState.CANCELLED)).update(
        state=WorkState.CANCELLED, finished_at=Now()
    )


def standing(model: type[Work], ids: Iterable[UUID]) -> dict[UUID, tuple[UUID | None, str]]:
    """Return the attempt and the state of what is in hand of some work, for who has it in hand."""
    rows = in_hand(model).filter(id__in=list(ids)).values_list("id", "attempt", "state")
    return {row: (attempt, state) for row, attempt, state in rows}
