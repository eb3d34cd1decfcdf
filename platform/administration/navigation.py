"""The row of tabs above the admin's pages, and the menu beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse


@dataclass(frozen=True)
class Entry:
    """One link: its label, the name of its address, and its icon in the menu."""

    label: str
    name: str
    icon: str

    @property
    def model(self) -> str:
        """The model whose list it is, as `app.model`; empty for another page."""
        _, _, name = self.name.partition(":")
        return ".".join(name.split("_")[:2]) if name.endswith("_changelist") else ""


TABS: Sequence[Entry] = (
    Entry("Applications", "admin:access_application_changelist", "how_to_reg"),
    Entry("Invites", "admin:access_invite_changelist", "mail"),
    Entry("Token requests", "admin:billing_tokenrequest_changelist", "toll"),
    Entry("Users", "admin:accounts_user_changelist", "group"),
    Entry("Feedback", "admin:feedback_note_changelist", "feedback"),
    Entry("Models", "admin:models", "memory"),
    Entry("Analytics", "admin:analytics", "monitoring"),
)
"""The tabs of the admin, in their order (A-389)."""

RECORDS: Sequence[Entry] = (
    Entry("API keys", "admin:accounts_apikey_changelist", "key"),
    Entry("Tags", "admin:accounts_tag_changelist", "label"),
    Entry("Budget changes", "admin:billing_entry_changelist", "receipt_long"),
    Entry("Completions", "admin:billing_hold_changelist", "hourglass"),
    Entry("Jobs", "admin:jobs_job_changelist", "work_history"),
    Entry("Runs", "admin:jobs_run_changelist", "play_circle"),
    Entry("Harvests", "admin:harvests_harvest_changelist", "agriculture"),
    Entry("Harvests a month", "admin:harvests_harvestquota_changelist", "speed"),
    Entry("Looms", "admin:looms_loom_changelist", "account_tree"),
    Entry("Nodes", "admin:looms_node_changelist", "share"),
    Entry("Changes of the stop", "admin:billing_spendstop_changelist", "front_hand"),
    Entry("Mails", "admin:accounts_mail_changelist", "outgoing_mail"),
    Entry("Log", "admin:accounts_adminaction_changelist", "history"),
)
"""Records, to read."""


def menu(request: HttpRequest) -> list[dict[str, object]]:
    """Return the menu in unfold's form."""
    return [
        {"title": title, "items": _links(entries)}
        for title, entries in (("Admin", TABS), ("Records", RECORDS))
    ]


def tabs(request: HttpRequest) -> list[dict[str, object]]:
    """Return the row of tabs, which lists show by their model and pages as `admin`."""
    models = [entry.model for entry in TABS if entry.model]
    return [{"page": "admin", "models": models, "items": _links(TABS)}]


def _links(entries: Sequence[Entry]) -> list[dict[str, object]]:
    return [
        {"title": entry.label, "icon": entry.icon, "link": reverse(entry.name)} for entry in entries
    ]
