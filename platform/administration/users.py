"""The list of Users, and the page of one (A-411 to A-444)."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from unfold.views import ChangeList as UnfoldChangeList

from accounts.actions import note
from accounts.admin_base import RoleAdmin, action, id_of
from accounts.models import Role, User
from administration import user_dialogs as dialogs
from administration.dialogs import Written
from administration.facts import Facts, facts_of, shown_organization
from administration.filters import EngagementFilter, RoleFilter, StandingFilter, TagFilter
from administration.person import person

BulkAction = Callable[["UserAdmin", HttpRequest, QuerySet[User]], HttpResponse]


class UserList(UnfoldChangeList):  # type: ignore[misc]
    """Reads the facts of the Users on the page that is shown."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then what its rows tell."""
        super().get_results(request)
        users: list[User] = list(self.result_list)  # type: ignore[has-type]
        facts = facts_of(users)
        for user in users:
            user.facts = facts[user.id]  # type: ignore[attr-defined]
        self.result_list = users


def bulk(what: type[dialogs.Many]) -> BulkAction:
    """Return the list's action that opens a dialog for the selected Users."""

    def act(admin_: "UserAdmin", request: HttpRequest, users: QuerySet[User]) -> HttpResponse:
        return dialogs.many(request, users, what())

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
    actions = tuple(
        bulk(what)
        for what in (
            dialogs.Suspend,
            dialogs.Restore,
            dialogs.AddTag,
            dialogs.RemoveTag,
            dialogs.SetAllowance,
            dialogs.Delete,
        )
    )
    actions_row = (
        "grant_tokens",
        "set_the_budget",
        "set_allowance",
        "add_tag",
        "remove_tag",
        "suspend",
        "restore",
        "make_admin",
        "make_staff",
        "remove_role",
        "delete_user",
    )
    actions_detail = ({"title": "Actions", "items": [*actions_row, "harvest_quota", "remark"]},)
    fieldsets = (("Details", {"fields": ("organization", "discord_handle", "team")}),)
    change_form_outer_after_template = "administration/person.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a User comes from an approval, an Invite, or a command (A-012, A-013)."""
        return False

    def get_changelist(self, request: HttpRequest, **known: Any) -> type[ChangeList]:
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
        shown = {
            **(extra_context or {}),
            "title": "(deleted User)" if user.deleted_at else user.email,
            "person": person(user, request.GET),
            "show_save_and_continue": False,
            "show_save_and_add_another": False,
            "may_manage": self.has_manage_permission(request),
            "acts": [
                (act.description, reverse(f"admin:{act.action_name}", args=[object_id]))
                for act in self.get_actions_row(request)
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

    # Dialogs about one User.

    @action(description="Grant tokens", url_path="grant", permissions=["manage"])
    def grant_tokens(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add to the Budget."""
        return self._tokens(request, object_id, "Grant tokens", dialogs.grant_one)

    @action(description="Set the Budget", url_path="budget", permissions=["manage"])
    def set_the_budget(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Replace the Budget."""
        return self._tokens(request, object_id, "Set the Budget", dialogs.set_budget_one)

    @action(description="Set the monthly allowance", url_path="allowance", permissions=["manage"])
    def set_allowance(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Set the allowance of this and later months."""
        return self._tokens(
            request, object_id, "Set the monthly allowance", dialogs.set_allowance_one
        )

    @action(description="Add tag", url_path="add-tag", permissions=["manage"])
    def add_tag(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give the User a tag."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Add a tag to {user.email}",
            says=[f"Tags: {', '.join(dialogs.tags_of(user)) or 'none'}."],
            button="Add tag",
            form=dialogs.TagForm,
            do=lambda by, written: dialogs.add_tag_one(user, by, written),
        )

    @action(description="Remove tag", url_path="remove-tag", permissions=["manage"])
    def remove_tag(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Take a tag off the User."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Remove a tag from {user.email}",
            says=[f"Tags: {', '.join(dialogs.tags_of(user)) or 'none'}."],
            button="Remove tag",
            form=dialogs.had_tags(User.objects.filter(id=user.id)),
            do=lambda by, written: dialogs.remove_tag_one(user, by, written),
        )

    @action(description="Suspend", url_path="suspend", permissions=["manage"])
    def suspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """End the User's access until a restore."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Suspend {user.email}",
            says=[
                "Every session ends, every API key is refused, and work that waits fails. "
                "No email goes out. A restore brings the sign-in and the keys back."
            ],
            button="Suspend",
            danger=True,
            do=lambda by, written: dialogs.suspend_one(user, by, written),
        )

    @action(description="Restore", url_path="restore", permissions=["manage"])
    def restore(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give the access back."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Restore {user.email}",
            says=["The sign-in and the API keys work again. Work that failed does not run again."],
            button="Restore",
            do=lambda by, written: dialogs.restore_one(user, by, written),
        )

    @action(description="Make admin", url_path="make-admin", permissions=["manage"])
    def make_admin(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let the User change everything here."""
        return self._role(request, object_id, Role.ADMIN, "may change everything in the admin")

    @action(description="Make staff", url_path="make-staff", permissions=["manage"])
    def make_staff(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let the User decide and read."""
        return self._role(
            request,
            object_id,
            Role.STAFF,
            "may decide Applications and token requests, and read the rest of the admin",
        )

    @action(description="Remove admin", url_path="remove-role", permissions=["manage"])
    def remove_role(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Take the role away."""
        return self._role(request, object_id, Role.USER, "may not open the admin any more")

    @action(description="Delete", url_path="delete-user", permissions=["manage"])
    def delete_user(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Delete the User (A-495, U-35)."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Delete {user.email}",
            says=[
                "Sign-in, sessions, API keys, linked providers, tags and the name end now. What "
                "the User wrote is erased later; rows that count tokens stay. The address can "
                "apply again. This cannot be undone."
            ],
            button="Delete",
            danger=True,
            guarded=True,
            typed="delete 1 User",
            do=lambda by, written: dialogs.delete_one(user, by, written),
        )

    @action(description="Set the number of harvests", url_path="harvests", permissions=["manage"])
    def harvest_quota(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Set how many harvests a month the User's keys may start (A-442)."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Harvests a month for the API keys of {user.email}",
            says=[f"The default is {settings.BASALT.harvests_per_month:,} a month."],
            button="Set the number",
            form=dialogs.QuotaForm,
            do=lambda by, written: dialogs.set_quota_one(user, by, written),
        )

    @action(description="Write a remark", url_path="remark", permissions=["manage"])
    def remark(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Write a remark that only people with a role read (A-586)."""
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"A remark about {user.email}",
            says=["It is kept with your name and the time; the User never sees it."],
            button="Write",
            form=dialogs.RemarkForm,
            do=lambda by, written: dialogs.remark_one(user, by, written),
        )

    def _tokens(
        self,
        request: HttpRequest,
        object_id: str,
        title: str,
        do: Callable[[User, UUID, Written], str],
    ) -> HttpResponse:
        user = _user(object_id)
        facts = facts_of([user])[user.id]
        form = {
            "Grant tokens": dialogs.TokensForm,
            "Set the Budget": dialogs.BudgetForm,
            "Set the monthly allowance": dialogs.AllowanceForm,
        }[title]
        return dialogs.one(
            request,
            user,
            title=f"{title}: {user.email}",
            says=[
                f"The Budget has {facts.budget:,} tokens left, and the monthly allowance is "
                f"{facts.allowance:,}."
            ],
            button=title,
            form=form,
            do=lambda by, written: do(user, by, written),
        )

    def _role(self, request: HttpRequest, object_id: str, role: Role, told: str) -> HttpResponse:
        user = _user(object_id)
        return dialogs.one(
            request,
            user,
            title=f"Make {user.email} {_article(role)}",
            says=[f"{user.email} {told}."],
            button="Confirm",
            danger=role == Role.USER,
            guarded=True,
            do=dialogs.role_one(user, role),
        )


def _article(role: Role) -> str:
    return {Role.ADMIN: "an admin", Role.STAFF: "staff", Role.USER: "a plain User"}[role]


def _facts(user: User) -> Facts:
    facts: Facts = user.facts  # type: ignore[attr-defined]
    return facts


def _user(object_id: str) -> User:
    """Return the User of an address, or answer 404."""
    return get_object_or_404(User, id=id_of(object_id))
