"""Many requests at the same moment on few tokens."""

import pytest

from billing.allowance import BudgetExceeded, tokens_left
from billing.audit import check_ledger
from billing.grants import set_key_budget
from billing.models import Entry, Hold, HoldState
from tests.accounts.at_once import at_once
from tests.accounts.factory import make_key
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db(transaction=True)


def refused(results):
    return sum(isinstance(result, BudgetExceeded) for result in results)


@pytest.mark.row("C-325")
@pytest.mark.parametrize("bucket", ["allowance", "budget", "key_budget"])
def test_k_requests_at_once_on_tokens_for_one_less(lease, bucket):
    k, size = 24, 7
    enough = size * (k - 1)
    user = make_user_with(
        allowance=10_000 if bucket == "key_budget" else enough if bucket == "allowance" else 0,
        budget=enough if bucket == "budget" else 0,
    )
    key, _ = make_key(user)
    if bucket == "key_budget":
        set_key_budget(key_id=key.id, tokens=enough, by=None)
    results = at_once([lambda: take(user, size, lease, key_id=key.id)] * k)
    assert refused(results) == 1
    assert Hold.objects.open().count() == k - 1
    assert tokens_left(user_id=user.id, key_id=key.id).largest_hold == 0
    assert check_ledger() == []


@pytest.mark.case("B01")
@pytest.mark.parametrize(("choices", "admitted"), [(1, 4), (4, 1)])
def test_a_budget_of_100_admits_what_fits_of_20_requests_at_once(lease, choices, admitted):
    user = make_user_with(allowance=0, budget=100)
    size = 5 + choices * 20
    results = at_once([lambda: take(user, size, lease)] * 20)
    assert refused(results) == 20 - admitted
    held = [result for result in results if isinstance(result, Hold)]
    assert len(held) == admitted
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 100 - admitted * size
    assert all(pay(hold, lease, 5, choices * 20) for hold in held)
    spent = -sum(Entry.objects.exclude(hold=None).values_list("amount", flat=True))
    assert spent == admitted * size <= 100


@pytest.mark.row("C-350")
def test_ends_of_one_hold_at_once_make_one_end(lease):
    user = make_user_with(allowance=1000)
    for _ in range(5):
        hold = take(user, 100, lease)
        ends = at_once(
            [lambda h=hold: pay(h, lease, 30)] * 3 + [lambda h=hold: give_back(h, lease)] * 3
        )
        assert sorted(ends) == [False] * 5 + [True]
        hold.refresh_from_db()
        paid = 30 if hold.state == HoldState.SETTLED else 0
        assert -sum(hold.entries.values_list("amount", flat=True)) == paid
    assert check_ledger() == []


def test_the_first_requests_of_a_user_at_once_make_one_account(lease):
    from tests.accounts.factory import make_user

    user = make_user()
    results = at_once([lambda: take(user, 1, lease)] * 12)
    assert all(isinstance(result, Hold) for result in results)
    assert tokens_left(user_id=user.id, key_id=None).allowance_left == 5_000_000 - 12
    assert check_ledger() == []
