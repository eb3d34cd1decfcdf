"""The running totals of a User, and the processes that may change them."""

from django.db import models
from django.db.models import Q

from accounts.models import ApiKey, User
from billing.models.kinds import OwnerKind


class Owner(models.Model):
    """A living process, known by the random token of its lease.

    An open Hold refers to its Owner, so the database itself refuses both a Hold of a process whose
    row is gone and the end of a row that still has open Holds. `expires_at` is written and judged
    by the database's clock, because processes may run on hosts whose clocks differ.
    """

    token = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=16, choices=OwnerKind)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.kind} {self.pid} on {self.host}"


class Account(models.Model):
    """The running totals of a User, and the row that every write for that User locks first.

    `budget_left` is what the Budget has left, open Holds already taken off. `allowance` is the
    User's own monthly allowance; the deployment's `monthly_allowance` holds when it is null, and 0
    is a User without any.
    """

    user = models.OneToOneField(
        User, primary_key=True, on_delete=models.PROTECT, related_name="account"
    )
    budget_left = models.BigIntegerField(default=0)
    allowance = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(budget_left__gte=0), name="account_budget_from_0"),
            models.CheckConstraint(
                condition=Q(allowance__isnull=True) | Q(allowance__gte=0),
                name="account_allowance_not_below_0",
            ),
        ]

    def __str__(self) -> str:
        return str(self.user_id)


class AllowanceMonth(models.Model):
    """What a User used of one UTC month's allowance, open Holds included (C-322, C-323)."""

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="months")
    month = models.DateField()
    used = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "month"], name="allowance_month_once"),
            models.CheckConstraint(condition=Q(used__gte=0), name="allowance_month_not_below_0"),
            models.CheckConstraint(condition=Q(month__day=1), name="allowance_month_first_day"),
        ]

    def __str__(self) -> str:
        return f"{self.account_id} {self.month:%Y-%m}"


class KeyBudget(models.Model):
    """What an API key's own Budget has left, open Holds taken off; most keys have none (C-321)."""

    key = models.OneToOneField(
        ApiKey, primary_key=True, on_delete=models.PROTECT, related_name="budget"
    )
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="key_budgets")
    left = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(left__gte=0), name="key_budget_not_below_0")
        ]

    def __str__(self) -> str:
        return str(self.key_id)
