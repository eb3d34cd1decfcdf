"""API keys, tags, mails, feedback and the log in the admin; most of it only to read."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts.actions import note, note_many
from accounts.admin_base import ReadOnlyAdmin, action, by_of, id_of
from accounts.keys import pause_key, resume_key, revoke_key
from accounts.models import AdminAction, ApiKey, Mail, Tag, User
from accounts.people import Refused
from administration.dialogs import Dialog, Written, show
from administration.site import add_page, admins_only
from administration.user_dialogs import TokensForm, page_of
from billing.grants import grant_to_key
from completions.failures import Failure
from feedback.models import Note, Screenshot
from harvests.cancelling import cancel
from harvests.models import Harvest


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """API keys, to be paused or revoked; a secret is shown nowhere (A-444)."""

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
    actions = ("pause", "resume", "revoke")
    actions_row = ("grant",)

    @admin.display(description="Status")
    def status(self, key: ApiKey) -> str:
        """Active, paused or revoked."""
        if key.revoked_at is not None:
            return "Revoked"
        return "Active" if key.paused_at is None else "Paused"

    @admin.action(description="Pause the selected API keys", permissions=["manage"])
    def pause(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        """Refuse the keys until they are resumed."""
        for key in keys:
            pause_key(key_id=key.id)
        note_many(by=by_of(request), action="Pause", targets=keys)

    @admin.action(description="Resume the selected API keys", permissions=["manage"])
    def resume(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        """Accept paused keys again."""
        for key in keys:
            resume_key(key_id=key.id)
        note_many(by=by_of(request), action="Resume", targets=keys)

    @admin.action(description="Revoke the selected API keys for good", permissions=["manage"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> HttpResponse:
        """End the keys, after a dialog."""
        chosen = list(keys)
        live = [key for key in chosen if key.revoked_at is None]

        def do(written: Written) -> str:
            for key in live:
                revoke_key(key_id=key.id)
            note_many(by=by_of(request), action="Revoke", targets=live)
            return f"{len(live)} API keys are revoked."

        return show(
            request,
            Dialog(
                title=f"Revoke {len(live)} API keys",
                says=["They stop working now and for good."],
                button="Revoke",
                do=do,
                back=request.get_full_path(),
                left_out=[(str(key), "is revoked already.") for key in chosen if key.revoked_at],
                danger=True,
                carried=[
                    (name, value)
                    for name in ("action", "select_across", "index", "_selected_action")
                    for value in request.POST.getlist(name)
                ],
                works=bool(live),
            ),
        )

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


@admin.register(Tag)
class TagAdmin(ReadOnlyAdmin):
    """Tags, with how many Users have each."""

    list_display = ("name", "users")
    list_display_links = None
    search_fields = ("name",)
    ordering = ("name",)
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tag]:
        """Return the tags with their counts."""
        tags: QuerySet[Tag] = super().get_queryset(request)
        return tags.annotate(count=Count("user_tags"))

    @admin.display(description="Users")
    def users(self, tag: Tag) -> SafeString:
        """Link to who has it."""
        address = reverse("admin:accounts_user_changelist")
        count: int = tag.count  # type: ignore[attr-defined]
        return format_html('<a href="{}?tag={}">{}</a>', address, tag.name, f"{count:,}")


@admin.register(Mail)
class MailAdmin(ReadOnlyAdmin):
    """Mails on their way and sent; their words are not kept."""

    list_display = ("created_at", "kind", "to", "subject", "attempts", "sent_at", "error")
    list_display_links = None
    list_filter = ("kind", ("sent_at", admin.EmptyFieldListFilter))
    ordering = ("-created_at",)
    search_fields = ("to__startswith",)
    actions = None


@admin.register(AdminAction)
class AdminActionAdmin(ReadOnlyAdmin):
    """The log of what people with a role did (A-392)."""

    list_display = ("at", "by_", "action", "kind", "target", "details")
    list_display_links = None
    list_filter = ("kind",)
    list_select_related = ("by",)
    ordering = ("-id",)
    search_fields = ("target_id__exact", "by__email__exact")
    search_help_text = "Id of what was changed, or email of who did it"
    actions = None

    @admin.display(description="By")
    def by_(self, line: AdminAction) -> str:
        """Who did it."""
        return line.by.email if line.by else "a command"

    @admin.display(description="What")
    def target(self, line: AdminAction) -> str | SafeString:
        """The object's id, with a link where it has a page."""
        if line.kind == "accounts.user":
            return format_html(
                '<a href="{}">{}</a>', page_of(id_of(line.target_id)), line.target_id
            )
        return line.target_id


