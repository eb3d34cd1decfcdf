"""What the pages tell of a User's use, read from the daily roll-ups and not from the history.

The numbers are those of settled Completions; what runs is counted apart. Days are UTC days, and a
Completion belongs to the day on which it began (U-39).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from accounts.models import ApiKey
from billing.allowance import month_of
from billing.models import DailyUsage, Entry, Hold, KeyBudget, Source

LISTED = 100
"""Completions and Budget changes that the page lists (A-196, A-205)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which Completions are counted: whole UTC days, and one key or one model if chosen."""

    user_id: UUID
    first: date
    last: date
    key_id: UUID | None = None
    model: str | None = None

    @property
    def whole(self) -> "Scope":
        """The same days with all keys and all models."""
        return replace(self, key_id=None, model=None)

    @property
    def begins(self) -> datetime:
        """The first moment of the days."""
        return datetime.combine(self.first, time(), UTC)

    @property
    def ends(self) -> datetime:
        """The first moment after the days."""
        return datetime.combine(self.last + timedelta(days=1), time(), UTC)


@dataclass(slots=True)
class Sums:
    """Completions and their tokens."""

    completions: int = 0
    input: int = 0
    output: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key's row in `By key`; tokens (A-194)."""

    key: ApiKey
    sums: Sums
    last_month: int
    in_all: int
    budget_left: int | None
    last_ran: datetime | None


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A key's row on API Keys; tokens (A-151)."""

    key: ApiKey
    this_month: int
    budget_left: int | None


@dataclass(frozen=True, slots=True)
class Splits:
    """The same Completions counted in four ways (A-189 to A-194, A-206)."""

    total: Sums = field(default_factory=Sums)
    days: dict[date, Sums] = field(default_factory=dict)
    models: dict[str, Sums] = field(default_factory=dict)
    sources: dict[Source, Sums] = field(default_factory=dict)
    keys: dict[UUID, Sums] = field(default_factory=dict)


SPLITS = """
SELECT day, model, source, key_id, grouping(day, model, source, key_id),
       sum(completions), sum(prompt_tokens), sum(completion_tokens)
FROM billing_dailyusage
WHERE user_id = %(user)s AND day BETWEEN %(first)s AND %(last)s
      AND (%(key)s::uuid IS NULL OR key_id = %(key)s::uuid)
      AND (%(model)s::text IS NULL OR model = %(model)s::text)
GROUP BY GROUPING SETS ((), (day), (model), (source), (key_id))
ORDER BY day, model, source
"""

TOTAL, DAY, MODEL, SOURCE, KEY = 0b1111, 0b0111, 0b1011, 0b1101, 0b1110


def splits(scope: Scope) -> Splits:
    """Sum the settled Completions of a scope, by day, model, source and key; one query."""
    found = Splits()
    with connection.cursor() as cursor:
        cursor.execute(
            SPLITS,
            {
                "user": scope.user_id,
                "first": scope.first,
                "last": scope.last,
                "key": scope.key_id,
                "model": scope.model,
            },
        )
        for day, model, source, key_id, grouping, *numbers in cursor.fetchall():
            sums = Sums(*(int(number or 0) for number in numbers))
            if grouping == TOTAL:
                found.total.completions = sums.completions
                found.total.input, found.total.output = sums.input, sums.output
            elif grouping == DAY:
                found.days[day] = sums
            elif grouping == MODEL:
                found.models[model] = sums
            elif grouping == SOURCE:
                found.sources[Source(source)] = sums
            elif key_id is not None:
                found.keys[key_id] = sums
    return found


def listed(scope: Scope) -> QuerySet[Hold]:
    """Return the Completions of a scope, running ones too, newest first (A-196, A-201)."""
    holds = Hold.objects.listed().filter(
        user=scope.user_id, opened_at__gte=scope.begins, opened_at__lt=scope.ends
    )
    if scope.key_id:
        holds = holds.filter(key=scope.key_id)
    if scope.model:
        holds = holds.filter(model=scope.model)
    return holds.select_related("key")


def running(scope: Scope) -> int:
    """Count the Completions of a scope that still run (A-178)."""
    holds = Hold.objects.open().filter(
        owner__isnull=False,
        user=scope.user_id,
        opened_at__gte=scope.begins,
        opened_at__lt=scope.ends,
    )
    if scope.key_id:
        holds = holds.filter(key=scope.key_id)
    if scope.model:
        holds = holds.filter(model=scope.model)
    return holds.count()


def budget_history(user_id: UUID) -> QuerySet[Entry]:
    """Return the changes of a User's Budget and their keys' Budgets, newest first (A-205, U-06)."""
    entries = Entry.objects.filter(user=user_id, hold__isnull=True)
    return entries.select_related("key").order_by("-id")[:LISTED]


LAST_RAN = """
SELECT k.id, (
    SELECT h.opened_at FROM billing_hold h
    WHERE h.key_id = k.id AND h.state <> 'released'
    ORDER BY h.opened_at DESC LIMIT 1
) FROM unnest(%s::uuid[]) AS k(id)
"""


def keys_in(found: Splits, now: datetime | None = None) -> list[KeyUse]:
    """Return the keys of a scope's Completions with more of their use, the most used first.

    Four queries, whatever the number of keys.
    """
    ids = list(found.keys)
    if not ids:
        return []
    this_month = month_of(now or timezone.now())
    last_month = month_of(datetime.combine(this_month, time(), UTC) - timedelta(days=1))
    keys = ApiKey.objects.in_bulk(ids)
    budgets = dict(KeyBudget.objects.filter(key__in=ids).values_list("key", "left"))
    tokens = F("prompt_tokens") + F("completion_tokens")
    in_last_month = Q(day__gte=last_month, day__lt=this_month)
    usage = DailyUsage.objects.filter(key__in=ids).order_by().values_list("key")
    summed = {
        key_id: (in_all, before or 0)
        for key_id, in_all, before in usage.annotate(
            in_all=Sum(tokens), before=Sum(tokens, filter=in_last_month)
        )
    }
    ran = _last_ran(ids)
    rows = [
        KeyUse(
            key=keys[key_id],
            sums=sums,
            last_month=summed.get(key_id, (0, 0))[1],
            in_all=summed.get(key_id, (0, 0))[0],
            budget_left=budgets.get(key_id),
            last_ran=ran.get(key_id),
        )
        for key_id, sums in found.keys.items()
    ]
    return sorted(rows, key=lambda row: (-row.sums.tokens, row.key.name.casefold()))


def live_keys(*, user_id: UUID, now: datetime | None = None) -> list[LiveKey]:
    """Return the live keys with this month's tokens, newest first (A-151, U-50); three queries."""
    keys = list(ApiKey.objects.live().filter(user=user_id).order_by("-created_at"))
    ids = [key.id for key in keys]
    used = dict(
        DailyUsage.objects.filter(key__in=ids, day__gte=month_of(now or timezone.now()))
        .order_by()
        .values_list("key")
        .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    budgets = dict(KeyBudget.objects.filter(key__in=ids).values_list("key", "left"))
    return [LiveKey(key, used.get(key.id, 0), budgets.get(key.id)) for key in keys]


def _last_ran(ids: Sequence[UUID]) -> dict[UUID, datetime | None]:
    with connection.cursor() as cursor:
        cursor.execute(LAST_RAN, [list(ids)])
        return dict(cursor.fetchall())
