"""Links that set a password: made, checked, used once (A-030 to A-038, A-081)."""

import unicodedata
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.mail import Button, SecretLink, Words, post, ring
from accounts.models import LinkAsk, LinkPurpose, MailKind, PasswordLink, User
from accounts.secrets import digest_of_token, link_token

MOST_PASSWORD = 1_024
"""Characters of a password at most, after NFKC (U-40)."""

ASKS_AT_ONCE = 200
KIND = "password"
SET_PATH, RESET_PATH = "/set-password", "/reset-password"


class LinkDead(Exception):
    """The link was used, replaced, is too old, or never was (A-034)."""


def make_link(*, user: User, purpose: LinkPurpose) -> SecretLink:
    """Make a User's newest link, which ends every older one (A-033). Call it in a transaction."""
    now = timezone.now()
    User.objects.select_for_update(no_key=True).get(id=user.id)
    PasswordLink.objects.filter(user=user, used_at=None, replaced_at=None).update(replaced_at=now)
    row_id = uuid4()
    PasswordLink.objects.create(
        id=row_id,
        user=user,
        purpose=purpose,
        digest=digest_of_token(link_token(KIND, row_id)),
        expires_at=now + lifetime(purpose),
    )
    return SecretLink(path_of(purpose), KIND, row_id)


def path_of(purpose: LinkPurpose) -> str:
    """Return the page that a link of this kind opens."""
    return RESET_PATH if purpose == LinkPurpose.RESET else SET_PATH


def lifetime(purpose: LinkPurpose) -> timedelta:
    """Return how long a link works."""
    if purpose == LinkPurpose.APPROVAL:
        return timedelta(days=settings.BASALT.approval_link_days)
    return timedelta(minutes=settings.BASALT.password_link_minutes)


def find_link(token: str) -> PasswordLink:
    """Return the link of a token while it works; looking does not use it (A-037).

    Raises `LinkDead`, also for a suspended or deleted User.
    """
    link = (
        PasswordLink.objects.select_related("user")
        .filter(digest=digest_of_token(token), used_at=None, replaced_at=None)
        .first()
    )
    if link is None or link.expires_at <= timezone.now() or not link.user.is_active:
        raise LinkDead
    return link


def set_password(*, token: str, password: str) -> User:
    """Set the password of a link's User, use the link up, and end the User's sessions (A-068).

    `password` has 8 characters at least, after NFKC. Raises `LinkDead`; of two at once one wins.
    """
    with transaction.atomic():
        found = find_link(token)
        user = User.objects.select_for_update(no_key=True).get(id=found.user_id)
        used = PasswordLink.objects.filter(id=found.id, used_at=None, replaced_at=None).update(
            used_at=timezone.now()
        )
        if not used or not user.is_active:
            raise LinkDead
        user.set_password(normal(password))
        user.session_number += 1
        user.save(update_fields=["password", "session_number"])
    return user


def normal(password: str) -> str:
    """Return a password as it is hashed: two keyboards write one text in two ways (U-40)."""
    return unicodedata.normalize("NFKC", password)


def ask_for_link(*, email: str) -> None:
    """Note that somebody asked for a link for an address, User or not; the runner answers."""
    with transaction.atomic():
        LinkAsk.objects.create(email=email)
        transaction.on_commit(ring, robust=True)


def answer_asks() -> int:
    """Mail the links that were asked for; returns how many (A-546: none without a User)."""
    mailed = 0
    for _ in range(ASKS_AT_ONCE):
        with transaction.atomic():
            ask = LinkAsk.objects.select_for_update(skip_locked=True).order_by("id").first()
            if ask is None:
                break
            user_id = User.objects.filter(email=ask.email).values_list("id", flat=True).first()
            mailed += user_id is not None and mail_link(user_id=user_id)
            ask.delete()
    return mailed


def mail_link(*, user_id: UUID) -> bool:
    """Make and mail a User's link: to choose a new password, or to set the first (A-078, A-080).

    Returns whether one was sent: none goes to a suspended User (A-084).
    """
    with transaction.atomic():
        user = User.objects.get(id=user_id)
        if not user.is_active:
            return False
        first = not user.has_usable_password()
        purpose = LinkPurpose.FIRST if first else LinkPurpose.RESET
        link = make_link(user=user, purpose=purpose)
        post(
            kind=MailKind.FIRST_PASSWORD if first else MailKind.RESET,
            to=user.email,
            by_name=user.name,
            words=_words(link, first=first),
            lasts=lifetime(purpose),
        )
    return True


def _words(link: SecretLink, *, first: bool) -> Words:
    minutes = settings.BASALT.password_link_minutes
    works = "1 hour" if minutes == 60 else f"{minutes:g} minutes"
    site = settings.BASALT.site_name
    ending = f"The link works once, for {works}. If you did not ask for it, nothing has changed."
    if first:
        return Words(
            subject="Set your password",
            paragraphs=[f"Set a password to sign in to {site}.", ending],
            button=Button("Set your password", link),
        )
    return Words(
        subject="Reset your password",
        paragraphs=[f"Choose a new password for {site}.", ending],
        button=Button("Choose a new password", link),
    )
