"""Any history of Holds, ends, grants, months and dead processes keeps the rules of tokens.

The rules are written down a second time, as plain numbers in memory, and the two are compared after
each step.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing import grants, ledger
from billing.allowance import BudgetExceeded, Short, tokens_left
from billing.audit import check_ledger
from billing.models import (
    Account,
    AllowanceMonth,
    Counted,
    Hold,
    KeyBudget,
    Owner,
    OwnerKind,
    Source,
    UsageStatus,
)
from billing.owners import Lease, reap, register
from billing.usage import rebuild
from tests.accounts.factory import make_key, make_user

FAR = datetime(2200, 1, 1, tzinfo=UTC)
PAST = datetime(2000, 1, 1, tzinfo=UTC)
MANY = st.integers(1, 60)
USED = st.integers(0, 60)
WHICH = st.integers(0, 10**6)
KEY = st.sampled_from([None, 0, 1])


@dataclass
class Rest:
    """A Hold of the plain rules."""

    tokens: int
    bucket: str
    month: date
    key: int | None
    key_budget: bool
    owner: UUID
    harvest: bool
    open: bool = True
    paid: int | None = None


@dataclass
class Rules:
    """The rules of tokens, without a database."""

    allowance: int | None = None
    budget: int = 0
    used: dict[date, int] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    holds: dict[UUID, Rest] = field(default_factory=dict)

    def allowance_left(self, month: date) -> int:
        allowance = self.allowance
        if allowance is None:
            allowance = django_settings.BASALT.monthly_allowance
        return max(0, allowance - self.used.get(month, 0))

    def place(self, tokens: int, month: date, key: int | None) -> str | Short:
        left = self.allowance_left(month)
        if tokens > left and tokens > self.budget:
            return Short.BUDGET if self.allowance == 0 else Short.ALLOWANCE_AND_BUDGET
        if key in self.keys and tokens > self.keys[key]:
            return Short.KEY_BUDGET
        return "allowance" if tokens <= left else "budget"

    def give(self, hold: Rest, tokens: int) -> None:
        if hold.bucket == "allowance":
            self.used[hold.month] = self.used.get(hold.month, 0) - tokens
        else:
            self.budget += tokens
        if hold.key_budget:
            self.keys[hold.key] += tokens

    def end(self, hold: Rest, used: int) -> None:
        hold.open = False
        self.give(hold, hold.tokens)
        if hold.harvest:
            used = min(used, hold.tokens)
        within = min(used, hold.tokens)
        self.give(hold, -within)
        rest = used - within
        if hold.key_budget:
            self.keys[hold.key] -= min(rest, self.keys[hold.key])
        for bucket in sorted(("allowance", "budget"), reverse=hold.bucket == "budget"):
            if bucket == "allowance":
                part = min(rest, self.allowance_left(hold.month))
                self.used[hold.month] = self.used.get(hold.month, 0) + part
            else:
                part = min(rest, self.budget)
                self.budget -= part
            rest -= part
        hold.paid = used - rest


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.user = make_user()
        self.keys = [make_key(self.user)[0].id for _ in range(2)]
        self.rules = Rules()
        self.now = datetime(2031, 1, 30, 12, tzinfo=UTC)
        self.living = [self.new_owner(), self.new_owner()]
        self.dead: list[Lease] = []
        self.lost: list[Lease] = []
        self.set_allowance(40)

    def new_owner(self) -> Lease:
        lease = register(OwnerKind.WEB)
        Owner.objects.filter(token=lease.token).update(expires_at=FAR)
        return lease

    @property
    def month(self) -> date:
        return date(self.now.year, self.now.month, 1)

    @rule(tokens=MANY, key=KEY, who=WHICH, harvest=st.booleans())
    def take(self, tokens: int, key: int | None, who: int, harvest: bool) -> None:
        owners = self.living + self.dead
        self.hold(tokens, key, owners[who % len(owners)].token, harvest=harvest)

    @rule(tokens=MANY, key=KEY, beyond=MANY, status=st.sampled_from(UsageStatus))
    def overrun(self, tokens: int, key: int | None, beyond: int, status: UsageStatus) -> None:
        """Take a Hold and use more than it holds."""
        hold_id = self.hold(tokens, key, self.living[0].token)
        if hold_id is not None:
            self.end(hold_id, tokens, beyond, status, Counted.REPORTED)

    @precondition(lambda self: self.rules.holds)
    @rule(
        which=WHICH,
        prompt=USED,
        completion=USED,
        status=st.sampled_from(UsageStatus),
        counted=st.sampled_from(Counted),
    )
    def settle(
        self, which: int, prompt: int, completion: int, status: UsageStatus, counted: Counted
    ) -> None:
        hold_id, hold = self.pick(which)
        if counted is Counted.HELD:
            prompt = min(prompt, hold.tokens)
            completion = hold.tokens - prompt
        self.end(hold_id, prompt, completion, status, counted)

    def hold(
        self, tokens: int, key: int | None, owner: UUID, *, harvest: bool = False
    ) -> UUID | None:
        """Take a Hold where the plain rules have room for it, and be refused where they do not."""
        expected = self.rules.place(tokens, self.month, key)
        with pytest.raises(BudgetExceeded) if isinstance(expected, Short) else nullcontext() as no:
            hold = ledger.take_hold(
                user_id=self.user.id,
                key_id=None if key is None else self.keys[key],
                tokens=tokens,
                request_id="req_1",
                model="tiny",
                source=Source.HARVEST if harvest else Source.API,
                owner=owner,
                now=self.now,
            )
        if no is not None:
            assert (no.value.short, no.value.tokens) == (expected, tokens)
            return None
        assert hold.bucket == expected
        kept = Rest(tokens, hold.bucket, self.month, key, key in self.rules.keys, owner, harvest)
        self.rules.holds[hold.id] = kept
        self.rules.give(kept, -tokens)
        return hold.id

    def end(
        self, hold_id: UUID, prompt: int, completion: int, status: UsageStatus, counted: Counted
    ) -> None:
        """Settle a Hold; the plain rules say whether that ends it, and what it pays."""
        hold = self.rules.holds[hold_id]
        ended = ledger.settle(
            hold_id=hold_id,
            owner=hold.owner,
            prompt_tokens=prompt,
            completion_tokens=completion,
            status=status,
            counted=counted,
            now=self.now,
        )
        assert ended is hold.open
        if ended:
            self.rules.end(hold, prompt + completion)

    @precondition(lambda self: self.rules.holds)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        hold_id, hold = self.pick(which)
        ended = ledger.release(hold_id=hold_id, owner=hold.owner, now=self.now)
        assert ended is hold.open
        if ended:
            self.free(hold)

    @precondition(lambda self: self.rules.holds)
    @rule(which=WHICH)
    def end_of_another_owner(self, which: int) -> None:
        hold_id, hold = self.pick(which)
        for lease in [*self.living, *self.dead, *self.lost]:
            if lease.token != hold.owner:
                assert not ledger.release(hold_id=hold_id, owner=lease.token, now=self.now)

    def pick(self, which: int) -> tuple[UUID, Rest]:
        """Choose an open Hold mostly, and one that ended now and then."""
        still_open = [item for item in self.rules.holds.items() if item[1].open]
        chosen = still_open if still_open and which % 4 else list(self.rules.holds.items())
        return chosen[which % len(chosen)]

    def free(self, hold: Rest) -> None:
        hold.open = False
        self.rules.give(hold, hold.tokens)

    @rule(tokens=MANY)
    def grant(self, tokens: int) -> None:
        grants.grant(user_id=self.user.id, tokens=tokens, by=None)
        self.rules.budget += tokens

    @rule(tokens=st.integers(0, 80))
    def set_budget(self, tokens: int) -> None:
        grants.set_budget(user_id=self.user.id, tokens=tokens, by=self.user.id)
        self.rules.budget = tokens

    @rule(tokens=st.one_of(st.none(), st.integers(0, 100)))
    def set_allowance(self, tokens: int | None) -> None:
        grants.set_allowance(user_id=self.user.id, tokens=tokens)
        self.rules.allowance = tokens

    @rule(key=st.integers(0, 1), tokens=MANY)
    def grant_to_key(self, key: int, tokens: int) -> None:
        grants.grant_to_key(key_id=self.keys[key], tokens=tokens, by=None)
        self.rules.keys[key] = self.rules.keys.get(key, 0) + tokens

    @rule(key=st.integers(0, 1), tokens=st.integers(0, 80))
    def set_key_budget(self, key: int, tokens: int) -> None:
        grants.set_key_budget(key_id=self.keys[key], tokens=tokens, by=None)
        self.rules.keys[key] = tokens

    @rule(hours=st.integers(1, 24 * 40))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)

    @rule(who=WHICH)
    def a_process_dies(self, who: int) -> None:
        lease = self.living.pop(who % len(self.living))
        Owner.objects.filter(token=lease.token).update(expires_at=PAST)
        self.dead.append(lease)
        self.living.append(self.new_owner())

    @rule()
    def reap(self) -> None:
        report = reap(self.now)
        assert sorted(report.ended) == sorted(lease.token for lease in self.dead)
        for lease in self.dead:
            assert not lease.renew()
            with pytest.raises(ledger.OwnerLost):
                ledger.take_hold(
                    user_id=self.user.id, key_id=None, tokens=1, request_id="r", model="tiny",
                    source=Source.API, owner=lease.token, now=self.now,
                )  # fmt: skip
        assert report.holds == self.forget({lease.token for lease in self.dead})
        self.lost += self.dead
        self.dead = []

    @rule(who=WHICH)
    def a_process_stops(self, who: int) -> None:
        lease = self.living.pop(who % len(self.living))
        lease.release()
        self.forget({lease.token})
        self.lost.append(lease)
        self.living.append(self.new_owner())

    def forget(self, tokens: set[UUID]) -> int:
        """Release in the plain rules what these owners hold; return how many Holds that were."""
        lost = [hold for hold in self.rules.holds.values() if hold.open and hold.owner in tokens]
        for hold in lost:
            self.free(hold)
        return len(lost)

    @rule()
    def rebuild_usage(self) -> None:
        rebuild(user_id=self.user.id)

    @invariant()
    def balances_are_those_of_the_rules(self) -> None:
        account = Account.objects.get(user=self.user)
        assert account.budget_left == self.rules.budget
        used = dict(AllowanceMonth.objects.filter(account=account).values_list("month", "used"))
        assert used == {month: self.rules.used[month] for month in used}
        assert not any(self.rules.used[month] for month in self.rules.used.keys() - used.keys())
        assert dict(KeyBudget.objects.filter(account=account).values_list("key_id", "left")) == {
            self.keys[key]: left for key, left in self.rules.keys.items()
        }
        for key in (None, 0, 1):
            key_id = None if key is None else self.keys[key]
            left = tokens_left(user_id=self.user.id, key_id=key_id, now=self.now)
            assert (left.allowance_left, left.budget_left, left.key_left) == (
                self.rules.allowance_left(self.month),
                self.rules.budget,
                self.rules.keys.get(key),
            )

    @invariant()
    def holds_are_those_of_the_rules(self) -> None:
        holds = Hold.objects.filter(user=self.user)
        assert {hold.id: (hold.state == "open", hold.paid) for hold in holds} == {
            hold_id: (hold.open, hold.paid) for hold_id, hold in self.rules.holds.items()
        }

    def teardown(self) -> None:
        self.reap()
        assert check_ledger() == []
        for lease in self.living:
            lease.release()
            self.forget({lease.token})
        self.balances_are_those_of_the_rules()
        self.holds_are_those_of_the_rules()
        assert check_ledger() == []
        assert not Owner.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("C-318", "C-320", "C-322", "C-349", "C-350")
@pytest.mark.case("B04")
def test_any_history_keeps_the_rules():
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert not connection.in_atomic_block
