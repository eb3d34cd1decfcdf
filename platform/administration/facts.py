"""What the list of Users tells of each, read for the rows of one page (A-411 to A-416, A-562).

Sums come from the daily roll-ups, and the newest Completion from an index of it, so a page costs
the same whatever the history.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, QuerySet, Subquery, Sum
from django.utils import timezone

from access.models import Application
from accounts.models import ApiKey, User, UserTag
from billing.allowance import allowance_of
from billing.models import Account, DailyUsage, Hold, HoldState

ACTIVE, COOLING = timedelta(days=7), timedelta(days=14)
"""How long ago a User's newest Completion was, at most (A-412, U-52)."""
TOKENS_OF = timedelta(days=30)


class Engagement(StrEnum):
    """How a User's newest Completion lies back."""

    ACTIVE = "Active"
    COOLING = "Cooling"
    CHURNED = "Churned"
    NEVER = "Not activated"


@dataclass
class Facts:
    """What one row shows beside the User itself."""

    organization: str = ""
    tags: list[str] = field(default_factory=list)
    last: datetime | None = None
    weeks: int = 0
    tokens: int = 0
    models: list[str] = field(default_factory=list)
    budget: int = 0
    allowance: int = 0
    keys: int = 0

    @property
    def engagement(self) -> Engagement:
        """How engaged the User is by their newest Completion (A-412)."""
        if self.last is None:
            return Engagement.NEVER
        ago = timezone.now() - self.last
        if ago <= ACTIVE:
            return Engagement.ACTIVE
        return Engagement.COOLING if ago <= COOLING else Engagement.CHURNED


def facts_of(users: Sequence[User]) -> dict[UUID, Facts]:
    """Return the facts of some Users; a fixed number of queries."""
    ids = [user.id for user in users]
    found = {user.id: Facts(organization=user.organization) for user in users}
    for user_id, organization in organizations(ids).items():
        found[user_id].organization = found[user_id].organization or organization
    for user_id, tag in UserTag.objects.filter(user__in=ids).values_list("user_id", "tag__name"):
        found[user_id].tags.append(tag)
    for user_id, moment in newest_completions(ids).items():
        found[user_id].last = moment
    for user_id, weeks in _weeks(ids).items():
        found[user_id].weeks = weeks
    for user_id, tokens in _tokens(ids):
        found[user_id].tokens = tokens
    for user_id, model in _models(ids):
        found[user_id].models.append(model)
    for fact in found.values():
        fact.tags.sort()
        fact.allowance = allowance_of(None)
    for account in Account.objects.filter(user__in=ids):
        fact = found[account.user_id]
        fact.budget, fact.allowance = account.budget_left, allowance_of(account.allowance)
    keys = ApiKey.objects.live().filter(user__in=ids).order_by().values_list("user")
    for user_id, count in keys.annotate(count=Count("id")):
        found[user_id].keys = count
    return found


def organizations(ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return what each User's newest Application says of their organization."""
    rows = Application.objects.filter(user__in=ids).order_by("user", "-submitted_at")
    return dict(rows.distinct("user").values_list("user_id", "organization"))


NEWEST = """
SELECT u.id, (
    SELECT h.opened_at FROM billing_hold h
    WHERE h.user_id = u.id AND h.state <> 'released' ORDER BY h.opened_at DESC LIMIT 1
) FROM unnest(%s::uuid[]) AS u(id)
"""


def newest_completions(ids: Sequence[UUID]) -> dict[UUID, datetime | None]:
    """Return when each User's newest Completion began that was not released (A-414)."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, [list(ids)])
        return dict(cursor.fetchall())


WEEKS = """
SELECT user_id, count(DISTINCT date_trunc('week', day)) FROM billing_dailyusage
WHERE user_id = ANY(%s) AND completions > 0 GROUP BY user_id
"""


def _weeks(ids: Sequence[UUID]) -> dict[UUID, int]:
    """Count the UTC weeks, Monday to Sunday, with a Completion (A-413)."""
    with connection.cursor() as cursor:
        cursor.execute(WEEKS, [list(ids)])
        return dict(cursor.fetchall())


def _recent(ids: Sequence[UUID]) -> "QuerySet[DailyUsage]":
    since = (timezone.now().astimezone(UTC) - TOKENS_OF + timedelta(days=1)).date()
    return DailyUsage.objects.filter(user__in=ids, day__gte=since).order_by()


def _tokens(ids: Sequence[UUID]) -> list[tuple[UUID, int]]:
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    return list(_recent(ids).values_list("user_id").annotate(tokens=tokens))


def _models(ids: Sequence[UUID]) -> list[tuple[UUID, str]]:
    """Return each User's models, those with the most tokens first."""
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    rows = DailyUsage.objects.filter(user__in=ids).order_by()
    summed = rows.values_list("user_id", "model").annotate(tokens=tokens)
    by_user: dict[UUID, list[tuple[int, str]]] = defaultdict(list)
    for user_id, model, count in summed:
        by_user[user_id].append((-count, model))
    return [(user_id, model) for user_id, rows in by_user.items() for _, model in sorted(rows)]


def with_engagement(users: QuerySet[User], wanted: Engagement) -> QuerySet[User]:
    """Return the Users of one engagement; an index tells whether one has a Completion (A-415)."""
    now = timezone.now()
    ran = Hold.objects.filter(user=OuterRef("pk")).exclude(state=HoldState.RELEASED)
    in_7, in_14 = (Exists(ran.filter(opened_at__gte=now - age)) for age in (ACTIVE, COOLING))
    if wanted == Engagement.ACTIVE:
        return users.filter(in_7)
    if wanted == Engagement.COOLING:
        return users.filter(~in_7, in_14)
    if wanted == Engagement.CHURNED:
        return users.filter(~in_14, Exists(ran))
    return users.filter(~Exists(ran))


def shown_organization() -> Subquery:
    """Return the organization of the newest Application, to search in."""
    rows = Application.objects.filter(user=OuterRef("pk")).order_by("-submitted_at")
    return Subquery(rows.values("organization")[:1])
