"""Erases what was deleted long enough ago (C-639); the clock calls it now and then."""

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from looms.models import Change, Loom, Node

AT_ONCE = 1000
"""Changes that one transaction erases at most."""
LOOMS_AT_ONCE = 100
"""Looms that are looked up at once; each is erased in a transaction of its own."""

# A Node is deleted no later than the one that it is under, so what is due of a Loom holds no
# parent of a Node that stays. Rows go by statements and not one by one.
_NODES = """
WITH gone AS (
    SELECT id FROM looms_node WHERE loom_id = %(loom)s AND deleted_at <= %(before)s
), grown AS (DELETE FROM looms_growth WHERE node_id IN (SELECT id FROM gone))
DELETE FROM looms_node WHERE id IN (SELECT id FROM gone)
"""
_LOOM = (
    "DELETE FROM looms_viewstate WHERE loom_id = %(loom)s",
    "DELETE FROM looms_change WHERE loom_id = %(loom)s",
    "DELETE FROM looms_growth WHERE node_id IN "
    "(SELECT id FROM looms_node WHERE loom_id = %(loom)s)",
    "DELETE FROM looms_node WHERE loom_id = %(loom)s",
    "DELETE FROM looms_loom WHERE id = %(loom)s",
)


def erase_deleted(now: datetime | None = None) -> int:
    """Erase Looms and Nodes whose deletion is `LOOM_KEEP_DELETED_SECONDS` old, and changes as old.

    Returns how many rows of these there were. Undo reaches back as far as changes are kept.
    """
    before = (now or timezone.now()) - timedelta(seconds=settings.BASALT.loom_keep_deleted_seconds)
    return _erase_looms(before) + _erase_nodes(before) + _erase_changes(before)


def delete_looms_of(user_id: UUID) -> int:
    """Delete every Loom of a User who is deleted, as if each were deleted by hand.

    Returns how many. What grows in them is for whoever ends the User's work to cancel first.
    """
    return Loom.objects.of(user_id).update(deleted_at=timezone.now())


def _erase_looms(before: datetime) -> int:
    due = Loom.objects.filter(deleted_at__lte=before).values_list("id", flat=True)
    count = 0
    while ids := list(due[:LOOMS_AT_ONCE]):
        for loom_id in ids:
            with transaction.atomic(), connection.cursor() as cursor:
                for statement in _LOOM:
                    cursor.execute(statement, {"loom": loom_id})
        count += len(ids)
    return count


def _erase_nodes(before: datetime) -> int:
    due = Node.objects.filter(deleted_at__lte=before).values_list("loom_id", flat=True)
    count = 0
    while looms := list(due.order_by().distinct()[:LOOMS_AT_ONCE]):
        for loom_id in looms:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(_NODES, {"loom": loom_id, "before": before})
                count += cursor.rowcount
    return count


def _erase_changes(before: datetime) -> int:
    count = 0
    old = Change.objects.filter(made_at__lte=before).values_list("id", flat=True)
    while some := list(old.order_by()[:AT_ONCE]):
        Change.objects.filter(id__in=some).delete()
        count += len(some)
    return count
