"""Jobs, Runs, harvests, Looms and Nodes in the admin: to help by an id, without what they say.

No prompt, text, result or title is read here (A-444, U-19). A list shows what is queued or runs,
which is bounded; everything else is found by its id, or by a User's whole email.
"""

import re
from typing import ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from accounts.admin_base import ReadOnlyAdmin
from accounts.models import User
from harvests.models import Harvest, HarvestQuota
from jobs.models import Job, Run
from jobs.states import LIVE
from looms.models import Loom, Node

_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\Z", re.IGNORECASE)
WORK = (
    "id",
    "user",
    "key",
    "model",
    "state",
    "created_at",
    "started_at",
    "finished_at",
    "error",
    "losses",
)
"""Columns of every kind of work that say nothing of what was asked or answered."""


class FoundById(ReadOnlyAdmin):
    """Rows that are found by an id or an email; without a search, those that are still at work."""

    search_fields = ("id",)
    search_help_text = "An id, or a User's whole email"
    list_select_related: bool | tuple[str, ...] = ("user",)
    actions = None
    shown: ClassVar[tuple[str, ...]]
    """The columns that are read at all."""

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        """Show what is read."""
        return self.shown

    def get_readonly_fields(
        self, request: HttpRequest, obj: Model | None = None
    ) -> tuple[str, ...]:
        """Let nothing be written."""
        return self.shown

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Return the rows without their texts."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.only(*(name.removesuffix("_") for name in self.shown))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """Find by what an index knows."""
        term = search_term.replace("\0", "").strip()
        if not term:
            return self.at_work(queryset), False
        if "@" in term:
            user = User.objects.filter(email=term).first()
            return (self.of(queryset, user) if user else queryset.none()), False
        found = _ID.search(term)
        return (self.by_id(queryset, UUID(found[0])) if found else queryset.none()), False

    def at_work(self, rows: QuerySet[Model]) -> QuerySet[Model]:
        """Return those that are queued or run."""
        return rows.filter(state__in=LIVE)

    def of(self, rows: QuerySet[Model], user: User) -> QuerySet[Model]:
        """Return those of a User."""
        return rows.filter(user=user)

    def by_id(self, rows: QuerySet[Model], found: UUID) -> QuerySet[Model]:
        """Return the one with an id."""
        return rows.filter(id=found)


@admin.register(Job)
class JobAdmin(FoundById):
    """Jobs; `req_job_` and the id is the id of a Job's request."""

    list_display = ("id", "user", "model", "state", "created_at", "finished_at")
    ordering = ("-created_at",)
    shown = (*WORK, "erased_at")


@admin.register(Run)
class RunAdmin(FoundById):
    """Runs of the Playground; `req_run_` and the id is the id of a Run's request."""

    list_display = ("id", "user", "number", "model", "state", "created_at", "finished_at")
    ordering = ("-number",)
    shown = (*WORK, "number", "prompt_tokens", "completion_tokens", "deleted_at")

    def of(self, rows: QuerySet[Model], user: User) -> QuerySet[Model]:
        """Return a User's Runs that are not deleted, of which there is an index."""
        return rows.filter(user=user, deleted_at=None)


@admin.register(Harvest)
class HarvestAdmin(FoundById):
    """Harvests."""

    list_display = ("id", "user", "model", "state", "n_prompts", "tokens", "created_at")
    ordering = ("-created_at",)
    shown = (*WORK, "size", "n_prompts", "layers", "projects", "reserved_tokens", "tokens")

    def of(self, rows: QuerySet[Model], user: User) -> QuerySet[Model]:
        """Return the harvests of a User's keys, by whose index they are found."""
        return rows.filter(key__user=user)


@admin.register(Loom)
class LoomAdmin(FoundById):
    """Looms by their id or their User's email; a title tells of a text, so there is none."""

    list_display = ("id", "user", "created_at", "changed_at", "revision", "deleted_at")
    ordering = ("-changed_at",)
    shown = ("id", "user", "created_at", "changed_at", "revision", "branch_nodes", "deleted_at")

    def at_work(self, rows: QuerySet[Model]) -> QuerySet[Model]:
        """Return none: a Loom is looked for."""
        return rows.none()

    def of(self, rows: QuerySet[Model], user: User) -> QuerySet[Model]:
        """Return a User's Looms that are not deleted, of which there is an index."""
        return rows.filter(user=user, deleted_at=None)


@admin.register(Node)
class NodeAdmin(FoundById):
    """Nodes by their id, or all of a Loom by its id."""

    list_display = ("number", "id", "loom_", "status", "model", "finish_reason", "made_at")
    list_display_links = ("id",)
    list_select_related = False
    ordering = ("loom", "number")
    search_help_text = "The id of a Node or of a Loom"
    shown = (
        "id",
        "loom_",
        "parent_",
        "number",
        "status",
        "model",
        "identity",
        "finish_reason",
        "prompt_tokens",
        "error",
        "text_modified",
        "context_modified",
        "made_at",
        "deleted_at",
    )

    @admin.display(description="Loom")
    def loom_(self, node: Node) -> str:
        """The id of its Loom."""
        return str(node.loom_id)

    @admin.display(description="Parent")
    def parent_(self, node: Node) -> str:
        """The id of the Node that it follows."""
        return str(node.parent_id or "")

    def at_work(self, rows: QuerySet[Model]) -> QuerySet[Model]:
        """Return none: a Node is looked for."""
        return rows.none()

    def of(self, rows: QuerySet[Model], user: User) -> QuerySet[Model]:
        """Return none: a User's Nodes are found through their Looms."""
        return rows.none()

    def by_id(self, rows: QuerySet[Model], found: UUID) -> QuerySet[Model]:
        """Return the Node with an id, or the Nodes of the Loom that has it."""
        of_loom = rows.filter(loom=found)
        return of_loom if of_loom.exists() else rows.filter(id=found)


@admin.register(HarvestQuota)
class HarvestQuotaAdmin(ReadOnlyAdmin):
    """Users whose keys may start another number of harvests a month than the default (A-442)."""

    list_display = ("user", "per_month")
    list_select_related = ("user",)
    list_display_links = None
    ordering = ("user__email",)
    search_fields = ("user__email",)
    actions = None
