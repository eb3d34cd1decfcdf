"""API keys in the admin: read, granted tokens, paused, resumed and revoked (A-440, A-444)."""

from collections.abc import Callable, Sequence
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from accounts.actions import note
from accounts.admin_base import ReadOnlyAdmin, action, by_of, id_of
from accounts.keys import pause_key, resume_key, revoke_key
from accounts.models import ApiKey, User
from accounts.people import Refused
from administration.bulk import BulkDialog, change_many
from administration.dialogs import Dialog, Written, show
from administration.user_dialog import page_of
from administration.user_forms import TokensForm
from billing.grants import grant_to_key

BulkAction = Callable[["ApiKeyAdmin", HttpRequest, QuerySet[ApiKey]], HttpResponse]


class ManyKeys(BulkDialog[ApiKey]):
    """A bulk action on API keys; a revoked one stays as it is (C-013)."""

    noun = "API key"

    def named(self, row: ApiKey) -> str:
        """Call a key by its prefix and name."""
        return f"{row.prefix} {row.name}"

    def why_not(self, row: ApiKey, by: User) -> str:
        """Leave out what is revoked."""
        return "is revoked already." if row.revoked_at is not None else ""


class Pause(ManyKeys):
    """Refuse keys until they are resumed."""

    label, verb = "Pause", "paused"

    def why_not(self, row: ApiKey, by: User) -> str:
        """Leave out what is paused."""
        return super().why_not(row, by) or ("is paused already." if row.paused_at else "")

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Pause."""
        for key_id in ids:
            pause_key(key_id=key_id)
        return list(ids)


class Resume(ManyKeys):
    """Accept paused keys again."""

    label, verb = "Resume", "resumed"

    def why_not(self, row: ApiKey, by: User) -> str:
        """Leave out what is not paused."""
        return super().why_not(row, by) or ("" if row.paused_at else "is not paused.")

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Resume."""
        for key_id in ids:
            resume_key(key_id=key_id)
        return list(ids)


class Revoke(ManyKeys):
    """End keys for good."""

    label, verb, danger = "Revoke", "revoked, now and for good", True

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Revoke."""
        for key_id in ids:
            revoke_key(key_id=key_id)
        return list(ids)


def bulk(what: type[ManyKeys]) -> BulkAction:
    """Return the list's action that opens a dialog for the selected keys."""

    def act(admin_: "ApiKeyAdmin", request: HttpRequest, keys: QuerySet[ApiKey]) -> HttpResponse:
        return change_many(request, keys, what())

    act.__name__ = what.label.lower()
    description = f"{what.label} the selected API keys"
    return admin.action(description=description, permissions=["manage"])(act)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """API keys, newest first; a secret is shown nowhere (A-444)."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "status")
    list_filter = (
        ("paused_at", admin.EmptyFieldListFilter),
        ("revoked_at", admin.EmptyFieldListFilter),
    )
    list_select_related = ("user",)
    ordering = ("-created_at",)
    search_fields = ("prefix__startswith", "name", "user__email")
    fields = ("id", "user", "prefix", "name", "created_at", "last_used_at", "paused_at")
    readonly_fields = fields
    actions = tuple(bulk(what) for what in (Pause, Resume, Revoke))
    actions_row = ("grant",)

    def offered(self, request: HttpRequest, row: ApiKey) -> Sequence[str]:
        """Return what suits a key: a revoked one gets nothing more."""
        return ("grant",) if row.revoked_at is None else ()

    @admin.display(description="Status")
    def status(self, key: ApiKey) -> str:
        """Active, paused or revoked."""
        if key.revoked_at is not None:
            return "Revoked"
        return "Active" if key.paused_at is None else "Paused"

    @action(description="Grant tokens", url_path="grant", permissions=["manage"])
    def grant(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add to the key's own Budget; the first Grant makes it (A-440)."""
        key = get_object_or_404(ApiKey.objects.select_related("user"), id=id_of(object_id))

        def do(written: Written) -> str:
            if key.revoked_at is not None:
                raise Refused("The API key is revoked.")
            tokens = int(written["tokens"])
            grant_to_key(key_id=key.id, tokens=tokens, by=by_of(request))
            note(by=by_of(request), action="Grant tokens", target=key, details=f"{tokens:,}")
            return f"{tokens:,} tokens were added to the own Budget of {key.name}."

        return show(
            request,
            Dialog(
                title=f"Grant tokens to the API key {key.name} of {key.user.email}",
                action="Grant tokens",
                says=[
                    "The key has a Budget of its own from its first Grant on. Then it stops when "
                    "either that Budget or the User's tokens cannot hold a request."
                ],
                button="Grant tokens",
                do=do,
                back=page_of(key.user_id),
                form=TokensForm,
            ),
        )
