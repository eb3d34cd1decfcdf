"""Where a Hold comes from, how it ends, and what the database refuses."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.db import IntegrityError, connection, transaction

from accounts.keys import revoke_key
from billing.allowance import BudgetExceeded, Short, tokens_left
from billing.grants import grant, grant_to_key, set_allowance, set_budget, set_key_budget
from billing.ledger import OwnerLost
from billing.models import (
    Account,
    AllowanceMonth,
    Bucket,
    Counted,
    Entry,
    EntryKind,
    Hold,
    HoldState,
    Owner,
    OwnerKind,
    Source,
    UsageStatus,
)
from billing.owners import register
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db

JANUARY = datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC)
FEBRUARY = datetime(2031, 2, 1, tzinfo=UTC)


def left(user, key=None, now=None):
    both = tokens_left(user_id=user.id, key_id=key.id if key else None, now=now)
    return both.allowance_left, both.budget_left


@pytest.mark.row("C-316")
def test_a_new_user_has_the_allowance_of_the_settings_until_an_admin_sets_another(settings, lease):
    assert settings.BASALT.monthly_allowance == 5_000_000
    user = make_user()
    assert left(user) == (5_000_000, 0)
    assert take(user, 5_000_000, lease).bucket == Bucket.ALLOWANCE
    set_allowance(user_id=user.id, tokens=5_000_007)
    assert left(user) == (7, 0)
    set_allowance(user_id=user.id, tokens=0)
    assert left(user) == (0, 0)
    set_allowance(user_id=user.id, tokens=None)
    settings.BASALT = settings.BASALT.model_copy(update={"monthly_allowance": 5_000_003})
    assert left(user) == (3, 0)


@pytest.mark.row("C-317")
def test_keys_and_work_without_a_key_share_one_allowance(lease):
    user = make_user_with(allowance=10)
    take(user, 4, lease, key_id=make_key(user)[0].id)
    take(user, 3, lease, key_id=make_key(user)[0].id, source=Source.JOB)
    take(user, 2, lease, source=Source.PLAYGROUND)
    assert left(user) == (1, 0)
    with pytest.raises(BudgetExceeded):
        take(user, 2, lease, source=Source.LOOM)


@pytest.mark.row("C-318", "C-319")
def test_a_hold_comes_whole_from_the_allowance_or_else_whole_from_the_budget(lease):
    user = make_user_with(allowance=10, budget=8)
    assert take(user, 6, lease).bucket == Bucket.ALLOWANCE
    assert left(user) == (4, 8)
    assert take(user, 5, lease).bucket == Bucket.BUDGET
    assert left(user) == (4, 3)
    assert take(user, 4, lease).bucket == Bucket.ALLOWANCE
    assert left(user) == (0, 3)


@pytest.mark.row("C-318")
def test_a_hold_is_never_split(lease):
    user = make_user_with(allowance=10, budget=8)
    with pytest.raises(BudgetExceeded):
        take(user, 11, lease)
    assert left(user) == (10, 8)
    assert not Hold.objects.filter(user=user).exists()


@pytest.mark.row("C-320")
def test_a_hold_is_taken_from_the_budget_of_its_key_as_well(lease):
    user = make_user_with(allowance=10, budget=100)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=60, by=None)
    assert take(user, 10, lease, key_id=key.id).bucket == Bucket.ALLOWANCE
    assert key_left(user, key) == 50
    large = take(user, 45, lease, key_id=key.id)
    assert (large.bucket, large.key_budget) == (Bucket.BUDGET, True)
    assert (left(user), key_left(user, key)) == ((0, 55), 5)
    with pytest.raises(BudgetExceeded) as refused:
        take(user, 6, lease, key_id=key.id)
    assert refused.value.short is Short.KEY_BUDGET
    give_back(large, lease)
    assert (left(user), key_left(user, key)) == ((0, 100), 50)


@pytest.mark.row("C-321")
def test_a_key_without_a_budget_has_the_users_tokens(lease):
    user = make_user_with(allowance=10)
    rich, _ = make_key(user)
    other, _ = make_key(user)
    grant_to_key(key_id=rich.id, tokens=3, by=None)
    assert take(user, 10, lease, key_id=other.id).key_budget is False
    assert key_left(user, rich) == 3
    assert key_left(user, other) is None


def key_left(user, key):
    return tokens_left(user_id=user.id, key_id=key.id).key_left


def test_what_is_short_is_said_with_the_size_and_the_day_of_the_next_allowance(lease):
    december = datetime(2031, 12, 5, tzinfo=UTC)
    both = make_user_with(allowance=10, budget=8)
    with pytest.raises(BudgetExceeded) as refused:
        take(both, 13, lease, now=december)
    assert refused.value.short is Short.ALLOWANCE_AND_BUDGET
    assert refused.value.tokens == 13
    assert refused.value.refills_on == date(2032, 1, 1)
    without = make_user_with(allowance=0, budget=8)
    with pytest.raises(BudgetExceeded) as refused:
        take(without, 13, lease, now=JANUARY)
    assert refused.value.short is Short.BUDGET
    assert refused.value.refills_on == date(2031, 2, 1)
    key, _ = make_key(without)
    set_key_budget(key_id=key.id, tokens=2, by=None)
    with pytest.raises(BudgetExceeded) as refused:
        take(without, 13, lease, key_id=key.id)
    assert refused.value.short is Short.BUDGET


@pytest.mark.parametrize(
    ("allowance", "budget", "key", "largest"),
    [(10, 8, None, 10), (8, 10, None, 10), (10, 8, 9, 9), (10, 8, 11, 10), (0, 0, 5, 0)],
)
def test_the_largest_hold_is_the_larger_balance_limited_by_the_keys_budget(
    lease, allowance, budget, key, largest
):
    user = make_user_with(allowance=allowance, budget=budget)
    made, _ = make_key(user)
    if key is not None:
        set_key_budget(key_id=made.id, tokens=key, by=None)
    assert tokens_left(user_id=user.id, key_id=made.id).largest_hold == largest
    with pytest.raises(BudgetExceeded):
        take(user, largest + 1, lease, key_id=made.id)
    if largest:
        take(user, largest, lease, key_id=made.id)


@pytest.mark.row("C-322")
def test_a_hold_counts_in_the_month_in_which_it_began(lease):
    user = make_user_with(allowance=100)
    settled, released = take(user, 60, lease, now=JANUARY), take(user, 40, lease, now=JANUARY)
    take(user, 70, lease, now=FEBRUARY)
    assert pay(settled, lease, 5, 6, now=FEBRUARY)
    assert give_back(released, lease, now=FEBRUARY)
    assert left(user, now=FEBRUARY) == (30, 0)
    months = AllowanceMonth.objects.filter(account__user=user)
    assert dict(months.values_list("month", "used")) == {
        date(2031, 1, 1): 11,
        date(2031, 2, 1): 70,
    }


@pytest.mark.row("C-322")
def test_use_beyond_a_hold_of_last_month_leaves_this_month_alone(lease):
    user = make_user_with(allowance=100, budget=10)
    hold = take(user, 95, lease, now=JANUARY)
    assert pay(hold, lease, 95, 9, now=FEBRUARY)
    assert left(user, now=JANUARY) == (0, 6)
    assert left(user, now=FEBRUARY) == (100, 6)


@pytest.mark.row("C-323")
def test_a_month_begins_with_nothing_used_and_nothing_carried_over(lease):
    user = make_user_with(allowance=100)
    take(user, 99, lease, now=JANUARY)
    assert left(user, now=JANUARY) == (1, 0)
    assert left(user, now=FEBRUARY) == (100, 0)
    in_prague = datetime(2031, 2, 1, 0, 59, tzinfo=timezone(timedelta(hours=1)))
    assert left(user, now=in_prague) == (1, 0)
    with pytest.raises(BudgetExceeded):
        take(user, 101, lease, now=FEBRUARY)


@pytest.mark.row("C-324")
def test_the_budget_grows_by_grants_invites_and_sets_and_falls_by_usage(lease):
    user = make_user_with(allowance=0)
    admin = make_user()
    assert left(user, now=JANUARY) == (0, 0)
    grant(user_id=user.id, tokens=50, by=admin.id)
    grant(user_id=user.id, tokens=30, by=None, kind=EntryKind.INVITE)
    assert pay(take(user, 40, lease, now=JANUARY), lease, 10, 15)
    assert left(user, now=FEBRUARY) == (0, 55)
    set_budget(user_id=user.id, tokens=20, by=admin.id)
    set_budget(user_id=user.id, tokens=20, by=admin.id)
    assert left(user) == (0, 20)
    history = Entry.objects.filter(user=user, hold=None).order_by("id")
    assert list(history.values_list("kind", "amount", "total", "by")) == [
        ("grant", 50, 50, admin.id),
        ("invite", 30, 80, None),
        ("set", -35, 20, admin.id),
        ("set", 0, 20, admin.id),
    ]


def test_settle_pays_what_was_used_and_gives_the_rest_back(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 60, lease)
    assert left(user) == (40, 0)
    assert pay(hold, lease, 20, 5, status=UsageStatus.STOPPED, counted=Counted.PARTIAL)
    hold.refresh_from_db()
    assert (hold.state, hold.paid) == (HoldState.SETTLED, 25)
    assert (hold.status, hold.counted) == (UsageStatus.STOPPED, Counted.PARTIAL)
    assert left(user) == (75, 0)


@pytest.mark.row("C-349")
@pytest.mark.parametrize(
    ("bucket", "used", "allowance_after", "budget_after", "paid"),
    [
        ("allowance", 13, 7, 20, 13),
        ("allowance", 25, 0, 15, 25),
        ("allowance", 99, 0, 0, 40),
        ("budget", 33, 10, 7, 33),
        ("budget", 45, 5, 0, 45),
        ("budget", 99, 0, 0, 50),
    ],
)
def test_use_above_the_hold_takes_what_is_left_down_to_0(
    lease, bucket, used, allowance_after, budget_after, paid
):
    if bucket == "allowance":
        user = make_user_with(allowance=20, budget=20)
        hold = take(user, 10, lease)
    else:
        user = make_user_with(allowance=10, budget=40)
        hold = take(user, 25, lease)
    assert hold.bucket == bucket
    assert pay(hold, lease, used - 1, 1)
    hold.refresh_from_db()
    assert (left(user), hold.paid) == ((allowance_after, budget_after), paid)


@pytest.mark.row("C-349")
def test_use_above_the_hold_takes_what_the_keys_budget_has_left(lease):
    user = make_user_with(allowance=100)
    key, _ = make_key(user)
    set_key_budget(key_id=key.id, tokens=12, by=None)
    assert pay(take(user, 10, lease, key_id=key.id), lease, 30)
    assert (left(user), key_left(user, key)) == ((70, 0), 0)


def test_a_harvest_pays_at_most_its_hold(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease, source=Source.HARVEST)
    assert pay(hold, lease, 30)
    hold.refresh_from_db()
    assert (hold.paid, left(user)) == (10, (90, 0))


@pytest.mark.row("C-350")
@pytest.mark.parametrize("first", ["settle", "release"])
def test_a_second_end_changes_nothing(lease, first):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease)
    assert pay(hold, lease, 4) if first == "settle" else give_back(hold, lease)
    kept = Hold.objects.filter(id=hold.id).values().get()
    balance, lines = left(user), Entry.objects.count()
    assert not pay(hold, lease, 9)
    assert not give_back(hold, lease)
    assert Hold.objects.filter(id=hold.id).values().get() == kept
    assert (left(user), Entry.objects.count()) == (balance, lines)


def test_only_its_owner_ends_a_hold(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease)
    other = register(OwnerKind.RUNNER)
    assert not pay(hold, other, 4)
    assert not give_back(hold, other)
    assert left(user) == (90, 0)
    assert pay(hold, lease, 4)


def test_a_process_without_a_lease_takes_nothing():
    user = make_user_with(allowance=100)
    lease = register(OwnerKind.WEB)
    lease.release()
    with pytest.raises(OwnerLost):
        take(user, 10, lease)
    assert left(user) == (100, 0)


def test_a_hold_of_a_revoked_key_keeps_its_key(lease):
    user = make_user_with(allowance=100)
    key, _ = make_key(user)
    hold = take(user, 10, lease, key_id=key.id)
    revoke_key(key_id=key.id)
    assert pay(hold, lease, 3)
    assert list(Hold.objects.filter(user=user).listed().values_list("key", "paid")) == [(key.id, 3)]


def test_a_released_hold_is_not_listed_and_a_running_one_is(lease):
    user = make_user_with(allowance=100)
    give_back(take(user, 1, lease), lease)
    pay(take(user, 2, lease), lease, 1)
    running = take(user, 3, lease)
    assert [hold.tokens for hold in Hold.objects.filter(user=user).listed()] == [3, 2]
    assert list(Hold.objects.filter(user=user).open()) == [running]


def test_ids_of_holds_follow_time():
    lease = register(OwnerKind.WEB)
    user = make_user_with(allowance=100)
    late, early = take(user, 1, lease, now=FEBRUARY), take(user, 1, lease, now=JANUARY)
    assert early.id < late.id
    assert early.id.version == 7
    assert early.id.int >> 80 == int(JANUARY.timestamp() * 1000)


def test_a_hold_reads_no_more_rows_however_long_the_history_is(lease):
    user, other = make_user_with(allowance=None), make_user_with(allowance=None)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=10**6, by=None)

    def rows_read():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))"
                " FROM pg_stat_xact_user_tables"
            )
            return cursor.fetchone()[0]

    def rows_of_one_request():
        before = rows_read()
        assert pay(take(user, 10, lease, key_id=key.id), lease, 5)
        return rows_read() - before

    with connection.cursor() as cursor:
        # Otherwise PostgreSQL reads a table of a few rows whole, index or not.
        cursor.execute("SET LOCAL enable_seqscan = off")
    rows_of_one_request()
    few = rows_of_one_request()
    for _ in range(50):
        take(other, 10, lease)
        take(user, 10, lease, key_id=key.id)
        pay(take(user, 10, lease, key_id=key.id), lease, 5)
    assert rows_of_one_request() == few > 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE billing_account SET budget_left = -1",
        "UPDATE billing_account SET allowance = -1",
        "UPDATE billing_allowancemonth SET used = -1",
        "UPDATE billing_allowancemonth SET month = month + 1",
        'UPDATE billing_keybudget SET "left" = -1',
        "UPDATE billing_hold SET owner_id = NULL WHERE state = 'open'",
        "UPDATE billing_hold SET state = 'released' WHERE state = 'open'",
        "UPDATE billing_hold SET state = 'settled', owner_id = NULL, ended_at = now()"
        " WHERE state = 'open'",
        "UPDATE billing_hold SET tokens = 0 WHERE state = 'open'",
        "UPDATE billing_hold SET key_budget = true WHERE key_id IS NULL AND state = 'open'",
        "UPDATE billing_hold SET paid = 1 WHERE state = 'open'",
        "UPDATE billing_hold SET paid = 1 WHERE state = 'settled'",
        "UPDATE billing_hold SET state = 'open' WHERE state = 'released'",
        "DELETE FROM billing_hold",
        "UPDATE billing_entry SET amount = amount - 1",
        "DELETE FROM billing_entry",
        "DELETE FROM billing_owner",
    ],
)
def test_the_database_refuses_what_must_never_be(lease, change):
    user = make_user_with(allowance=100, budget=100)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=50, by=None)
    pay(take(user, 10, lease, key_id=key.id), lease, 5)
    give_back(take(user, 10, lease), lease)
    take(user, 10, lease)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert cursor.rowcount != 0


def test_a_hold_that_pays_whole_pays_no_other_number(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease)
    with pytest.raises(IntegrityError, match="hold_held_pays_all"), transaction.atomic():
        pay(hold, lease, 4, 5, counted=Counted.HELD)
    assert pay(hold, lease, 4, 6, counted=Counted.HELD)
    assert left(user) == (90, 0)


def test_a_refused_hold_leaves_nothing_behind(lease):
    user = make_user_with(allowance=100)
    with pytest.raises(IntegrityError), transaction.atomic():
        take(user, 0, lease)
    assert left(user) == (100, 0)
    assert not Entry.objects.filter(user=user).exists()
    assert Account.objects.get(user=user).budget_left == 0
    assert Owner.objects.filter(token=lease.token).exists()
    with pytest.raises(IntegrityError), transaction.atomic():
        Entry.objects.create(
            user=user,
            bucket=Bucket.BUDGET,
            kind=EntryKind.GRANT,
            amount=-1,
            total=0,
            created_at=JANUARY,
        )
