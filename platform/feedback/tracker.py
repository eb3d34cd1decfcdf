"""Makes an issue of each note in the team's tracker, sooner or later (A-387, A-388).

The tracker is an address that takes JSON: Linear's API, or any webhook. A note waits in its own row
until the tracker has it; a note that is tried twice carries the same id, by which Linear makes one
issue and a webhook can tell. Errors, request ids and the browser's name never leave.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import httpx2
import structlog
from celery import current_app
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from feedback.models import Note
from inference.client import LOST

log = structlog.get_logger()

LEASE = timedelta(minutes=5)
TIMEOUT_SECONDS = 30.0
LONGEST_WAIT = timedelta(hours=6)
AT_ONCE = 50
LINEAR = "api.linear.app"
CREATE = """
mutation Create($input: IssueCreateInput!) {
  issueCreate(input: $input) { success issue { id url } }
}
"""


class TrackerRefused(Exception):
    """The tracker answered something else than an issue."""


@dataclass(frozen=True)
class Issue:
    """What the tracker made."""

    id: str
    url: str


def ring() -> None:
    """Tell the runner that a note waits; the clock rings too."""
    try:
        current_app.send_task(
            "feedback.make_issues", queue="runner", expires=60, ignore_result=True, retry=False
        )
    except LOST as lost:
        log.info("the bell for feedback was not heard", error=str(lost))


def make_issues() -> int:
    """Give the tracker the notes that it does not have; returns how many it took."""
    if not settings.BASALT.feedback_webhook:
        return 0
    made = 0
    with httpx2.Client(timeout=TIMEOUT_SECONDS) as client:
        for _ in range(AT_ONCE):
            note = _take()
            if note is None:
                break
            made += _make(note, client)
    return made


def _take() -> Note | None:
    now = timezone.now()
    with transaction.atomic():
        waiting = Note.objects.without_issue().filter(next_try_at__lte=now)
        note: Note | None = (
            waiting.select_for_update(skip_locked=True).order_by("next_try_at").first()
        )
        if note is not None:
            note.attempts += 1
            note.next_try_at = now + LEASE
            note.save(update_fields=["attempts", "next_try_at"])
    return note


def _make(note: Note, client: httpx2.Client) -> bool:
    try:
        issue = _ask(note, client)
    except (httpx2.HTTPError, TrackerRefused, ValueError) as failure:
        wait = min(timedelta(minutes=1) * 2 ** min(note.attempts, 12), LONGEST_WAIT)
        Note.objects.filter(id=note.id).update(
            fault=f"{type(failure).__name__}: {failure}"[:300], next_try_at=timezone.now() + wait
        )
        log.warning("the tracker did not take a note", note=str(note.id), error=str(failure))
        return False
    Note.objects.filter(id=note.id).update(
        issue_id=issue.id[:100], issue_url=issue.url[:500], fault=""
    )
    return True


def _ask(note: Note, client: httpx2.Client) -> Issue:
    env = settings.BASALT
    is_linear = httpx2.URL(env.feedback_webhook).host == LINEAR
    headers = {"Authorization": env.feedback_token} if env.feedback_token else {}
    body = _linear(note) if is_linear else _plain(note)
    answer = client.post(env.feedback_webhook, json=body, headers=headers)
    if not answer.is_success:
        raise TrackerRefused(f"it answered {answer.status_code}")
    told = answer.json() if answer.content else {}
    if is_linear:
        made = ((told.get("data") or {}).get("issueCreate") or {}).get("issue")
        if not made:
            raise TrackerRefused("Linear made no issue")
        return Issue(str(made["id"]), str(made["url"]))
    return Issue(str(told.get("id") or note.id), str(told.get("url") or ""))


def _plain(note: Note) -> dict[str, object]:
    """Return the note for a webhook: text, page, screenshots and the account's email, no more."""
    return {
        "id": str(note.id),
        "title": _title(note),
        "kind": note.kind,
        "text": note.text,
        "page": note.page,
        "email": note.user.email if note.user else None,
        "screenshots": _links(note),
    }


def _linear(note: Note) -> dict[str, object]:
    who = note.user.email if note.user else "anonymous"
    parts = [note.text, f"Page: {note.page}", f"From: {who}"]
    parts += [f"Screenshot: {link}" for link in _links(note)]
    issue = {
        "id": str(note.id),
        "teamId": settings.BASALT.feedback_team,
        "title": _title(note),
        "description": "\n\n".join(parts),
    }
    return {"query": CREATE, "variables": {"input": issue}}


def _title(note: Note) -> str:
    first = note.text.split("\n", 1)[0]
    return f"{note.get_kind_display()}: {first[:80]}"


def _links(note: Note) -> list[str]:
    """Return addresses of the screenshots that people with a role can open."""
    return [screenshot_address(each) for each in note.screenshots.values_list("id", flat=True)]


def screenshot_address(screenshot_id: UUID) -> str:
    """Return where the admin shows a screenshot."""
    return f"{settings.BASALT.app_address}/admin/feedback/screenshot/{screenshot_id}"
