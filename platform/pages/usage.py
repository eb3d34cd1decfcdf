"""The page Usage: what the User's Completions used on chosen days, and what is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts.models import ApiKey, User
from billing import report
from billing.models import KeyBudget, Source
from billing.report import LISTED, Scope, Splits, Sums
from billing.standing import Standing
from pages.shell import AppRequest, shell_of, signed_in

MOST_DAYS = 366
"""Days of one view at most (A-170)."""
TOO_LONG = f"A range has at most {MOST_DAYS} days. These are the days of this month."
UNREADABLE = "The days in the address cannot be read. These are the days of this month."
NOT_YOURS = "The API key in the address is not one of yours. These are the numbers of all keys."


@dataclass(frozen=True, slots=True)
class Preset:
    """A choice of the day chooser (A-169)."""

    label: str
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Choice:
    """What the address asks for, and what to say where it asks for something that is not there."""

    scope: Scope
    key: ApiKey | None
    remark: str

    @property
    def is_whole(self) -> bool:
        """Whether all keys and all models are counted."""
        return self.scope.key_id is None and self.scope.model is None

    @property
    def address(self) -> str:
        """The query that opens the same view again (A-173)."""
        return "?" + urlencode(self.query())

    def query(self, **changes: str) -> dict[str, str]:
        """Return the parts of the address; an empty change leaves its part out."""
        parts = {
            "from": self.scope.first.isoformat(),
            "to": self.scope.last.isoformat(),
            "key": str(self.scope.key_id or ""),
            "model": self.scope.model or "",
            **changes,
        }
        return {name: value for name, value in parts.items() if value}


@require_safe
@signed_in
def page(request: AppRequest) -> HttpResponse:
    """Show the whole page (A-168)."""
    choice = choose(request.user, request.GET)
    found = report.splits(choice.scope)
    whole = found if choice.is_whole else report.splits(choice.scope.whole)
    choices = presets(timezone.now().astimezone(UTC).date())
    context = numbers_of(request, choice, found) | {
        "presets": choices,
        "chosen": chosen_of(choices, choice.scope.first, choice.scope.last),
        "keys": chosen_from(request.user, choice, whole),
        "models": used_models(choice, whole),
        "most_days": MOST_DAYS,
    }
    return render(request, "app/usage.html", context)


@require_safe
@signed_in
def numbers(request: AppRequest) -> HttpResponse:
    """Show the numbers alone, for the read of every minute (A-176)."""
    choice = choose(request.user, request.GET)
    found = report.splits(choice.scope)
    return render(request, "app/usage_numbers.html", numbers_of(request, choice, found))


def numbers_of(request: AppRequest, choice: Choice, found: Splits) -> dict[str, object]:
    """Read everything that comes again every minute; the number of queries is fixed."""
    standing = shell_of(request).standing
    assert standing is not None
    running = report.running(choice.scope)
    return {
        "choice": choice,
        "read_at": timezone.now(),
        "total": found.total,
        "counted": found.total.completions + running,
        "running": running,
        "standing": standing,
        "meter": meter(standing),
        "key_left": key_left(choice.key),
        "days": found.days,
        "by_model": ranked(found),
        "by_source": [(source, found.sources.get(source, Sums())) for source in Source],
        "by_key": report.keys_in(found),
        "completions": report.listed(choice.scope)[:LISTED],
        "history": report.budget_history(request.user.id),
        "listed": LISTED,
    }


def choose(user: User, query: QueryDict) -> Choice:
    """Read the address; what cannot be used is left out, with a remark (A-170, A-174, U-47)."""
    today = timezone.now().astimezone(UTC).date()
    first, last, remark = days_of(query, today)
    key = _own_key(user, query.get("key", ""))
    if query.get("key") and key is None:
        remark = NOT_YOURS
    scope = Scope(
        user_id=user.id,
        first=first,
        last=last,
        key_id=key.id if key else None,
        model=query.get("model", "").replace("\0", "")[:200] or None,
    )
    return Choice(scope, key, remark)


def presets(today: date) -> list[Preset]:
    """Return the ranges that one press chooses (A-169)."""
    month = today.replace(day=1)
    before = month - timedelta(days=1)
    return [
        Preset("Today", today, today),
        Preset("Last 7 days", today - timedelta(days=6), today),
        Preset("Last 30 days", today - timedelta(days=29), today),
        Preset("This month", month, today),
        Preset("Last month", before.replace(day=1), before),
    ]


def chosen_of(choices: Sequence[Preset], first: date, last: date) -> str:
    """Return the label of the preset that is these days, or nothing.

    On some days two are the same; the later one stands, since a page opens with its month.
    """
    same = [preset.label for preset in choices if (preset.first, preset.last) == (first, last)]
    return same[-1] if same else ""


def chosen_from(user: User, choice: Choice, whole: Splits) -> list[ApiKey]:
    """Return the keys of `All keys`: live ones, and revoked ones that ran in the days (A-172)."""
    return [
        key
        for key in ApiKey.objects.filter(user=user).order_by("name", "created_at")
        if key.revoked_at is None or key.id in whole.keys or key.id == choice.scope.key_id
    ]


def used_models(choice: Choice, whole: Splits) -> list[str]:
    """Return the models of `All models`: those that ran in the days, and the chosen one."""
    chosen = choice.scope.model
    return sorted({*whole.models, *([chosen] if chosen else [])})


def ranked(found: Splits) -> list[tuple[str, Sums]]:
    """Return the models, the most used first."""
    return sorted(found.models.items(), key=lambda pair: (-pair[1].tokens, pair[0]))


def key_left(key: ApiKey | None) -> int | None:
    """Return what the chosen key's own Budget has left, if it has one (A-188)."""
    if key is None:
        return None
    return KeyBudget.objects.filter(key=key).values_list("left", flat=True).first()


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of the month's allowance is used."""

    percent: int
    state: str
    """Plain (empty) below 90%, `warn` from there, `bad` once it is spent (A-180)."""


def meter(standing: Standing) -> Meter:
    """Measure the allowance; 0 of 0 is spent."""
    used = standing.allowance - standing.allowance_left
    if not standing.allowance_left:
        return Meter(100, "bad")
    percent = used * 100 // standing.allowance
    return Meter(percent, "warn" if percent >= 90 else "")


def _own_key(user: User, text: str) -> ApiKey | None:
    try:
        return ApiKey.objects.filter(user=user, id=UUID(text)).first()
    except ValueError:
        return None


def days_of(query: QueryDict, today: date) -> tuple[date, date, str]:
    """Return the first and the last day of the address, or this month with what was wrong.

    The admin's reports read their days by it too (A-459).
    """
    month = today.replace(day=1)
    if "from" not in query and "to" not in query:
        return month, today, ""
    try:
        first = _day(query.get("from", ""))
        last = _day(query.get("to", ""))
    except ValueError:
        return month, today, UNREADABLE
    if last < first:
        return month, today, UNREADABLE
    if (last - first).days >= MOST_DAYS:
        return month, today, TOO_LONG
    return first, last, ""


def _day(text: str) -> date:
    """Read a day; one outside the years of a calendar is as unreadable as no day."""
    day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    if not 2000 <= day.year <= 2999:
        raise ValueError("not a day of this age")
    return day
