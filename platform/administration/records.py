"""Tags, mails, feedback and the log in the admin, to read; and the cancel of a harvest."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts.actions import note
from accounts.admin_base import ReadOnlyAdmin, by_of, id_of
from accounts.models import AdminAction, Mail, Tag, User
from accounts.people import Refused
from administration.dialogs import Dialog, Written, show
from administration.site import add_page, admins_only
from administration.user_dialog import page_of
from completions.failures import Failure
from feedback.models import Note, Screenshot
from harvests.cancelling import cancel
from harvests.models import Harvest


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


KINDS = (
    "access.application",
    "access.invite",
    "accounts.apikey",
    "accounts.user",
    "billing.spendstop",
    "billing.tokenrequest",
    "harvests.harvest",
    "operations.warmwindow",
)
"""What lines of the log are about."""


class ByKind(admin.SimpleListFilter):
    """Lines of the log about one kind of object; the kinds are known, and not counted."""

    title = "What"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the kinds."""
        return [(kind, kind.partition(".")[2]) for kind in KINDS]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AdminAction]
    ) -> QuerySet[AdminAction]:
        """Keep those of one kind."""
        value = self.value()
        return queryset.filter(kind=value) if value in KINDS else queryset


@admin.register(AdminAction)
class AdminActionAdmin(ReadOnlyAdmin):
    """The log of what people with a role did (A-392)."""

    list_display = ("at", "by_", "action", "kind", "target", "details")
    list_display_links = None
    list_filter = (ByKind,)
    list_select_related = ("by",)
    ordering = ("-id",)
    search_fields = ("target_id",)
    search_help_text = "Id of what was changed, or email of who did it"
    actions = None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AdminAction], search_term: str
    ) -> tuple[QuerySet[AdminAction], bool]:
        """Find by what an index knows: who did it, or the kind and id of what was changed."""
        term = search_term.replace("\0", "").strip()
        if "@" in term:
            ids = User.objects.filter(email=term).values_list("id", flat=True)[:1]
            return queryset.filter(by__in=list(ids)), False
        if term:
            queryset = queryset.filter(kind__in=KINDS, target_id=term)
        return queryset, False

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
            action="Cancel",
            says=[f"{harvest.id}, {harvest.model}, {harvest.n_prompts:,} prompts."],
            button="Cancel the harvest",
            do=do,
            back=page_of(harvest.user_id),
            danger=True,
        ),
    )


add_page("feedback/screenshot/<uuid:screenshot_id>", screenshot, "feedback_screenshot")
add_page("harvests/<uuid:harvest_id>/cancel", cancel_harvest, "cancel_harvest")
