"""The list of Users, and the page of one (A-411 to A-444)."""

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse

from accounts.actions import note
from accounts.admin_base import OfferingList, RoleAdmin, action, by_of, id_of
from accounts.models import User
from administration import many_users, one_user
from administration.bulk import change_many
from administration.facts import Facts, facts_of, shown_organization
from administration.filters import EngagementFilter, RoleFilter, StandingFilter, TagFilter
from administration.many_users import ManyUsers
from administration.one_user import offered
from administration.person import person
from administration.user_dialog import UserDialog

BulkAction = Callable[["UserAdmin", HttpRequest, QuerySet[User]], HttpResponse]


class UserList(OfferingList):
    """Reads the facts of the Users on the page that is shown."""

    def look_at(self, request: HttpRequest, rows: list[User]) -> None:
        """Read the facts of the rows."""
        facts = facts_of(rows)
        for user in rows:
            user.facts = facts[user.id]  # type: ignore[attr-defined]


def bulk(what: type[ManyUsers]) -> BulkAction:
    """Return the list's action that opens a dialog for the selected Users."""

    def act(admin_: "UserAdmin", request: HttpRequest, users: QuerySet[User]) -> HttpResponse:
        return change_many(request, users.order_by("email"), what())

    act.__name__ = what.label.lower().replace(" ", "_") + "_selected"
    return admin.action(description=what.label, permissions=["manage"])(act)


