"""Tokens in Django's admin, to read: the ledger alone writes them."""

from django.contrib import admin

from accounts.admin_base import ReadOnlyAdmin
from billing.models import Account, DailyUsage, Entry, Hold, KeyBudget, Owner


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


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    """Holds, newest first."""

    list_display = ("opened_at", "user", "model", "source", "tokens", "state", "paid", "request_id")
    list_filter = ("state", "source", "status", "counted")
    list_select_related = ("user",)
    ordering = ("-id",)
    search_fields = ("request_id", "user__email")


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin):
    """Lines of the ledger, newest first."""

    list_display = ("created_at", "user", "bucket", "kind", "amount", "total", "by")
    list_filter = ("bucket", "kind")
    list_select_related = ("user", "by")
    ordering = ("-id",)
    search_fields = ("user__email", "hold__request_id")


@admin.register(DailyUsage)
class DailyUsageAdmin(ReadOnlyAdmin):
    """Daily sums."""

    list_display = ("day", "user", "model", "source", "completions", "paid")
    list_filter = ("source",)
    list_select_related = ("user",)
    ordering = ("-day",)


@admin.register(Owner)
class OwnerAdmin(ReadOnlyAdmin):
    """Living processes."""

    list_display = ("token", "kind", "host", "pid", "started_at", "expires_at")
    ordering = ("started_at",)
