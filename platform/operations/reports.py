"""Analytics and the spend stop, as pages of the admin (contract-app.md 9.11 to 9.16)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts.models import User
from administration.confirmation import is_sensitive, needs_confirmation
from administration.dialogs import Dialog, show
from administration.site import admins_only, page_context
from billing import spend_stop
from billing.models import SpendStop
from operations import analytics, spend, stop, traffic
from operations.analytics import Days, Report
from operations.tables import Column, Fact, Table
from pages.usage import MOST_DAYS, chosen_of, days_of, presets

CHANGES = 10
"""Changes of the stop that are shown (A-489)."""
MOST_USERS = 2000
"""Users that `All Users` offers at most: those who ran on the days."""


@dataclass(frozen=True)
class Tab:
    """One tab of Analytics."""

    name: str
    label: str
    report: Callable[[Days], Report]
    defines: bool = False
    """Whether `Definitions` stands at its bottom (A-461)."""
    filters: bool = False
    """Whether one User or one model can be chosen (A-479)."""


def spend_report(days: Days) -> Report:
    """Return the tab `Spend` (A-480 to A-489)."""
    now = timezone.now()
    stands = spend.standing(now)
    env = settings.BASALT
    counted = (
        f"{stands.counted_at.astimezone(UTC):%Y-%m-%d %H:%M UTC}" if stands.counted_at else "never"
    )
    stale = "stale: the numbers above lack what ran since" if stands.stale else ""
    facts = (
        Fact("Last 24 hours", _dollars(stands.last_day, stands),
             f"{stands.minutes:,} of 1,440 minutes were counted; a minute that was not adds "
             "nothing."),
        Fact("Warns the team at", f"${env.spend_warning_dollars:,.2f}"),
        Fact("Pauses new GPU work at", f"${env.spend_stop_dollars:,.2f}"),
        Fact("The pause counts", _dollars(stands.counting, stands),
             "Of the last 24 hours, since the last Clear."),
        Fact("Containers last counted", counted, stale),
    )  # fmt: skip
    return Report(
        facts,
        (_by_model(now), traffic.spend_of_days(days), traffic.used_lately(now), _changes()),
    )


def _dollars(amount: Decimal, stands: spend.Standing) -> str:
    """Write spend; without a count it is not known, and a stale one says so (A-492)."""
    if not stands.minutes:
        return "not known"
    return f"${amount:,.2f}{', stale' if stands.stale else ''}"


TABS = (
    Tab("users", "Users", analytics.users, defines=True),
    Tab("budget", "Budget", analytics.budget, defines=True),
    Tab("platform", "Platform", traffic.platform, defines=True),
    Tab("usage", "Usage", traffic.usage_report, filters=True),
    Tab("spend", "Spend", spend_report),
)
"""The tabs in their order (A-460)."""


def _by_model(now: datetime) -> Table:
    return Table(
        "by-model",
        "Last 24 hours by model",
        (
            Column("Model"),
            Column("Environment"),
            Column("Container hours", "h"),
            Column("GPU hours", "h"),
            Column("Spend", "$"),
        ),
        [
            (row.model, row.environment, row.hours, row.gpu_hours, row.dollars)
            for row in spend.by_model(now)
            if row.hours
        ],
        "Container hours are hours of containers, whatever stage they were in; GPU hours are those "
        "times the GPUs of a container.",
    )


def _changes() -> Table:
    """Return the newest changes of the stop: each stop began, and most were cleared (A-489)."""
    rows: list[tuple[datetime, str, str, str]] = []
    for each in SpendStop.objects.select_related("started_by", "cleared_by").order_by(
        "-started_at"
    )[:CHANGES]:
        if each.cleared_at:
            rows.append((each.cleared_at, "Clear", _who(each.cleared_by), ""))
        if each.reason == "locked":
            rows.append((each.started_at, "Lock", _who(each.started_by), each.note))
        else:
            words = f"${each.spend:,.2f}" if each.spend is not None else ""
            rows.append((each.started_at, "Pause at the stop amount", "the clock", words))
    return Table(
        "changes",
        "Changes of the stop",
        (Column("Time (UTC)"), Column("Change"), Column("By"), Column("Reason or spend")),
        sorted(rows, key=lambda row: row[0], reverse=True)[:CHANGES],
        f"The newest {CHANGES}, whatever the days: each Lock, each Clear, and each pause that "
        "began by itself at the stop amount.",
    )


def _who(user: User | None) -> str:
    return user.email if user else "a command"


@dataclass(frozen=True)
class Asked:
    """What an address of Analytics asks for."""

    tab: Tab
    days: Days
    remark: str

    @property
    def query(self) -> str:
        """The address's query, which keeps days, User and model (A-460)."""
        return self.of(self.days.first, self.days.last)

    @property
    def chosen(self) -> dict[str, str]:
        """What is chosen beside the days, for a form that chooses other days (A-479)."""
        parts = {"user": str(self.days.user_id or ""), "model": self.days.model}
        return {name: value for name, value in parts.items() if value}

    def of(self, first: date, last: date) -> str:
        """Return the query of the same choice on other days."""
        return urlencode({"from": first.isoformat(), "to": last.isoformat()} | self.chosen)


