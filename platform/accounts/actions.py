"""The log of what people with a role did: a line for each change, in its transaction (A-392)."""

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Model

from accounts.models import AdminAction

STEP = 1_000


def note(*, by: UUID | None, action: str, target: Model, details: str = "") -> None:
    """Write that `by`, or a command on the server when None, did `action` to an object."""
    note_many(by=by, action=action, targets=[target], details=details)


def note_many(*, by: UUID | None, action: str, targets: Iterable[Model], details: str = "") -> None:
    """Write one line for each object."""
    AdminAction.objects.bulk_create(
        [
            AdminAction(
                by_id=by,
                action=action[:100],
                kind=target._meta.label_lower,
                target_id=str(target.pk),
                details=details[:1_000],
            )
            for target in targets
        ],
        batch_size=STEP,
    )
