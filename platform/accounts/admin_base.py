"""What the lists of the admin share: who may do what, and no count over a long history.

Admins change; staff decide and read (issue: roles). A list counts no further than `MOST_ROWS`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import urlencode
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from unfold import decorators
from unfold.admin import ModelAdmin
from unfold.views import ChangeList

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


class OfferingList(ChangeList):  # type: ignore[misc]
    """A list whose rows know which of its dialogs suit them."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then what the menu of each row offers."""
        super().get_results(request)
        self.result_list = list(self.result_list)  # type: ignore[has-type]
        self.look_at(request, self.result_list)
        for row in self.result_list:
            names = self.model_admin.offered(request, row)
            row.offered = None if names is None else [self.address_of(name) for name in names]

    def look_at(self, request: HttpRequest, rows: list[Any]) -> None:
        """Read what else the rows of the page tell."""

    def address_of(self, name: str) -> str:
        """Return the name of a dialog's address, as the template asks for it."""
        return f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"


class RoleAdmin(ModelAdmin):  # type: ignore[misc]
    """Rows that everybody with a role reads, and only admins change."""

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    compressed_fields = True
    list_filter_submit = True

    def get_changelist(self, request: HttpRequest, **known: Any) -> type[OfferingList]:
        """Return the list whose rows know their dialogs."""
        return OfferingList

    def offered(self, request: HttpRequest, row: Any) -> Sequence[str] | None:
        """Return the names of the dialogs that suit a row now; None where all do."""
        return None

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Return the dialogs that the page of a row leads to: those that suit it."""
        acts: list[Any] = super().get_actions_detail(request, object_id)
        row = self.get_object(request, object_id) if acts else None
        names = self.offered(request, row) if row is not None else None
        if names is None:
            return acts
        before = f"{self.opts.app_label}_{self.opts.model_name}_"
        return [act for act in acts if act.action_name.removeprefix(before) in names]

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
