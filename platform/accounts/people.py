"""What happens to a User: made, suspended, restored, given a role, deleted.

Each function is one transaction and checks what must hold under the locks that it takes, so two
admins at once cannot take the last admin away. None of them sends a mail (A-547).
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.hashers import make_password
from django.db import connection, transaction
from django.db.models import CharField, F, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat
from django.dispatch import Signal
from django.utils import timezone

from accounts.models import ApiKey, PasswordLink, Role, User, UserTag

users_deleted = Signal()
"""Sent with `user_ids` in the transaction that deletes Users: what they wrote is deleted too."""

DELETED_DOMAIN = "deleted.invalid"
_ROLES_LOCK = 0x626173_01
"""The advisory lock of who has a role: of two changes at once the second sees the first."""


class Refused(Exception):
    """A change that must not be; its text says why, for a person."""


def suspend(*, user_id: UUID, by: UUID | None) -> None:
    """End a User's access: no sign-in, no session, no key works (A-069, A-082, A-083).

    Raises `Refused` for oneself, for the last admin, and for a User who is not active.
    """
    with transaction.atomic():
        user = _locked(user_id, by)
        if not user.is_active:
            raise Refused(f"{user.email} is {user.standing.label.lower()} already.")
        _keep_an_admin(user)
        user.suspended_at = timezone.now()
        user.session_number += 1
        user.save(update_fields=["suspended_at", "session_number"])


def restore(*, user_id: UUID, by: UUID | None) -> None:
    """Give a suspended User their access back; old sessions stay ended (A-086).

    Raises `Refused` for a User who is not suspended.
    """
    with transaction.atomic():
        user = _locked(user_id, None)
        if user.deleted_at is not None or user.suspended_at is None:
            raise Refused(f"{user.email} is not suspended.")
        user.suspended_at = None
        user.save(update_fields=["suspended_at"])


def set_role(*, user_id: UUID, role: Role, by: UUID | None) -> None:
    """Make a User an admin, staff, or neither. Raises `Refused` as `suspend` does (A-421)."""
    with transaction.atomic():
        user = _locked(user_id, by)
        if not user.is_active and role != Role.USER:
            raise Refused(f"{user.email} is {user.standing.label.lower()}.")
        if role != Role.ADMIN:
            _keep_an_admin(user)
        user.is_staff = role != Role.USER
        user.is_superuser = role == Role.ADMIN
        user.save(update_fields=["is_staff", "is_superuser"])


def delete(*, user_id: UUID, by: UUID | None) -> None:
    """Delete a User (A-495, U-35): sign-in, keys, sessions, identities, tags and name end now.

    Rows that count stay, and the address is free again. What they wrote is erased `erase_days`
    later, by the parts that keep it. Raises `Refused` as `suspend` does.
    """
    with transaction.atomic():
        user = _locked(user_id, by)
        if user.deleted_at is not None:
            raise Refused("This User is deleted already.")
        _keep_an_admin(user)
        _end([user.id])


def suspend_many(*, user_ids: Iterable[UUID], by: UUID | None) -> list[UUID]:
    """Suspend the active Users among these who are no admins; returns who was (A-431)."""
    with transaction.atomic():
        ids = _lock(User.objects.filter(_plain(user_ids, by), suspended_at=None))
        User.objects.filter(id__in=ids).update(
            suspended_at=timezone.now(), session_number=F("session_number") + 1
        )
    return ids


def restore_many(*, user_ids: Iterable[UUID], by: UUID | None) -> list[UUID]:
    """Restore the suspended Users among these; returns who was (A-430)."""
    with transaction.atomic():
        rows = User.objects.filter(id__in=list(user_ids), suspended_at__isnull=False)
        ids = _lock(rows.filter(deleted_at=None))
        User.objects.filter(id__in=ids).update(suspended_at=None)
    return ids


def delete_many(*, user_ids: Iterable[UUID], by: UUID | None) -> list[UUID]:
    """Delete the Users among these who are no admins, as `delete` does; returns who was."""
    with transaction.atomic():
        ids = _lock(User.objects.filter(_plain(user_ids, by)))
        _end(ids)
    return ids


def _plain(user_ids: Iterable[UUID], by: UUID | None) -> Q:
    """Return whom a change of many reaches: nobody deleted, no admin, not oneself."""
    return Q(id__in=list(user_ids), deleted_at=None, is_superuser=False) & ~Q(id=by)


def _lock(users: QuerySet[User]) -> list[UUID]:
    return list(users.select_for_update(no_key=True).order_by("id").values_list("id", flat=True))


def _end(ids: Sequence[UUID]) -> None:
    """Take from Users who are locked everything but the rows that count (U-35)."""
    now = timezone.now()
    ApiKey.objects.filter(user__in=ids, revoked_at=None).update(revoked_at=now)
    for rows in (PasswordLink, SocialAccount, Authenticator, UserTag):
        rows.objects.filter(user__in=ids).delete()
    User.objects.filter(id__in=ids).update(
        email=Concat(Cast("id", CharField()), Value(f"@{DELETED_DOMAIN}")),
        name="",
        organization="",
        discord_handle="",
        password=make_password(None),
        is_staff=False,
        is_superuser=False,
        deleted_at=now,
        session_number=F("session_number") + 1,
    )
    users_deleted.send(sender=User, user_ids=list(ids))


def _locked(user_id: UUID, by: UUID | None) -> User:
    """Return the User, locked, under the lock of all roles; refuse a change of oneself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ROLES_LOCK])
    if by is not None and by == user_id:
        raise Refused("Another admin has to do this for you.")
    return User.objects.select_for_update(no_key=True).get(id=user_id)


def _keep_an_admin(user: User) -> None:
    """Refuse to take away the last admin who may still sign in."""
    if not user.is_admin:
        return
    others = User.objects.filter(
        is_superuser=True, is_staff=True, suspended_at=None, deleted_at=None
    ).exclude(id=user.id)
    if not others.exists():
        raise Refused(f"{user.email} is the last admin. Make another one first.")
