"""What a User may still spend: this month's allowance, the Budget, and a key's own Budget."""

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from billing import statements
from billing.models import Bucket
from billing.statements import Totals


class Short(enum.Enum):
    """Which tokens cannot hold a request; each has a message of its own (C-357 to C-359)."""

    BUDGET = "budget"
    ALLOWANCE_AND_BUDGET = "allowance_and_budget"
    KEY_BUDGET = "key_budget"


class BudgetExceeded(Exception):
    """A Hold does not fit. `tokens` is its size; `refills_on` the UTC day of a new allowance."""

    def __init__(self, *, tokens: int, short: Short, refills_on: date) -> None:
        super().__init__(f"{tokens} tokens do not fit: {short.value} is short")
        self.tokens = tokens
        self.short = short
        self.refills_on = refills_on


@dataclass(frozen=True, slots=True)
class TokensLeft:
    """Tokens left at one moment, open Holds already taken off; none is below 0.

    `key_left` is None for a key without a Budget of its own, and for work without a key.
    """

    allowance: int
    allowance_left: int
    budget_left: int
    key_left: int | None
    refills_on: date

    @property
    def largest_hold(self) -> int:
        """The largest Hold that fits: a Hold is never split (C-318, C-320, U-17)."""
        left = max(self.allowance_left, self.budget_left)
        return left if self.key_left is None else min(left, self.key_left)

    def bucket_for(self, tokens: int) -> Bucket:
        """Return where a Hold of so many tokens comes from (C-318 to C-320).

        Raises `BudgetExceeded` where it does not fit. When the User's own tokens and the key's
        Budget both fall short, the User's are named, because more of them can be asked for.
        """
        if tokens <= max(self.allowance_left, self.budget_left):
            if self.key_left is not None and tokens > self.key_left:
                raise self._exceeded(tokens, Short.KEY_BUDGET)
            return Bucket.ALLOWANCE if tokens <= self.allowance_left else Bucket.BUDGET
        raise self._exceeded(tokens, Short.ALLOWANCE_AND_BUDGET if self.allowance else Short.BUDGET)

    def _exceeded(self, tokens: int, short: Short) -> BudgetExceeded:
        return BudgetExceeded(tokens=tokens, short=short, refills_on=self.refills_on)


def tokens_left(*, user_id: UUID, key_id: UUID | None, now: datetime | None = None) -> TokensLeft:
    """Return what a User, and a key with a Budget of its own, may still spend.

    One query, no lock: a Hold taken afterwards may still find less. `now` is this moment when
    left out.
    """
    month = month_of(now or timezone.now())
    read = statements.read_totals(user_id=user_id, month=month, key_id=key_id)
    [row] = statements.send(read)
    return left_of(Totals(*row) if row else Totals(), month)


def left_of(totals: Totals, month: date) -> TokensLeft:
    """Return what running totals leave; `month` is the one whose allowance they count."""
    allowance = allowance_of(totals.allowance)
    return TokensLeft(
        allowance=allowance,
        allowance_left=max(0, allowance - totals.used),
        budget_left=totals.budget_left,
        key_left=totals.key_left,
        refills_on=_next_month(month),
    )


def allowance_of(own: int | None) -> int:
    """Return the tokens of each month: the User's own number, else the deployment's (C-316)."""
    return settings.BASALT.monthly_allowance if own is None else own


def month_of(moment: datetime) -> date:
    """Return the first day of the UTC month that holds `moment` (C-323)."""
    return moment.astimezone(UTC).date().replace(day=1)


def _next_month(first: date) -> date:
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)
