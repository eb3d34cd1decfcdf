"""Applications and Invites in the admin (A-393 to A-403)."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone

from access import decisions, invites
from access.decisions import Terms
from access.models import Application, ApplicationStatus, Invite
from accounts.actions import note
from accounts.admin_base import ReadOnlyAdmin, action, by_of, id_of
from accounts.people import Refused
from administration.amounts import Addresses, Amount, TagField
from administration.dialogs import Dialog, Written, show

APPLICATIONS = "admin:access_application_changelist"
INVITES = "admin:access_invite_changelist"


class ApproveForm(forms.Form):
    """What an approval gives beside access (A-024, A-025)."""

    tokens = Amount(
        label="Tokens to grant",
        required=False,
        help_text="Added to the Budget, such as 50K; empty is none.",
    )
    allowance = Amount(
        label="Monthly allowance",
        zero=True,
        required=False,
        help_text="Empty is the default of this deployment.",
    )


class InviteForm(forms.Form):
    """Invites for several addresses at once (A-014, U-02)."""

    emails = Addresses()
    tokens = Amount(
        label="Tokens", required=False, help_text="The Budget that each starts with; empty is none."
    )
    tag = TagField(required=False)


class ByStatus(admin.SimpleListFilter):
    """Applications by what was decided."""

    title = "Status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the three."""
        return [(kind.value, str(kind.label)) for kind in ApplicationStatus]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[Application]
    ) -> QuerySet[Application]:
        """Keep those of one status."""
        value = self.value()
        return queryset.filter(status=value) if value in ApplicationStatus.values else queryset


@admin.register(Application)
class ApplicationAdmin(ReadOnlyAdmin):
    """Applications, newest first; a decision is a dialog."""

    list_display = (
        "email",
        "name",
        "organization",
        "planned",
        "status_",
        "submitted",
        "reviewed",
    )
    list_filter = (ByStatus,)
    list_select_related = ("reviewed_by",)
    ordering = ("-submitted_at",)
    search_fields = ("email", "name", "organization")
    search_help_text = "Email, name or organization"
    fieldsets = ()
    change_form_outer_after_template = "administration/application.html"
    actions = None
    actions_row = ("approve", "reject", "send_again")
    actions_detail = ("approve", "reject", "send_again")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> tuple[()]:
        """Show the answers by our own page, each under its question (A-394)."""
        return ()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show an Application with each answer."""
        application = _application(object_id)
        shown = {**(extra_context or {}), "application": application, "title": application.email}
        page: HttpResponse = super().change_view(request, object_id, form_url, shown)
        return page

    def offered(self, request: HttpRequest, row: Application) -> Sequence[str]:
        """Return what suits an Application: a decision while open, the email once approved."""
        by_status = {
            ApplicationStatus.OPEN.value: ("approve", "reject"),
            ApplicationStatus.APPROVED.value: ("send_again",),
        }
        return by_status.get(row.status, ())

    @admin.display(description="Planned usage")
    def planned(self, application: Application) -> str:
        """The beginning of what is planned."""
        text = application.planned_usage
        return text if len(text) <= 120 else f"{text[:119]}…"

    @admin.display(description="Status")
    def status_(self, application: Application) -> str:
        """Open, approved or rejected."""
        return str(application.get_status_display())

    @admin.display(description="Submitted", ordering="submitted_at")
    def submitted(self, application: Application) -> str:
        """The UTC day on which it was sent."""
        return f"{application.submitted_at:%Y-%m-%d}"

    @admin.display(description="Reviewed", ordering="reviewed_at")
    def reviewed(self, application: Application) -> str:
        """The UTC day of the decision, and who made it (A-028)."""
        if application.reviewed_at is None:
            return ""
        by = application.reviewed_by.email if application.reviewed_by else "a command"
        return f"{application.reviewed_at:%Y-%m-%d}, {by}"

    @action(description="Approve", url_path="approve", permissions=["decide"])
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make the User and mail the link (A-395)."""
        application = _application(object_id)

        def do(written: Written) -> str:
            terms = Terms(allowance=written.get("allowance"), tokens=written.get("tokens") or 0)
            user = decisions.approve(application_id=application.id, terms=terms, by=by_of(request))
            note(by=by_of(request), action="Approve", target=application)
            note(by=by_of(request), action="Approved", target=user)
            return f"{user.email} has access, and a link to choose a password is on its way."

        may_give = self.has_manage_permission(request)
        return show(
            request,
            Dialog(
                title=f"Approve {application.email}",
                action="Approve",
                says=[f"{application.name}, {application.organization}"],
                button="Approve",
                do=do,
                back=reverse(APPLICATIONS),
                form=ApproveForm if may_give else forms.Form,
            ),
        )

    @action(description="Reject", url_path="reject", permissions=["decide"])
    def reject(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Decide against it; the applicant may apply again (A-396)."""
        application = _application(object_id)

        def do(written: Written) -> str:
            decisions.reject(application_id=application.id, by=by_of(request))
            note(by=by_of(request), action="Reject", target=application)
            return f"{application.email} was rejected and may apply again."

        return show(
            request,
            Dialog(
                title=f"Reject {application.email}",
                action="Reject",
                says=["An email says so and links to the Apply form."],
                button="Reject",
                do=do,
                back=reverse(APPLICATIONS),
                danger=True,
            ),
        )

    @action(description="Send the email again", url_path="again", permissions=["decide"])
    def send_again(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Mail a new link; the older one ends (A-397)."""
        application = _application(object_id)

        def do(written: Written) -> str:
            decisions.send_again(application_id=application.id)
            note(by=by_of(request), action="Send the email again", target=application)
            return f"A new link is on its way to {application.email}; older ones do not work."

        return show(
            request,
            Dialog(
                title=f"Send the approval email to {application.email} again",
                action="Send the email again",
                says=["Its new link ends the older one."],
                button="Send",
                do=do,
                back=reverse(APPLICATIONS),
            ),
        )


class InviteStatus(admin.SimpleListFilter):
    """Invites by what became of them."""

    title = "Status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the four."""
        return [(name.lower(), name) for name in ("Open", "Used", "Expired", "Withdrawn")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Invite]) -> QuerySet[Invite]:
        """Keep those of one status."""
        unused = Q(used_at=None, withdrawn_at=None)
        match self.value():
            case "open":
                return queryset.filter(unused, expires_at__gt=timezone.now())
            case "used":
                return queryset.filter(used_at__isnull=False)
            case "expired":
                return queryset.filter(unused, expires_at__lte=timezone.now())
            case "withdrawn":
                return queryset.filter(withdrawn_at__isnull=False)
        return queryset


