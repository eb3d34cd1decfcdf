"""What happens to a User: made, suspended, restored, given a role, deleted.

Each function is one transaction and checks what must hold under the locks that it takes, so two
admins at once cannot take the last admin away. None of them sends a mail (A-547).
"""

from uuid import UUID

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import ApiKey, PasswordLink, Role, User, UserTag

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
        now = timezone.now()
        ApiKey.objects.filter(user=user, revoked_at=None).update(revoked_at=now)
        PasswordLink.objects.filter(user=user).delete()
        SocialAccount.objects.filter(user=user).delete()
        Authenticator.objects.filter(user=user).delete()
        UserTag.objects.filter(user=user).delete()
        user.email = f"{user.id}@{DELETED_DOMAIN}"
        user.name = user.organization = user.discord_handle = ""
        user.set_unusable_password()
        user.is_staff = user.is_superuser = False
        user.deleted_at = now
        user.session_number += 1
        user.save()


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
