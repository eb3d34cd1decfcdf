"""Where a User stands this month: what was used, and what is left."""

from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import F, Sum
from django.utils import timezone

from billing.allowance import month_of, tokens_left
from billing.models import DailyUsage

NOTICE_PERCENT = 90
"""Percent of the tokens used from which pages say so (A-101, U-33)."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Tokens of one User in one UTC month; open Holds are already taken off what is left."""

    used: int
    """Tokens of the settled Completions that began this month."""
    allowance: int
    allowance_left: int
    budget_left: int
    refills_on: date

    @property
    def left(self) -> int:
        """Tokens left in all."""
        return self.allowance_left + self.budget_left

    @property
    def is_near_end(self) -> bool:
        """Whether at least 90% of what was used or is left has been used (A-102)."""
        whole = self.used + self.left
        return not whole or self.used * 100 >= whole * NOTICE_PERCENT


def standing_of(user_id: UUID, now: datetime | None = None) -> Standing:
    """Return where a User stands; two queries, whatever the history. `now` is this moment."""
    moment = now or timezone.now()
    left = tokens_left(user_id=user_id, key_id=None, now=moment)
    used = DailyUsage.objects.filter(user=user_id, day__gte=month_of(moment)).aggregate(
        tokens=Sum(F("prompt_tokens") + F("completion_tokens"))
    )["tokens"]
    return Standing(
        used=used or 0,
        allowance=left.allowance,
        allowance_left=left.allowance_left,
        budget_left=left.budget_left,
        refills_on=left.refills_on,
    )
