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

from django.db import connection, transaction
from django.utils import timezone

from billing.allowance import TokensLeft, allowance_of, left_of, month_of
from billing.models import (
    Account,
    AllowanceMonth,
    Bucket,
    Counted,
    Entry,
    EntryKind,
    Hold,
    HoldState,
    KeyBudget,
    Owner,
    Source,
    UsageStatus,
)
from billing.usage import record


class OwnerLost(Exception):
    """The lease of the process was reaped: it must register anew before it takes a Hold."""


class Books:
    """The totals of one User under the lock of the Account row, and the lines not yet written."""

    def __init__(self, account: Account, at: datetime) -> None:
        """Use `Books.lock`: an instance is only right while the Account row is locked."""
        self.account = account
        self.at = at
        self._months: dict[date, AllowanceMonth] = {}
        self._keys: dict[UUID, KeyBudget | None] = {}
        self._entries: list[Entry] = []

    @classmethod
    def lock(cls, user_id: UUID, at: datetime) -> "Books":
        """Lock the Account of a User, making it at the first need; needs a transaction."""
        accounts = Account.objects.select_for_update(no_key=True)
        account = accounts.filter(pk=user_id).first()
        if account is None:
            Account.objects.bulk_create([Account(user_id=user_id)], ignore_conflicts=True)
            account = accounts.get(pk=user_id)
        return cls(account, at)

    def month(self, month: date) -> AllowanceMonth:
        """Return a month's count, one that starts at 0 when the month has none (C-323)."""
        if month not in self._months:
            found = AllowanceMonth.objects.filter(account=self.account, month=month)
            new = AllowanceMonth(account=self.account, month=month)
            self._months[month] = next(iter(found), new)
        return self._months[month]

    def key_budget(self, key_id: UUID) -> KeyBudget | None:
        """Return the Budget of a key of this User, or None when the key has none (C-321)."""
        if key_id not in self._keys:
            self._keys[key_id] = KeyBudget.objects.filter(
                account=self.account, key_id=key_id
            ).first()
        return self._keys[key_id]

    def open_key_budget(self, key_id: UUID) -> KeyBudget:
        """Return the Budget of a key of this User, made empty when the key has none (A-440)."""
        budget = self.key_budget(key_id)
        if budget is None:
            budget = KeyBudget.objects.create(account=self.account, key_id=key_id)
            self._keys[key_id] = budget
        return budget

    def allowance_left(self, month: date) -> int:
        """Return what is left of a month's allowance, at least 0."""
        return max(0, allowance_of(self.account.allowance) - self.month(month).used)

    def left(self, key_id: UUID | None) -> TokensLeft:
        """Return what a request of this moment could take."""
        key = self.key_budget(key_id) if key_id else None
        return left_of(
            own=self.account.allowance,
            used=self.month(month_of(self.at)).used,
            budget_left=self.account.budget_left,
            key_left=key.left if key else None,
            at=self.at,
        )

    def move_allowance(self, amount: int, kind: EntryKind, hold: Hold) -> None:
        """Give `amount` back to the month of a Hold, or take it when below 0 (C-322)."""
        if amount:
            month = self.month(hold.month)
            month.used -= amount
            self._line(Bucket.ALLOWANCE, amount, -month.used, kind, hold=hold, month=hold.month)

    def move_budget(
        self, amount: int, kind: EntryKind, *, hold: Hold | None = None, by: UUID | None = None
    ) -> None:
        """Add `amount` to the Budget, or take it when below 0."""
        if amount or kind is EntryKind.SET:
            self.account.budget_left += amount
            total = self.account.budget_left
            self._line(Bucket.BUDGET, amount, total, kind, hold=hold, by=by)

    def move_key_budget(
        self,
        budget: KeyBudget,
        amount: int,
        kind: EntryKind,
        *,
        hold: Hold | None = None,
        by: UUID | None = None,
    ) -> None:
        """Add `amount` to a key's own Budget, or take it when below 0."""
        if amount or kind is EntryKind.SET:
            budget.left += amount
            key_id = budget.key_id
            self._line(
                Bucket.KEY_BUDGET, amount, budget.left, kind, hold=hold, key_id=key_id, by=by
            )

    def move_hold(self, hold: Hold, amount: int, kind: EntryKind) -> None:
        """Move `amount` in each bucket that a Hold was taken from (C-318, C-320)."""
        if hold.bucket == Bucket.ALLOWANCE:
            self.move_allowance(amount, kind, hold)
        else:
            self.move_budget(amount, kind, hold=hold)
        if hold.key_budget and hold.key_id and (budget := self.key_budget(hold.key_id)):
            self.move_key_budget(budget, amount, kind, hold=hold)

    def write(self) -> None:
        """Write the totals that moved and their lines."""
        moved = {(entry.bucket, entry.month, entry.key_id) for entry in self._entries}
        for bucket, month, key_id in moved:
            if bucket == Bucket.BUDGET:
                self.account.save(update_fields=["budget_left"])
            elif month:
                self._months[month].save()
            elif key_id and (budget := self._keys[key_id]):
                budget.save(update_fields=["left"])
        Entry.objects.bulk_create(self._entries)
        self._entries = []

    def _line(
        self,
        bucket: Bucket,
        amount: int,
        total: int,
        kind: EntryKind,
        *,
        hold: Hold | None = None,
        month: date | None = None,
        key_id: UUID | None = None,
        by: UUID | None = None,
    ) -> None:
        self._entries.append(
            Entry(
                user_id=self.account.user_id,
                bucket=bucket,
                month=month,
                key_id=key_id,
                kind=kind,
                amount=amount,
                total=total,
                hold=hold,
                by_id=by,
                created_at=self.at,
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
        _share(owner)
        books = Books.lock(user_id, at)
        left = books.left(key_id)
        hold = Hold(
            id=_time_ordered_id(at),
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
        hold.save(force_insert=True)
        books.move_hold(hold, -tokens, EntryKind.HOLD)
        books.write()
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
        _end(hold, HoldState.SETTLED, at)
        books.write()
        record(hold)
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
        _end(hold, HoldState.RELEASED, at)
        books.write()
    return True


def _share(owner: UUID) -> None:
    """Hold the Owner row for this transaction, against a reaper but not against heartbeats."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT 1 FROM {Owner._meta.db_table} WHERE token = %s FOR KEY SHARE",  # noqa: S608
            [owner],
        )
        if cursor.fetchone() is None:
            raise OwnerLost(f"the lease {owner} was reaped")


def _lock_open(hold_id: UUID, owner: UUID, at: datetime) -> tuple[Books, Hold] | None:
    """Lock the User's Account, then read the Hold, if it is open and this owner's.

    The Hold is looked for by its id alone: with the owner in the query a planner without
    statistics may walk through all open Holds of the process instead.
    """
    user_id = Hold.objects.filter(id=hold_id).values_list("user_id", flat=True).first()
    if user_id is None:
        return None
    books = Books.lock(user_id, at)
    hold = Hold.objects.get(id=hold_id)
    return (books, hold) if hold.owner_id == owner else None


def _take_overage(books: Books, hold: Hold, beyond: int) -> int:
    """Take what was used beyond a Hold as far as tokens are left; return how much was taken."""
    kind = EntryKind.OVERAGE
    from_allowance = min(beyond, books.allowance_left(hold.month)) if beyond else 0
    from_budget = min(beyond, books.account.budget_left)
    if hold.bucket == Bucket.ALLOWANCE:
        from_budget = min(from_budget, beyond - from_allowance)
    else:
        from_allowance = min(from_allowance, beyond - from_budget)
    books.move_allowance(-from_allowance, kind, hold)
    books.move_budget(-from_budget, kind, hold=hold)
    if hold.key_budget and hold.key_id and (budget := books.key_budget(hold.key_id)):
        books.move_key_budget(budget, -min(beyond, budget.left), kind, hold=hold)
    return from_allowance + from_budget


def _end(hold: Hold, state: HoldState, at: datetime) -> None:
    hold.state = state
    hold.owner = None
    hold.ended_at = at
    hold.save(force_update=True)


def _time_ordered_id(at: datetime) -> UUID:
    """Return a UUID of version 7: milliseconds of `at`, then chance."""
    milliseconds = int(at.timestamp() * 1000)
    version, variant = 0x7 << 76, 0b10 << 62
    chance = secrets.randbits(12) << 64 | secrets.randbits(62)
    return UUID(int=milliseconds << 80 | version | variant | chance)