@admin.register(Note)
class NoteAdmin(ReadOnlyAdmin):
    """Feedback, newest first (A-445)."""

    list_display = ("kind", "beginning", "page", "submitted", "sender", "linear")
    list_display_links = ("beginning",)
    list_filter = ("kind",)
    list_select_related = ("user",)
    ordering = ("-sent_at",)
    search_fields = ("text", "page", "user__email")
    actions = None
    change_form_outer_after_template = "administration/note.html"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> tuple[()]:
        """Show the note by our own page."""
        return ()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show a note with its screenshots, errors and request ids (A-446)."""
        found = get_object_or_404(Note.objects.select_related("user"), id=id_of(object_id))
        shown = {**(extra_context or {}), "note": found, "title": str(found.get_kind_display())}
        page: HttpResponse = super().change_view(request, object_id, form_url, shown)
        return page

    @admin.display(description="Text")
    def beginning(self, found: Note) -> str:
        """The beginning of the text."""
        return found.text if len(found.text) <= 160 else f"{found.text[:159]}…"

    @admin.display(description="Submitted", ordering="sent_at")
    def submitted(self, found: Note) -> str:
        """The UTC day on which it was sent."""
        return f"{found.sent_at:%Y-%m-%d}"

    @admin.display(description="User")
    def sender(self, found: Note) -> str:
        """Who sent it, or that nobody says."""
        return found.user.email if found.user else "Anonymous"

    @admin.display(description="Linear")
    def linear(self, found: Note) -> str | SafeString:
        """The link to its issue."""
        if found.issue_url.startswith(("https://", "http://")):
            return format_html('<a href="{}" rel="noopener">{}</a>', found.issue_url, "Issue")
        return "Made" if found.issue_id else "Waits"


def screenshot(request: HttpRequest, screenshot_id: UUID) -> FileResponse:
    """Answer a screenshot with its type and nothing that a browser could run (A-446)."""
    found = get_object_or_404(Screenshot, id=screenshot_id)
    try:
        data = found.file.open("rb")
    except OSError:
        raise Http404("The file of the screenshot is gone.") from None
    answer = FileResponse(data, content_type=f"image/{found.format.lower()}")
    answer.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    answer.headers["X-Content-Type-Options"] = "nosniff"
    return answer


@admins_only
def cancel_harvest(request: HttpRequest, harvest_id: UUID) -> HttpResponse:
    """Cancel a User's harvest (A-443)."""
    harvest = get_object_or_404(Harvest, id=harvest_id)
    assert isinstance(request.user, User)

    def do(written: Written) -> str:
        try:
            cancel(harvest_id=harvest.id, user_id=harvest.user_id)
        except Failure as failure:
            raise Refused(failure.message) from None
        note(by=by_of(request), action="Cancel", target=harvest)
        return "The harvest is cancelled."

    return show(
        request,
        Dialog(
            title="Cancel the harvest",
            says=[f"{harvest.id}, {harvest.model}, {harvest.n_prompts:,} prompts."],
            button="Cancel the harvest",
            do=do,
            back=page_of(harvest.user_id),
            danger=True,
        ),
    )


add_page("feedback/screenshot/<uuid:screenshot_id>", screenshot, "feedback_screenshot")
add_page("harvests/<uuid:harvest_id>/cancel", cancel_harvest, "cancel_harvest")
