"""What becomes of what a deleted User wrote (U-35): deleted with them, erased some days later."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from access.models import Application, Invite
from accounts.models import Remark, User
from accounts.people import DELETED_DOMAIN
from jobs import runs
from jobs.models import Run
from looms.erasure import delete_looms_of
from vectors.models import SavedVector

AT_ONCE = 500
"""Users that one call erases at most."""


def delete_writings(sender: object, user_ids: Sequence[UUID], **known: object) -> None:
    """Delete the Runs, Looms and saved vectors of Users in the transaction that deletes them.

    They go as if deleted by hand: unreadable at once, and Runs and Looms are erased when their
    days are over.
    """
    for user_id in user_ids:
        runs.delete(Run.objects.of(user_id))
        delete_looms_of(user_id)
        SavedVector.objects.of(user_id).delete()


def erase_deleted() -> int:
    """Erase what was written about Users deleted `ERASE_DAYS` ago; returns of how many.

    Rows that were decided stay, without a word of the person in them.
    """
    before = timezone.now() - timedelta(days=settings.BASALT.erase_days)
    due = User.objects.filter(deleted_at__lte=before, erased_at=None).values_list("id", flat=True)
    ids = list(due[:AT_ONCE])
    for user_id in ids:
        with transaction.atomic():
            nobody = f"{user_id}@{DELETED_DOMAIN}"
            Application.objects.filter(user=user_id).update(
                email=nobody, name="", organization="", planned_usage="", answers=[]
            )
            Invite.objects.filter(user=user_id).update(email=nobody)
            Remark.objects.filter(user=user_id).delete()
            User.objects.filter(id=user_id).update(erased_at=timezone.now())
    return len(ids)