def asked(request: HttpRequest, name: str) -> Asked:
    """Read an address; raises `Http404` for a tab that there is not."""
    tab = next((tab for tab in TABS if tab.name == name), None)
    if tab is None:
        raise Http404("There is no such tab.")
    today = timezone.now().astimezone(UTC).date()
    first, last, remark = days_of(request.GET, today)
    if not tab.filters:
        return Asked(tab, Days(first, last), remark)
    try:
        user_id = UUID(request.GET["user"]) if request.GET.get("user") else None
    except ValueError:
        user_id, remark = None, "The User in the address is none. These are all Users."
    model = request.GET.get("model", "").replace("\0", "")[:200]
    return Asked(tab, Days(first, last, user_id, model), remark)


@require_safe
def opened(request: HttpRequest) -> HttpResponse:
    """Open Analytics on its first tab (A-459)."""
    return page(request, TABS[0].name)


@require_safe
def page(request: HttpRequest, tab: str) -> HttpResponse:
    """Show a tab."""
    wanted = asked(request, tab)
    whole = Days(wanted.days.first, wanted.days.last)
    context = page_context(request, "Analytics") | _numbers(request, wanted)
    choices = presets(timezone.now().astimezone(UTC).date())
    context |= {
        "tabs": TABS,
        "presets": [(preset, wanted.of(preset.first, preset.last)) for preset in choices],
        "chosen": chosen_of(choices, wanted.days.first, wanted.days.last),
        "most_days": MOST_DAYS,
    }
    if wanted.tab.filters:
        context["users"] = traffic.who_ran(whole)[:MOST_USERS]
        context["models"] = traffic.models_used()
    return render(request, "admin/reports/page.html", context)


@require_safe
def numbers(request: HttpRequest, tab: str) -> HttpResponse:
    """Show the numbers alone, for the read of every minute (A-464)."""
    return render(request, "admin/reports/numbers.html", _numbers(request, asked(request, tab)))


def _numbers(request: HttpRequest, wanted: Asked) -> dict[str, object]:
    context: dict[str, object] = {
        "asked": wanted,
        "report": wanted.tab.report(wanted.days),
        "read_at": timezone.now(),
        "is_admin": getattr(request.user, "is_admin", False),
    }
    if wanted.tab.name == "spend":
        context["stop"] = spend_stop.current()
        context["last_stop"] = SpendStop.objects.order_by("-started_at").first()
        context["is_spend"] = True
    return context


@require_safe
def as_csv(request: HttpRequest, tab: str, table: str) -> HttpResponse:
    """Answer one table as a file of CSV."""
    wanted = asked(request, tab)
    found = wanted.tab.report(wanted.days).table(table)
    if found is None:
        raise Http404("There is no such table.")
    name = f"{tab}-{table}-{wanted.days.first}-{wanted.days.last}.csv"
    answer = HttpResponse(found.csv(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


@require_POST
@admins_only
def lock(request: HttpRequest) -> HttpResponse:
    """Pause new GPU work (A-483); small, so that it works while reports are slow."""
    note = request.POST.get("reason", "").replace("\0", "").strip()

    def do() -> str:
        stop.lock(by=_admin(request).id, note=note)
        return "New GPU work is paused. What runs already finishes."

    says = "New Completions, Jobs, harvests, Branches and Runs are refused until Clear."
    return _at_once(request, "Lock", says, do, [("reason", note)])


@require_POST
@admins_only
def clear(request: HttpRequest) -> HttpResponse:
    """Lift the pause (A-483)."""

    def do() -> str:
        if stop.clear(by=_admin(request).id):
            return "New GPU work runs again, and the pause counts from zero."
        return "New GPU work was not paused."

    says = "New GPU work runs again, and what waits begins."
    return _at_once(request, "Clear", says, do)


def _at_once(
    request: HttpRequest,
    action: str,
    says: str,
    do: Callable[[], str],
    carried: Sequence[tuple[str, str]] = (),
) -> HttpResponse:
    """Do what one press of the page says; only where the sign-in is old, a dialog comes first."""
    back = reverse("admin:analytics_tab", args=["spend"])
    if is_sensitive(action) and needs_confirmation(request):
        dialog = Dialog(
            title=f"Spend stop: {action}",
            action=action,
            says=[says],
            button=action,
            do=lambda written: do(),
            back=back,
            danger=action == "Lock",
            carried=carried,
        )
        return show(request, dialog)
    messages.success(request, do())
    return HttpResponseRedirect(back)


def _admin(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
