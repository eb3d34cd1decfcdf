"""What the page Usage writes in its own way."""

from urllib.parse import urlencode

from django import template

from billing.models import EntryKind, Hold
from pages.usage import Choice

register = template.Library()

CHANGES = {
    EntryKind.GRANT: "Grant",
    EntryKind.INVITE: "Invite",
    EntryKind.SET: "Set by an admin",
}


@register.filter
def with_key(choice: Choice, key_id: str) -> str:
    """Return the address of the same view for one key (A-195)."""
    return "?" + urlencode(choice.query(key=key_id))


@register.filter
def duration(hold: Hold) -> str:
    """Write how long a Completion took, from start to end; a dash while it runs (A-200)."""
    if hold.ended_at is None:
        return "–"
    seconds = (hold.ended_at - hold.opened_at).total_seconds()
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {rest:02} s"


@register.filter
def change_label(kind: str) -> str:
    """Name a change of a Budget (A-205)."""
    return CHANGES[EntryKind(kind)]
