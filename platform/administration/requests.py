"""Requests for tokens in the admin (A-404 to A-410)."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse

from accounts.actions import note
from accounts.admin_base import ReadOnlyAdmin, action, by_of, id_of
from accounts.models import User
from accounts.people import Refused
from administration.amounts import Amount, Words
from administration.dialogs import Dialog, Written, show
from billing import token_requests
from billing.amounts import short_amount
from billing.models import Decision, TokenRequest
from billing.token_requests import ANSWER_LENGTH, AlreadyDecided

REQUESTS = "admin:billing_tokenrequest_changelist"


class RejectForm(forms.Form):
    """A note for who asked (A-409)."""

    note = Words(label="Note to them", most=ANSWER_LENGTH, lines=4, required=False)


def approve_form(asked: int) -> type[forms.Form]:
    """Return the form of an approval, with the tokens asked for already in it (A-407)."""

    class ApproveForm(forms.Form):
        tokens = Amount(label="Tokens to grant")

        def __init__(self, data: Mapping[str, Any] | None = None) -> None:
            super().__init__(data, initial={"tokens": short_amount(asked)})

    return ApproveForm


class ByDecision(admin.SimpleListFilter):
    """Requests by what was decided."""

    title = "Status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the three."""
        return [(kind.value, str(kind.label)) for kind in Decision]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[TokenRequest]
    ) -> QuerySet[TokenRequest]:
        """Keep those of one status."""
        value = self.value()
        return queryset.filter(status=value) if value in Decision.values else queryset


@admin.register(TokenRequest)
class TokenRequestAdmin(ReadOnlyAdmin):
    """Requests for tokens, newest first."""

    list_display = ("user", "asked", "project_", "status_", "granted_", "decided", "sent")
    list_filter = (ByDecision,)
    list_select_related = ("user", "decided_by")
    ordering = ("-sent_at",)
    search_fields = ("user__email", "project")
    search_help_text = "Email or project"
    actions = None
    actions_row = ("read", "approve", "reject")
    actions_detail = ("approve", "reject")
    change_form_outer_after_template = "administration/token_request.html"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> tuple[()]:
        """Show the answers by our own page."""
        return ()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show each answer under its question (A-406)."""
        asked = _request(object_id)
        facts = [
            ("Tokens", f"{asked.tokens:,}"),
            ("Models", ", ".join(asked.model_ids)),
            ("Project", asked.project),
            ("Planned usage", asked.planned_usage),
            ("How you got the number", asked.reckoning),
            ("Results", asked.results),
            ("Links", asked.links),
            ("When you need them", asked.needed_when),
        ]
        shown = {
            **(extra_context or {}),
            "asked": asked,
            "facts": facts,
            "title": f"{asked.user.email}: {asked.tokens:,} tokens",
        }
        page: HttpResponse = super().change_view(request, object_id, form_url, shown)
        return page

    def offered(self, request: HttpRequest, row: TokenRequest) -> Sequence[str]:
        """Return what suits a request: it is decided once (A-410), and read at any time."""
        return ("read", "approve", "reject") if row.status == Decision.WAITING else ("read",)

    @admin.display(description="Tokens")
    def asked(self, request_: TokenRequest) -> str:
        """The tokens asked for."""
        return f"{request_.tokens:,}"

    @admin.display(description="Project")
    def project_(self, request_: TokenRequest) -> str:
        """The project, or that none was asked for (A-405)."""
        return request_.project or "None"

    @admin.display(description="Status")
    def status_(self, request_: TokenRequest) -> str:
        """Waiting, approved or rejected."""
        return str(request_.get_status_display())

    @admin.display(description="Tokens granted")
    def granted_(self, request_: TokenRequest) -> str:
        """The tokens that were granted."""
        return "" if request_.granted is None else f"{request_.granted:,}"

    @admin.display(description="Decided")
    def decided(self, request_: TokenRequest) -> str:
        """The UTC day of the decision, and who made it."""
        if request_.decided_at is None:
            return ""
        by = request_.decided_by.email if request_.decided_by else "a command"
        return f"{request_.decided_at:%Y-%m-%d}, {by}"

    @admin.display(description="Sent", ordering="sent_at")
    def sent(self, request_: TokenRequest) -> str:
        """The UTC day on which it was sent."""
        return f"{request_.sent_at:%Y-%m-%d}"

    @action(description="Read the request", url_path="read", permissions=["view"])
    def read(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Open the page with the answers."""
        return self.change_view(request, object_id)

    @action(description="Approve", url_path="approve", permissions=["decide"])
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Grant tokens, once (A-407, A-408)."""
        asked = _request(object_id)

        def do(written: Written) -> str:
            assert isinstance(request.user, User)
            try:
                token_requests.approve(
                    request_id=asked.id, tokens=written["tokens"], by=request.user
                )
            except AlreadyDecided:
                raise Refused(_decided(asked)) from None
            granted = f"{written['tokens']:,}"
            note(by=by_of(request), action="Approve", target=asked, details=granted)
            note(by=by_of(request), action="Grant tokens", target=asked.user, details=granted)
            return f"{granted} tokens are in the Budget of {asked.user.email}."

        return show(
            request,
            Dialog(
                title=f"Approve the request of {asked.user.email}",
                action="Approve",
                says=[f"{asked.project or 'None'}: {asked.planned_usage[:500]}"],
                button="Approve",
                do=do,
                back=reverse(REQUESTS),
                form=approve_form(asked.tokens),
            ),
        )

    @action(description="Reject", url_path="reject", permissions=["decide"])
    def reject(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Decide against it, with a note if wanted (A-409)."""
        asked = _request(object_id)

        def do(written: Written) -> str:
            assert isinstance(request.user, User)
            try:
                token_requests.reject(request_id=asked.id, by=request.user, note=written["note"])
            except AlreadyDecided:
                raise Refused(_decided(asked)) from None
            note(by=by_of(request), action="Reject", target=asked)
            return f"The request of {asked.user.email} is rejected."

        return show(
            request,
            Dialog(
                title=f"Reject the request of {asked.user.email}",
                action="Reject",
                says=["They read the note with their request, and an email tells them."],
                button="Reject",
                do=do,
                back=reverse(REQUESTS),
                form=RejectForm,
                danger=True,
            ),
        )


def _request(object_id: str) -> TokenRequest:
    rows = TokenRequest.objects.select_related("user", "decided_by")
    return get_object_or_404(rows, id=id_of(object_id))


def _decided(asked: TokenRequest) -> str:
    """Return who decided a request before (A-410)."""
    asked.refresh_from_db()
    by = asked.decided_by.email if asked.decided_by else "a command"
    return f"It was {asked.status} already, by {by}."