@admin.register(User)
class UserAdmin(RoleAdmin):
    """Users by their email; everything is changed through dialogs, never by a raw form."""

    ordering = ("-created_at",)
    list_display = (
        "shown_email",
        "organization_",
        "role_",
        "standing_",
        "tags_",
        "engagement_",
        "last_completion",
        "active_weeks",
        "tokens_30",
        "models_used",
        "budget_",
        "allowance_",
        "keys_",
        "joined",
    )
    list_display_links = ("shown_email",)
    list_filter = (TagFilter, EngagementFilter, StandingFilter, RoleFilter, "team")
    search_fields = ("email",)
    search_help_text = "Email, name or organization"
    list_fullwidth = True
    list_horizontal_scrollbar_top = True
    actions = tuple(bulk(what) for what in many_users.ACTIONS)
    actions_row = tuple(dialog.name for dialog in one_user.ROW)
    actions_detail = tuple(dialog.name for dialog in one_user.ALL)
    fieldsets = (("Details", {"fields": ("organization", "discord_handle", "team")}),)
    change_form_outer_after_template = "administration/person.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a User comes from an approval, an Invite, or a command (A-012, A-013)."""
        return False

    def offered(self, request: HttpRequest, row: User) -> Sequence[str]:
        """Return the row's dialogs that suit a User (U-16)."""
        return offered(row, _facts(row), by_of(request))

    def get_changelist(self, request: HttpRequest, **known: Any) -> type[OfferingList]:
        """Return the list that reads the facts of its page."""
        return UserList

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the Users, with the admin's id at hand for the boxes."""
        self._asked_by = request.user.pk
        users: QuerySet[User] = super().get_queryset(request)
        return users

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[User], search_term: str
    ) -> tuple[QuerySet[User], bool]:
        """Find by a part of the email, the name or the organization that is shown (U-15)."""
        for word in search_term.replace("\0", "").split()[:10]:
            queryset = queryset.alias(applied_from=shown_organization()).filter(
                Q(email__icontains=word)
                | Q(name__icontains=word)
                | Q(organization__icontains=word)
                | Q(organization="", applied_from__icontains=word)
            )
        return queryset, False

    def get_action_choices(
        self, request: HttpRequest, default_choices: Sequence[tuple[str, str]] = ()
    ) -> list[tuple[str, str]]:
        """Name the menu of the bulk actions (A-427)."""
        return [("", "Selected Users"), *super().get_action_choices(request)[1:]]

    @admin.display(description=RoleAdmin.action_checkbox.short_description)
    def action_checkbox(self, obj: User) -> str:
        """Show no box before one's own row and before a deleted User's (A-426)."""
        if obj.deleted_at is not None or obj.pk == self._asked_by:
            return ""
        return str(super().action_checkbox(obj))

    # The columns.

    @admin.display(description="Email", ordering="email")
    def shown_email(self, user: User) -> str:
        """The email, or that there is none any more."""
        return "(deleted)" if user.deleted_at else user.email

    @admin.display(description="Organization")
    def organization_(self, user: User) -> str:
        """What an admin typed, or else the Application's answer (A-416)."""
        return _facts(user).organization

    @admin.display(description="Role")
    def role_(self, user: User) -> str:
        """User, staff or admin."""
        return str(user.role.label)

    @admin.display(description="Standing")
    def standing_(self, user: User) -> str:
        """Active, suspended or deleted."""
        return str(user.standing.label)

    @admin.display(description="Tags")
    def tags_(self, user: User) -> str:
        """The tags in alphabetical order."""
        return ", ".join(_facts(user).tags)

    @admin.display(description="Engagement")
    def engagement_(self, user: User) -> str:
        """How the newest Completion lies back."""
        return str(_facts(user).engagement)

    @admin.display(description="Last Completion")
    def last_completion(self, user: User) -> str:
        """The UTC day of the newest Completion."""
        last = _facts(user).last
        return f"{last:%Y-%m-%d}" if last else ""

    @admin.display(description="Active weeks")
    def active_weeks(self, user: User) -> str:
        """UTC weeks with a Completion."""
        return f"{_facts(user).weeks:,}"

    @admin.display(description="Tokens, 30 days")
    def tokens_30(self, user: User) -> str:
        """Input and output tokens of the last 30 days."""
        return f"{_facts(user).tokens:,}"

    @admin.display(description="Models used")
    def models_used(self, user: User) -> str:
        """Model ids, those with the most tokens first."""
        return ", ".join(_facts(user).models)

    @admin.display(description="Budget")
    def budget_(self, user: User) -> str:
        """What the Budget has left."""
        return f"{_facts(user).budget:,}"

    @admin.display(description="Monthly allowance")
    def allowance_(self, user: User) -> str:
        """Tokens of each month."""
        return f"{_facts(user).allowance:,}"

    @admin.display(description="API keys")
    def keys_(self, user: User) -> str:
        """Keys that are not revoked."""
        return f"{_facts(user).keys:,}"

    @admin.display(description="Joined", ordering="created_at")
    def joined(self, user: User) -> str:
        """The UTC day on which access was given."""
        return f"{user.created_at:%Y-%m-%d}"

    # The page of one User.

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the person whole (A-434)."""
        user = _user(object_id)
        whole = person(user, request.GET)
        suits = offered(user, whole.facts, by_of(request))
        shown = {
            **(extra_context or {}),
            "title": "(deleted User)" if user.deleted_at else user.email,
            "person": whole,
            "show_save_and_continue": False,
            "show_save_and_add_another": False,
            "may_manage": self.has_manage_permission(request),
            "acts": [
                (act.description, reverse(f"admin:{act.action_name}", args=[object_id]))
                for act in self.get_actions_row(request)
                if act.action_name.removeprefix("accounts_user_") in suits
            ],
        }
        page: HttpResponse = super().change_view(request, object_id, form_url, shown)
        return page

    def get_actions_detail(self, request: HttpRequest, object_id: object) -> list[object]:
        """Show none in unfold's own menu: ours stands beside the email (A-438)."""
        return []

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save the details alone, and write down which changed (A-435, A-392)."""
        changed = [name for name in form.changed_data if name in form.cleaned_data]
        if changed:
            User.objects.filter(id=obj.id).update(**{name: getattr(obj, name) for name in changed})
            note(by=request.user.pk, action="Save details", target=obj, details=", ".join(changed))

    def log_change(self, request: HttpRequest, obj: User, message: object) -> None:
        """Leave Django's own log empty: ours has the line already."""


def dialog_of(what: UserDialog) -> Callable[..., HttpResponse]:
    """Return the method of the list that opens a dialog about one User."""

    def show(admin_: UserAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
        return what.show(request, _user(object_id))

    show.__name__ = what.name
    show.__doc__ = what.__doc__
    return action(description=what.label, url_path=what.path, permissions=["manage"])(show)


for _dialog in one_user.ALL:
    setattr(UserAdmin, _dialog.name, dialog_of(_dialog))


def _facts(user: User) -> Facts:
    facts: Facts = user.facts  # type: ignore[attr-defined]
    return facts


def _user(object_id: str) -> User:
    """Return the User of an address, or answer 404."""
    return get_object_or_404(User, id=id_of(object_id))