@admin.register(Invite)
class InviteAdmin(ReadOnlyAdmin):
    """Invites, newest first (A-402)."""

    list_display = ("email", "sent", "sent_by", "tokens_", "tag", "status_")
    list_display_links = None
    list_filter = (InviteStatus,)
    list_select_related = ("sent_by",)
    ordering = ("-sent_at",)
    search_fields = ("email", "tag")
    actions = None
    actions_row = ("withdraw",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Admins invite."""
        return self.has_manage_permission(request)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Make Invites for several addresses (A-400)."""
        if not self.has_add_permission(request):
            raise PermissionDenied("Admins invite.")

        def do(written: Written) -> str:
            made, refused = invites.invite(
                emails=written["emails"],
                tokens=written["tokens"] or 0,
                tag=written["tag"],
                by=by_of(request),
            )
            for each in made:
                note(by=by_of(request), action="Invite", target=each)
            if not made:
                raise Refused(" ".join(refused))
            for line in refused:
                messages.warning(request, line)
            return f"{len(made)} Invite{'s are' if len(made) != 1 else ' is'} on the way."

        return show(
            request,
            Dialog(
                title="Invite people",
                action="Invite",
                says=["Each address gets an email with a link that sets the person up at once."],
                button="Send the Invites",
                do=do,
                back=reverse(INVITES),
                form=InviteForm,
            ),
        )

    def offered(self, request: HttpRequest, row: Invite) -> Sequence[str]:
        """Return what suits an Invite: only an open one is withdrawn."""
        return ("withdraw",) if row.status == "Open" else ()

    @admin.display(description="Sent", ordering="sent_at")
    def sent(self, invite_: Invite) -> str:
        """The UTC day on which it was sent."""
        return f"{invite_.sent_at:%Y-%m-%d}"

    @admin.display(description="Tokens")
    def tokens_(self, invite_: Invite) -> str:
        """The Budget that it gives."""
        return f"{invite_.tokens:,}"

    @admin.display(description="Status")
    def status_(self, invite_: Invite) -> str:
        """Open, used, expired or withdrawn."""
        return invite_.status

    @action(description="Withdraw", url_path="withdraw", permissions=["manage"])
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make an open Invite's link do nothing (A-403)."""
        found = get_object_or_404(Invite, id=id_of(object_id))

        def do(written: Written) -> str:
            invites.withdraw(invite_id=found.id)
            note(by=by_of(request), action="Withdraw", target=found)
            return f"The Invite of {found.email} is withdrawn."

        return show(
            request,
            Dialog(
                title=f"Withdraw the Invite of {found.email}",
                action="Withdraw",
                says=["Its link makes nothing any more. No email says so."],
                button="Withdraw",
                do=do,
                back=reverse(INVITES),
                danger=True,
            ),
        )


def _application(object_id: str) -> Application:
    if not object_id.isdecimal():
        return get_object_or_404(Application, id=None)
    return get_object_or_404(Application.objects.select_related("reviewed_by"), id=int(object_id))
