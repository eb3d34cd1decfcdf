"""Invites: made by an admin, used once by whom they name (A-014 to A-023, A-400 to A-403)."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from access.decisions import Terms, decide, make_user
from access.models import Application, ApplicationStatus, Invite
from accounts.links import make_link
from accounts.mail import Button, SecretLink, Words, post
from accounts.models import LinkPurpose, MailKind, User
from accounts.people import Refused
from accounts.secrets import digest_of_token, link_token
from accounts.tags import add_tag
from billing.grants import grant
from billing.models import EntryKind

KIND = "invite"
PATH = "/invited"
MOST_AT_ONCE = 200
"""Invites that one form makes at most."""


class InviteDead(Exception):
    """The Invite was used, withdrawn, is too old, or never was (A-022, A-023)."""


def invite(
    *, emails: Sequence[str], tokens: int, tag: str, by: UUID | None
) -> tuple[list[Invite], list[str]]:
    """Make an Invite for each address, each with a link and a mail of its own (A-400).

    `emails` are valid and in kept form, `tag` in tag form or empty. Returns the Invites, and a line
    for each address that got none and why: a User has it (U-03). An open Invite of the same address
    is withdrawn, so that one link of a person works.
    """
    made, refused = [], []
    for email in dict.fromkeys(emails):
        try:
            with transaction.atomic():
                made.append(_make(email, tokens, tag, by))
        except Refused as why:
            refused.append(str(why))
        except IntegrityError:
            refused.append(f"{email} is being invited by somebody else now.")
    return made, refused


def _make(email: str, tokens: int, tag: str, by: UUID | None) -> Invite:
    if User.objects.filter(email=email).exists():
        raise Refused(f"{email} has a User already.")
    now = timezone.now()
    Invite.objects.filter(email=email, used_at=None, withdrawn_at=None).update(withdrawn_at=now)
    row_id = uuid4()
    lasts = timedelta(days=settings.BASALT.invite_days)
    made = Invite.objects.create(
        id=row_id,
        email=email,
        digest=digest_of_token(link_token(KIND, row_id)),
        tokens=tokens,
        tag=tag,
        sent_by_id=by,
        sent_at=now,
        expires_at=now + lasts,
    )
    site = settings.BASALT.site_name
    post(
        kind=MailKind.INVITE,
        to=email,
        words=Words(
            subject=f"You are invited to {site}",
            paragraphs=[
                f"{site} serves language models to interpretability researchers: log "
                "probabilities, reads of the residual stream, and steering, over an API and in "
                "the browser.",
                "The link opens a short form, which sets you up at once. It works once, for "
                f"{settings.BASALT.invite_days:g} days.",
            ],
            button=Button("Set up my account", SecretLink(PATH, KIND, row_id)),
        ),
        lasts=lasts,
    )
    return made


def withdraw(*, invite_id: UUID) -> None:
    """Make an open Invite's link do nothing (A-403). Raises `Refused` for another."""
    changed = Invite.objects.filter(id=invite_id, used_at=None, withdrawn_at=None).update(
        withdrawn_at=timezone.now()
    )
    if not changed:
        raise Refused("Only an open Invite can be withdrawn.")


def find_invite(token: str) -> Invite:
    """Return the open Invite of a link; looking does not use it. Raises `InviteDead`."""
    found = Invite.objects.filter(
        digest=digest_of_token(token),
        used_at=None,
        withdrawn_at=None,
        expires_at__gt=timezone.now(),
    ).first()
    if found is None:
        raise InviteDead
    return found


def accept(
    *,
    token: str,
    name: str,
    organization: str,
    planned_usage: str,
    answers: list[tuple[str, str]],
) -> SecretLink:
    """Use an Invite: store the Application as approved, make the User, return the link (A-018).

    The texts are checked and the rules agreed to. An open Application of the address is approved
    too (U-03). No mail goes (A-019). Raises `InviteDead`, also when a User has the address by now.
    """
    with transaction.atomic():
        found = find_invite(token)
        used = Invite.objects.select_for_update().get(id=found.id)
        if used.used_at or used.withdrawn_at:
            raise InviteDead
        now = timezone.now()
        application, _ = Application.objects.select_for_update().get_or_create(
            email=used.email,
            status=ApplicationStatus.OPEN,
            defaults={"rules_agreed_at": now, "submitted_at": now},
        )
        application.name, application.organization = name, organization
        application.planned_usage, application.rules_agreed_at = planned_usage, now
        application.answers = [list(pair) for pair in answers]
        application.invite = used
        try:
            user = make_user(application, Terms(), by=used.sent_by_id)
        except Refused:
            raise InviteDead from None
        decide(application, ApplicationStatus.APPROVED, by=used.sent_by_id, user=user)
        if used.tokens:
            grant(user_id=user.id, tokens=used.tokens, by=used.sent_by_id, kind=EntryKind.INVITE)
        if used.tag:
            add_tag(user_ids=[user.id], name=used.tag, by=used.sent_by_id)
        used.used_at, used.user = now, user
        used.save()
        return make_link(user=user, purpose=LinkPurpose.FIRST)
