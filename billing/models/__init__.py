"""What tokens are kept as: running totals, Holds, and the ledger's lines that explain both.

Rows of this module are written by `billing.ledger`, `billing.usage` and `billing.owners` alone.
Every number is a whole number of tokens. What must never be is refused by the database itself.
"""

from billing.models.accounts import (
    Account,
    AllowanceMonth,
    KeyBudget,
    Owner,
)
from billing.models.decisions import (
    Decision,
    SpendStop,
    StopReason,
    TokenRequest,
)
from billing.models.kinds import (
    Bucket,
    Counted,
    EntryKind,
    HoldState,
    OwnerKind,
    Source,
    UsageStatus,
)
from billing.models.ledger import (
    MODEL_ID_LENGTH,
    REQUEST_ID_LENGTH,
    Entry,
    Hold,
    HoldQuerySet,
)
from billing.models.usage import (
    SLOTS,
    DailyUsage,
    Ending,
    HourlyUsage,
    SiteUsage,
    UnpaidRequests,
    WeeklyUsage,
)

__all__ = [
    "MODEL_ID_LENGTH",
    "REQUEST_ID_LENGTH",
    "SLOTS",
    "Account",
    "AllowanceMonth",
    "Bucket",
    "Counted",
    "DailyUsage",
    "Decision",
    "Ending",
    "Entry",
    "EntryKind",
    "Hold",
    "HoldQuerySet",
    "HoldState",
    "HourlyUsage",
    "KeyBudget",
    "Owner",
    "OwnerKind",
    "SiteUsage",
    "Source",
    "SpendStop",
    "StopReason",
    "TokenRequest",
    "UnpaidRequests",
    "UsageStatus",
    "WeeklyUsage",
]
