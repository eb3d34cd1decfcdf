"""Holds and tokens for tests."""

from datetime import datetime
from uuid import UUID

from accounts.models import User
from billing import ledger
from billing.grants import grant, set_allowance
from billing.models import Counted, Hold, Source, UsageStatus
from billing.owners import Lease
from tests.accounts.factory import make_user


def make_user_with(*, allowance: int | None = 0, budget: int = 0) -> User:
    user = make_user()
    set_allowance(user_id=user.id, tokens=allowance)
    if budget:
        grant(user_id=user.id, tokens=budget, by=None)
    return user


def take(
    user: User,
    tokens: int,
    lease: Lease,
    *,
    key_id: UUID | None = None,
    source: Source = Source.API,
    model: str = "tiny",
    now: datetime | None = None,
) -> Hold:
    return ledger.take_hold(
        user_id=user.id,
        key_id=key_id,
        tokens=tokens,
        request_id="req_1",
        model=model,
        source=source,
        owner=lease.token,
        now=now,
    )


def pay(
    hold: Hold,
    lease: Lease,
    prompt: int,
    completion: int = 0,
    *,
    status: UsageStatus = UsageStatus.COMPLETED,
    counted: Counted = Counted.REPORTED,
    now: datetime | None = None,
) -> bool:
    return ledger.settle(
        hold_id=hold.id,
        owner=lease.token,
        prompt_tokens=prompt,
        completion_tokens=completion,
        status=status,
        counted=counted,
        now=now,
    )


def give_back(hold: Hold, lease: Lease, *, now: datetime | None = None) -> bool:
    return ledger.release(hold_id=hold.id, owner=lease.token, now=now)
