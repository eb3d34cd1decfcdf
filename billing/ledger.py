"""The ledger: the only writer of balances and of the lines that explain them.

Each function is one transaction. It first locks the Account row of the User, and that one lock
guards every total of that User: months, the Budget, key Budgets. Since nothing else is locked
before it but the Owner (shared, by `take_hold`), no two writes can wait for each other in a ring.
A caller that puts a ledger function in a transaction of its own calls it there before it locks
anything else. Time and work of a call do not depend on how much history there is.
"""

import secrets
from datetime import date, datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import statements
from billing.allowance import TokensLeft, allowance_of, left_of, month_of
from billing.models import Bucket, Counted, EntryKind, Hold, HoldState, Source, UsageStatus
from billing.statements import Line, Statement, Totals


class OwnerLost(Exception):
    """The lease of the process was reaped: it must register anew before it takes a Hold."""


class Books:
    """The totals of a User, of one month and at most one key, and the lines not yet written.

    Made by `lock` and `lock_hold`: it is right only while the Account row is locked, so both need
    a transaction, which `write` does not end.
    """

    def __init__(
        self, *, user_id: UUID, month: date, key_id: UUID | None, totals: Totals, at: datetime
    ) -> None:
        """Use `lock` or `lock_hold`."""
        self.totals = totals
        self._user_id = user_id
        self._month = month
        self._key_id = key_id
        self._at = at
        self._lines: list[Line] = []

    @classmethod
    def lock(
        cls, user_id: UUID, at: datetime, *, key_id: UUID | None = None, owner: UUID | None = None
    ) -> "Books":
        """Lock the Account of a User, making it at the first need, and read this month's totals.

        `key_id` is a key of the User. An `owner` is shared first; raises `OwnerLost` when its
        lease was reaped.
        """
        month = month_of(at)
        share = [statements.share_owner(owner)] if owner else []
        lock = statements.lock_account(user_id)
        read = statements.read_totals(user_id=user_id, month=month, key_id=key_id)
        *shared, _, totals = statements.send(*share, lock, read)
        if None in shared:
            raise OwnerLost(f"the lease {owner} was reaped")
        if totals is None:
            statements.send(statements.make_account(user_id))
            return cls.lock(user_id, at, key_id=key_id, owner=owner)
        return cls(user_id=user_id, month=month, key_id=key_id, totals=Totals(*totals), at=at)

    @classmethod
    def lock_hold(cls, hold_id: UUID, at: datetime) -> "tuple[Books, Hold] | None":
        """Lock the Account of a Hold's User, and read the Hold and the totals it was taken from.

        None when there is no such Hold.
        """
        lock, read = statements.lock_account_of(hold_id), statements.read_hold(hold_id)
        _, row = statements.send(lock, read)
        if row is None:
            return None
        totals, hold = statements.hold_of(row)
        books = cls(
            user_id=hold.user_id, month=hold.month, key_id=hold.key_id, totals=totals, at=at
        )
        return books, hold

    @property
    def allowance_left(self) -> int:
        """What is left of the month's allowance, at least 0."""
        return max(0, allowance_of(self.totals.allowance) - self.totals.used)

    def left(self) -> TokensLeft:
        """Return what a request of this month, with this key, could take."""
        return left_of(self.totals, self._month)

    def move_allowance(self, amount: int, kind: EntryKind, *, hold_id: UUID) -> None:
        """Give `amount` back to the month, or take it when below 0 (C-322)."""
        if amount:
            self.totals.used -= amount
            self._line(Bucket.ALLOWANCE, amount, -self.totals.used, kind, hold_id=hold_id)

    def move_budget(
        self, amount: int, kind: EntryKind, *, hold_id: UUID | None = None, by: UUID | None = None
    ) -> None:
        """Add `amount` to the Budget, or take it when below 0."""
        if amount or kind is EntryKind.SET:
            self.totals.budget_left += amount
            total = self.totals.budget_left
            self._line(Bucket.BUDGET, amount, total, kind, hold_id=hold_id, by=by)

    def move_key_budget(
        self, amount: int, kind: EntryKind, *, hold_id: UUID | None = None, by: UUID | None = None
    ) -> None:
        """Add `amount` to the key's own Budget, made at the first need, or take it when below 0."""
        if amount or kind is EntryKind.SET:
            total = self.totals.key_left = (self.totals.key_left or 0) + amount
            self._line(Bucket.KEY_BUDGET, amount, total, kind, hold_id=hold_id, by=by)

    def move_hold(self, hold: Hold, amount: int, kind: EntryKind) -> None:
        """Move `amount` in each bucket that a Hold was taken from (C-318, C-320)."""
        if hold.bucket == Bucket.ALLOWANCE:
            self.move_allowance(amount, kind, hold_id=hold.id)
        else:
            self.move_budget(amount, kind, hold_id=hold.id)
        if hold.key_budget:
            self.move_key_budget(amount, kind, hold_id=hold.id)

    def write(self, *others: Statement) -> None:
        """Write `others`, then the totals that moved and their lines, in one message."""
        moved = {line.bucket: line for line in self._lines}
        totals = map(statements.set_total, moved.values())
        lines = [statements.insert_lines(self._lines)] if self._lines else []
        statements.send(*others, *totals, *lines)
        self._lines = []

    def _line(
        self,
        bucket: Bucket,
        amount: int,
        total: int,
        kind: EntryKind,
        *,
        hold_id: UUID | None,
        by: UUID | None = None,
    ) -> None:
        self._lines.append(
            Line(
                user_id=self._user_id,
                bucket=bucket,
                month=self._month if bucket is Bucket.ALLOWANCE else None,
                key_id=self._key_id if bucket is Bucket.KEY_BUDGET else None,
                kind=kind,
                amount=amount,
                total=total,
                hold_id=hold_id,
                by_id=by,
                created_at=self._at,
            )
        )


