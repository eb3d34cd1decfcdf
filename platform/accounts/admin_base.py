"""What the lists of the admin share: who may do what, and no count over a long history.

Admins change; staff decide and read (issue: roles). A list counts no further than `MOST_ROWS`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast
from urllib.parse import urlencode
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from unfold import decorators
from unfold.admin import ModelAdmin

F = TypeVar("F", bound=Callable[..., object])

MOST_ROWS = 10_000
"""Rows that a list pages through and counts; what lies past them is found by a filter."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages of at most `MOST_ROWS` rows, so that a page of a long history costs what it shows."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or `MOST_ROWS` where there are more.

        In the order of the list, whose index then ends the count; without an order PostgreSQL may
        look for the first of them from the table's beginning on.
        """
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return rows[:MOST_ROWS].count()


class RoleAdmin(ModelAdmin):  # type: ignore[misc]
    """Rows that everybody with a role reads, and only admins change."""

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    compressed_fields = True
    list_filter_submit = True

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the model shows at all."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Everybody with a role reads."""
        return request.user.is_active and request.user.is_staff

    def has_decide_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Everybody with a role decides Applications and the like."""
        return self.has_view_permission(request)

    def has_manage_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Only admins change people and tokens."""
        return is_admin(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Only admins add."""
        return is_admin(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only admins change."""
        return is_admin(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody: what is counted or was decided keeps its row."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponse:
        """Show the list; U+0000 in the address, which no text holds, is left out (A-126)."""
        if any("\0" in value for _, values in request.GET.lists() for value in values):
            query = request.GET.copy()
            for name, values in request.GET.lists():
                query.setlist(name, [value.replace("\0", "") for value in values])
            request.GET = query  # type: ignore[assignment]
        page: HttpResponse = super().changelist_view(request, extra_context)
        return page

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: object = None
    ) -> HttpResponseRedirect:
        """Lead to the lines of the log about the object (A-392)."""
        query = urlencode({"q": object_id})
        return HttpResponseRedirect(f"{reverse('admin:accounts_adminaction_changelist')}?{query}")


class ReadOnlyAdmin(RoleAdmin):
    """Rows that may be looked at and not touched."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse."""
        return False


def by_of(request: HttpRequest) -> UUID:
    """Return the id of who asks; everybody in the admin is signed in."""
    return UUID(str(request.user.pk))


def id_of(text: str) -> UUID:
    """Return the id in an address; raises `Http404` for another text."""
    try:
        return UUID(text)
    except ValueError:
        raise Http404("There is no such row.") from None


def is_admin(request: HttpRequest) -> bool:
    """Whether an admin asks."""
    return bool(getattr(request.user, "is_admin", False))


def action(*, description: str, url_path: str, permissions: Sequence[str]) -> Callable[[F], F]:
    """Make a method a dialog of a row, at an address of its own; each permission is a method."""
    made = decorators.action(
        description=description, url_path=url_path, permissions=list(permissions)
    )
    return cast("Callable[[F], F]", made)
