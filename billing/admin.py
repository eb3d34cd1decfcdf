"""Tokens in Django's admin, to read: the ledger alone writes them."""

from datetime import timedelta

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts.admin_base import ReadOnlyAdmin
from accounts.models import User
from billing.ledger import time_ordered_id
from billing.models import (
    Account,
    DailyUsage,
    Entry,
    Hold,
    HoldState,
    KeyBudget,
    Owner,
    SpendStop,
)


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    """Budgets and allowances of Users."""

    list_display = ("user", "budget_left", "allowance")
    list_select_related = ("user",)
    search_fields = ("user__email",)


@admin.register(KeyBudget)
class KeyBudgetAdmin(ReadOnlyAdmin):
    """Budgets of API keys."""

    list_display = ("key", "left")
    list_select_related = ("key",)
    search_fields = ("key__prefix", "key__user__email")


RECENT = timedelta(days=7)
"""Holds that the list shows of everybody; those of one User are found whatever their age."""


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    """Holds of the last days, newest first: ids begin with the time, so an index bounds them."""

    list_display = ("opened_at", "user", "model", "source", "tokens", "state", "paid", "request_id")
    list_filter = ("state", "source", "status", "counted")
    list_select_related = ("user",)
    ordering = ("-id",)
    search_fields = ("request_id",)
    search_help_text = "A User's whole email, or a request's whole id of the last 7 days"

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Order one User's Holds by the index of theirs, and everybody's by the time in the id."""
        return ("-opened_at",) if "@" in request.GET.get("q", "") else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Hold], search_term: str
    ) -> tuple[QuerySet[Hold], bool]:
        """Find by what an index knows: no text is looked for in the history."""
        term = search_term.replace("\0", "").strip()
        if "@" in term:
            ids = User.objects.filter(email=term).values_list("id", flat=True)[:1]
            return queryset.filter(user__in=list(ids)).exclude(state=HoldState.RELEASED), False
        if request.resolver_match and request.resolver_match.url_name == "billing_hold_changelist":
            queryset = queryset.filter(id__gte=time_ordered_id(timezone.now() - RECENT))
        return (queryset.filter(request_id=term) if term else queryset), False


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin):
    """Changes of Budgets, newest first; the lines of Holds are with their User."""

    list_display = ("created_at", "user", "bucket", "kind", "amount", "total", "by")
    list_filter = ("bucket", "kind")
    list_select_related = ("user", "by")
    ordering = ("-id",)
    search_fields = ("user__email__exact",)
    search_help_text = "A User's whole email"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Entry]:
        """Return the lines that somebody wrote, and not those of Holds."""
        lines: QuerySet[Entry] = super().get_queryset(request)
        return lines.filter(hold__isnull=True)


RECENT_DAYS = 7
"""Days of sums that the list shows; Analytics and a User's page count longer times."""


@admin.register(DailyUsage)
class DailyUsageAdmin(ReadOnlyAdmin):
    """Daily sums of the last days."""

    list_display = ("day", "user", "model", "source", "completions", "paid")
    list_filter = ("source",)
    list_select_related = ("user",)
    ordering = ("-day",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[DailyUsage]:
        """Return the sums of the last days, so that a rare source is looked for in those alone."""
        sums: QuerySet[DailyUsage] = super().get_queryset(request)
        return sums.filter(day__gt=timezone.now().date() - timedelta(days=RECENT_DAYS))


@admin.register(SpendStop)
class SpendStopAdmin(ReadOnlyAdmin):
    """Every pause of new GPU work; `Analytics` > `Spend` locks and clears."""

    list_display = (
        "started_at",
        "reason",
        "started_by",
        "note",
        "spend",
        "cleared_at",
        "cleared_by",
    )
    list_display_links = None
    list_filter = ("reason",)
    list_select_related = ("started_by", "cleared_by")
    ordering = ("-started_at",)


@admin.register(Owner)
class OwnerAdmin(ReadOnlyAdmin):
    """Living processes."""

    list_display = ("token", "kind", "host", "pid", "started_at", "expires_at")
    ordering = ("started_at",)