def take_hold(
    *,
    user_id: UUID,
    key_id: UUID | None,
    tokens: int,
    request_id: str,
    model: str,
    source: Source,
    owner: UUID,
    now: datetime | None = None,
) -> Hold:
    """Set `tokens` aside for one request, whole, and return the open Hold (C-318 to C-325).

    `tokens` is at least 1; `key_id` is a key of the User, or None where no key is used; `owner` is
    the token of the calling process's lease; `now` is this moment when left out. Raises
    `BudgetExceeded` when the tokens do not fit, and `OwnerLost` when the lease was reaped; nothing
    is written then.
    """
    at = now or timezone.now()
    with transaction.atomic():
        books = Books.lock(user_id, at, key_id=key_id, owner=owner)
        left = books.left()
        hold = Hold(
            id=time_ordered_id(at),
            user_id=user_id,
            key_id=key_id,
            owner_id=owner,
            request_id=request_id,
            model=model,
            source=source,
            tokens=tokens,
            bucket=left.bucket_for(tokens),
            month=month_of(at),
            key_budget=left.key_left is not None,
            opened_at=at,
        )
        books.move_hold(hold, -tokens, EntryKind.HOLD)
        books.write(statements.insert_hold(hold))
    return hold


def settle(
    *,
    hold_id: UUID,
    owner: UUID,
    prompt_tokens: int,
    completion_tokens: int,
    status: UsageStatus,
    counted: Counted,
    now: datetime | None = None,
) -> bool:
    """End a Hold that pays for `prompt_tokens + completion_tokens` (C-336 to C-351).

    What it held beyond that goes back to where it came from, to the month in which it began. What
    was used beyond the Hold is taken from what is left: first of the same bucket, then of the
    User's other one, and of the key's own Budget, each down to 0 (C-349). A harvest pays at most
    its Hold (C-351). With `Counted.HELD` the two counts must add up to the Hold (C-340). Returns
    True when this call ended the Hold, and False, with nothing written, when it had ended before or
    is not this owner's (C-350).
    """
    at = now or timezone.now()
    with transaction.atomic():
        found = _lock_open(hold_id, owner, at)
        if found is None:
            return False
        books, hold = found
        used = prompt_tokens + completion_tokens
        beyond = 0 if hold.source == Source.HARVEST else max(0, used - hold.tokens)
        books.move_hold(hold, max(0, hold.tokens - used), EntryKind.SETTLE)
        hold.paid = min(used, hold.tokens) + _take_overage(books, hold, beyond)
        hold.prompt_tokens = prompt_tokens
        hold.completion_tokens = completion_tokens
        hold.status = status
        hold.counted = counted
        hold.state, hold.ended_at = HoldState.SETTLED, at
        books.write(
            statements.end_hold(hold),
            statements.add_to_site(hold),
            statements.add_usage(hold),
            statements.add_hour(hold),
            statements.add_week(hold),
        )
    return True


def release(*, hold_id: UUID, owner: UUID, now: datetime | None = None) -> bool:
    """End a Hold that pays nothing: all of it goes back (C-338, C-342, C-344 to C-347).

    Returns as `settle` does.
    """
    at = now or timezone.now()
    with transaction.atomic():
        found = _lock_open(hold_id, owner, at)
        if found is None:
            return False
        books, hold = found
        books.move_hold(hold, hold.tokens, EntryKind.RELEASE)
        hold.state, hold.ended_at = HoldState.RELEASED, at
        books.write(statements.end_hold(hold))
    return True


def _lock_open(hold_id: UUID, owner: UUID, at: datetime) -> tuple[Books, Hold] | None:
    """Lock and read a Hold, if it is open and this owner's; one that ended has no owner."""
    found = Books.lock_hold(hold_id, at)
    return found if found and found[1].owner_id == owner else None


def _take_overage(books: Books, hold: Hold, beyond: int) -> int:
    """Take what was used beyond a Hold as far as tokens are left; return how much was taken."""
    kind = EntryKind.OVERAGE
    from_allowance = min(beyond, books.allowance_left)
    from_budget = min(beyond, books.totals.budget_left)
    if hold.bucket == Bucket.ALLOWANCE:
        from_budget = min(from_budget, beyond - from_allowance)
    else:
        from_allowance = min(from_allowance, beyond - from_budget)
    books.move_allowance(-from_allowance, kind, hold_id=hold.id)
    books.move_budget(-from_budget, kind, hold_id=hold.id)
    if books.totals.key_left is not None:
        books.move_key_budget(-min(beyond, books.totals.key_left), kind, hold_id=hold.id)
    return from_allowance + from_budget


def time_ordered_id(at: datetime) -> UUID:
    """Return a UUID of version 7: milliseconds of `at`, then chance."""
    milliseconds = int(at.timestamp() * 1000)
    version, variant = 0x7 << 76, 0b10 << 62
    chance = secrets.randbits(12) << 64 | secrets.randbits(62)
    return UUID(int=milliseconds << 80 | version | variant | chance)
