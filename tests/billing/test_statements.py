"""What the ledger sends to the database, and what a statement sees that had to wait."""

from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep

import pytest
from django.db import connection, transaction

from billing import ledger
from billing.allowance import BudgetExceeded, tokens_left
from billing.audit import check_ledger
from billing.grants import grant_to_key, set_allowance, set_budget, set_key_budget
from billing.models import Hold, HoldState, Owner
from tests.accounts.at_once import at_once
from tests.accounts.factory import make_key
from tests.billing.factory import give_back, make_user_with, pay, take


def messages(call):
    """Count the messages that a call sends, without those that begin and end its transaction."""
    sent = []

    def note(execute, sql, params, many, context):
        sent.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        call()
    return sum("SAVEPOINT" not in sql for sql in sent)


@pytest.mark.django_db
def test_each_step_of_a_hold_is_two_messages(lease):
    user = make_user_with(allowance=100, budget=100)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=200, by=None)
    holds = []
    assert messages(lambda: holds.append(take(user, 60, lease, key_id=key.id))) == 2
    assert messages(lambda: holds.append(take(user, 40, lease))) == 2
    assert messages(lambda: pay(holds[0], lease, 70, 40)) == 2
    assert messages(lambda: give_back(holds[1], lease)) == 2
    left = tokens_left(user_id=user.id, key_id=key.id)
    assert (left.allowance_left, left.budget_left, left.key_left) == (40, 50, 90)


def while_the_account_is_locked(*, lock, change, call):
    """Start `call` while another transaction has locked; change and commit only once it waits."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            lock()
            waiting: Future[object] = pool.submit(closing, call)
            until_one_waits()
            change()
        return waiting.result(timeout=30)


def closing(call):
    try:
        return call()
    finally:
        connection.close()


def until_one_waits():
    end = monotonic() + 30
    while monotonic() < end:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
        sleep(0.01)
    pytest.fail("no transaction waits for a lock")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["allowance", "used", "budget", "key_budget"])
def test_a_hold_that_had_to_wait_sees_what_was_written_meanwhile(lease, change):
    user = make_user_with(allowance=0 if change == "budget" else 100, budget=0)
    set_budget(user_id=user.id, tokens=100 if change == "budget" else 0, by=None)
    key, _ = make_key(user)
    set_key_budget(key_id=key.id, tokens=100, by=None)
    take(user, 1, lease, key_id=key.id)

    def spend():
        if change == "allowance":
            set_allowance(user_id=user.id, tokens=5)
        elif change == "used":
            take(user, 95, lease)
        elif change == "budget":
            set_budget(user_id=user.id, tokens=5, by=None)
        else:
            set_key_budget(key_id=key.id, tokens=5, by=None)

    with pytest.raises(BudgetExceeded):
        while_the_account_is_locked(
            lock=lambda: ledger.Books.lock(user.id, user.created_at),
            change=spend,
            call=lambda: take(user, 10, lease, key_id=key.id),
        )
    assert not Hold.objects.filter(tokens=10).exists()
    assert check_ledger() == []


@pytest.mark.django_db(transaction=True)
def test_an_end_that_had_to_wait_sees_that_the_hold_has_ended(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 60, lease)
    ended = while_the_account_is_locked(
        lock=lambda: ledger.Books.lock(user.id, user.created_at),
        change=lambda: give_back(hold, lease),
        call=lambda: pay(hold, lease, 20),
    )
    assert ended is False
    hold.refresh_from_db()
    assert hold.state == HoldState.RELEASED
    assert tokens_left(user_id=user.id, key_id=None).allowance_left == 100
    assert check_ledger() == []


@pytest.mark.django_db(transaction=True)
def test_a_reaper_leaves_the_owner_of_a_hold_that_is_being_taken_and_a_heartbeat_does_not(lease):
    user = make_user_with(allowance=100)
    free = Owner.objects.select_for_update(skip_locked=True).filter(token=lease.token)

    def reapable():
        with transaction.atomic():
            return free.exists()

    with transaction.atomic():
        take(user, 10, lease)
        assert at_once([reapable, lease.renew]) == [False, True]
    assert at_once([reapable, lease.renew]) == [True, True]
