"""Mails: written as rows with what caused them, and sent by the runner after that is committed.

The row is the outbox. It is tried again until it is sent or too old, by whichever process takes it;
a process that dies between the mail server's yes and the row sends the same message once more, with
the same `Message-ID` and the same link (A-537, A-549).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog
from celery import current_app
from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import timezone
from kombu.exceptions import KombuError

from accounts.mail_backend import MailBackend
from accounts.models import Mail, MailKind
from accounts.secrets import link_token

log = structlog.get_logger()

LINK_PLACE = "https://link.invalid/"
"""Stands in a row where the address of its link belongs."""
KEPT_FOR = timedelta(days=7)
"""How long a mail is tried that has no link of its own that ends earlier."""
SEND_LEASE = timedelta(minutes=5)
LONGEST_WAIT = timedelta(hours=1)
AT_ONCE = 100
"""Mails that one call sends at most."""


@dataclass(frozen=True)
class SecretLink:
    """A link whose token is made when the mail is sent: `path`, and the row that it belongs to."""

    path: str
    kind: str
    row_id: UUID

    @property
    def address(self) -> str:
        """The whole address, with its secret."""
        token = link_token(self.kind, self.row_id)
        return f"{settings.BASALT.app_address}{self.path}?token={token}"


@dataclass(frozen=True)
class Button:
    """What a mail asks to do, and where it leads: an address of the App, or a secret link."""

    label: str
    to: str | SecretLink


@dataclass(frozen=True)
class Words:
    """What a mail says. `facts` are pairs of a question and its answer."""

    subject: str
    paragraphs: Sequence[str]
    button: Button
    facts: Sequence[tuple[str, str]] = ()


def post(
    *, kind: MailKind, to: str, words: Words, lasts: timedelta = KEPT_FOR, by_name: str = ""
) -> Mail:
    """Write a mail in the transaction of what caused it; it leaves once that is committed.

    `lasts` is how long it is worth sending: at most as long as its link works. `by_name` greets.
    """
    link = words.button.to
    address = LINK_PLACE if isinstance(link, SecretLink) else _inside(link)
    shown = {"words": words, "address": address, "name": by_name, "site": settings.BASALT.site_name}
    shown["app"] = settings.BASALT.app_address
    mail = Mail.objects.create(
        kind=kind,
        to=to,
        subject=" ".join(words.subject.split())[:200],
        text=render_to_string("mail/message.txt", shown),
        html=render_to_string("mail/message.html", shown),
        link=f"{link.path} {link.kind} {link.row_id}" if isinstance(link, SecretLink) else "",
        expires_at=timezone.now() + lasts,
    )
    transaction.on_commit(ring, robust=True)
    return mail


def post_to_team(*, kind: MailKind, words: Words) -> int:
    """Write a mail to each address of `TEAM_EMAILS`; returns how many there are (A-550)."""
    for address in settings.BASALT.team_emails:
        post(kind=kind, to=address, words=words)
    return len(settings.BASALT.team_emails)


def ring() -> None:
    """Tell the runner that a mail waits. A lost bell costs half a minute: the clock rings too."""
    try:
        current_app.send_task(
            "accounts.send_mails", queue="runner", expires=30, ignore_result=True, retry=False
        )
    except (OSError, KombuError) as lost:
        log.info("the bell for mails was not heard", error=str(lost))


def send_waiting() -> int:
    """Send what waits, one by one; returns how many were sent."""
    sent = 0
    backend = MailBackend()
    for _ in range(AT_ONCE):
        mail = _take()
        if mail is None:
            break
        sent += _send(mail, backend)
    return sent


def _take() -> Mail | None:
    """Take the oldest mail that is due, for `SEND_LEASE`; give up one that is too old."""
    now = timezone.now()
    with transaction.atomic():
        mail = (
            Mail.objects.select_for_update(skip_locked=True)
            .filter(sent_at=None, given_up_at=None, next_try_at__lte=now)
            .order_by("next_try_at")
            .first()
        )
        if mail is None:
            return None
        mail.attempts += 1
        mail.next_try_at = now + SEND_LEASE
        mail.save(update_fields=["attempts", "next_try_at"])
    return mail


def _send(mail: Mail, backend: MailBackend) -> bool:
    """Send a taken mail and write down how it went."""
    now = timezone.now()
    if mail.expires_at <= now:
        _end(mail, given_up_at=now)
        log.warning("a mail was given up", mail=str(mail.id), kind=mail.kind, error=mail.error)
        return False
    try:
        backend.send_messages([_message(mail)])
    except Exception as failure:  # noqa: BLE001 - whatever a mail server answers, it is tried again
        wait = min(timedelta(seconds=30) * 2 ** min(mail.attempts, 10), LONGEST_WAIT)
        Mail.objects.filter(id=mail.id, attempts=mail.attempts, sent_at=None).update(
            error=f"{type(failure).__name__}: {failure}"[:300], next_try_at=now + wait
        )
        log.warning("a mail was not sent", mail=str(mail.id), kind=mail.kind, error=str(failure))
        return False
    _end(mail, sent_at=timezone.now(), error="")
    return True


def _end(mail: Mail, **changes: object) -> None:
    """Close a row; its words go, because nothing needs them any more."""
    Mail.objects.filter(id=mail.id).update(text="", html="", **changes)


def _message(mail: Mail) -> EmailMultiAlternatives:
    text, html = mail.text, mail.html
    if mail.link:
        path, kind, row_id = mail.link.split(" ")
        address = SecretLink(path, kind, UUID(row_id)).address
        text, html = text.replace(LINK_PLACE, address), html.replace(LINK_PLACE, address)
    domain = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].strip("> ")
    message = EmailMultiAlternatives(
        mail.subject,
        text,
        settings.DEFAULT_FROM_EMAIL,
        [mail.to],
        headers={"Message-ID": f"<{mail.id}@{domain}>", "Auto-Submitted": "auto-generated"},
    )
    message.attach_alternative(html, "text/html")
    return message


def _inside(path: str) -> str:
    """Return the address of a page of the App (A-538)."""
    return f"{settings.BASALT.app_address}{path}"
