"""Leases that run out, as those of killed processes do."""

from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from billing import owners
from billing.models import Owner
from tests.live import eventually


def lose(token: UUID) -> None:
    """Let a lease run out and be reaped.

    A process that lives renews it meanwhile, and no lease is judged soon after the database itself
    started, so it may take some tries.
    """

    def reaped() -> bool:
        lease = Owner.objects.filter(token=token)
        lease.update(expires_at=timezone.now() - timedelta(days=1))
        return token in owners.reap().ended

    eventually(reaped, 60)
