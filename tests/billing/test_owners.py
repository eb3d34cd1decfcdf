"""What becomes of the Holds of a process that died."""

import os
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from accounts.models import User
from billing.allowance import tokens_left
from billing.ledger import OwnerLost
from billing.models import Hold, HoldState, Owner, OwnerKind
from billing.owners import Lease, reap, register
from tests.accounts.at_once import at_once
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db

MUCH_LATER = datetime(2100, 1, 1, tzinfo=UTC)


def lapse(lease: Lease) -> None:
    Owner.objects.filter(token=lease.token).update(expires_at=datetime(2000, 1, 1, tzinfo=UTC))


def keep(lease: Lease) -> None:
    Owner.objects.filter(token=lease.token).update(expires_at=MUCH_LATER)


def now() -> datetime:
    """A moment when the database has been up for longer than a lease."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT greatest(now(), pg_postmaster_start_time() + interval '1 minute')")
        return cursor.fetchone()[0]


def test_a_lease_says_who_and_where_and_ends_one_lease_from_now(lease, settings):
    owner = Owner.objects.get(token=lease.token)
    assert (owner.kind, owner.pid) == (OwnerKind.WEB, os.getpid())
    length = owner.expires_at - owner.started_at
    assert length == timedelta(seconds=settings.BASALT.lease_seconds)


def test_a_renewed_lease_ends_later(lease):
    lapse(lease)
    living = Owner.objects.filter(token=lease.token, expires_at__gt=Now())
    assert not living.exists()
    assert lease.renew()
    assert living.exists()


def test_the_holds_of_a_dead_process_are_released_and_those_of_a_living_one_stay(lease):
    keep(lease)
    dead = register(OwnerKind.RUNNER)
    user, other = make_user_with(allowance=100), make_user_with(allowance=100)
    mine = take(user, 5, lease)
    lost = [take(user, 10, dead), take(other, 20, dead), take(user, 30, dead)]
    ended = take(user, 7, dead)
    pay(ended, dead, 7)
    lapse(dead)
    report = reap(now())
    assert (report.ended, report.holds, report.waiting) == ((dead.token,), 3, False)
    assert {Hold.objects.get(id=hold.id).state for hold in lost} == {HoldState.RELEASED}
    assert Hold.objects.get(id=mine.id).state == HoldState.OPEN
    assert Hold.objects.get(id=ended.id).paid == 7
    assert tokens_left(user_id=user.id, key_id=None).allowance_left == 100 - 5 - 7
    assert tokens_left(user_id=other.id, key_id=None).allowance_left == 100
    assert reap(now()) == type(report)()


def test_a_process_that_comes_back_late_can_end_and_take_nothing(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease)
    lapse(lease)
    reap(now())
    assert not lease.renew()
    assert not pay(hold, lease, 10)
    assert not give_back(hold, lease)
    with pytest.raises(OwnerLost):
        take(user, 10, lease)
    assert tokens_left(user_id=user.id, key_id=None).allowance_left == 100
    again = register(OwnerKind.WEB)
    assert again.token != lease.token
    assert pay(take(user, 10, again), again, 10)


def test_nothing_is_reaped_within_one_lease_after_the_database_came_back(lease, settings):
    user = make_user_with(allowance=100)
    take(user, 10, lease)
    lapse(lease)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_postmaster_start_time()")
        up_since = cursor.fetchone()[0]
    length = timedelta(seconds=settings.BASALT.lease_seconds)
    early = reap(up_since + length - timedelta(microseconds=1))
    assert (early.waiting, early.ended) == (True, ())
    assert lease.renew()
    lapse(lease)
    late = reap(up_since + length)
    assert (late.waiting, late.ended) == (False, (lease.token,))


def test_a_lease_that_is_renewed_while_a_reaper_looks_is_kept(lease):
    hold = take(make_user_with(allowance=100), 10, lease)
    lapse(lease)

    def renew_before_the_lock(execute, sql, params, many, context):
        if "SKIP LOCKED" in sql:
            keep(lease)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(renew_before_the_lock):
        assert reap(now()).ended == ()
    assert Owner.objects.get(token=lease.token).expires_at == MUCH_LATER
    hold.refresh_from_db()
    assert hold.state == HoldState.OPEN


def test_the_databases_clock_is_asked_when_no_moment_is_given(lease, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"lease_seconds": 1e-6})
    keep(lease)
    assert reap().ended == ()
    lapse(lease)
    assert reap().ended == (lease.token,)


def test_a_planned_stop_releases_what_is_still_open(lease):
    user = make_user_with(allowance=100)
    hold = take(user, 10, lease)
    lease.release()
    hold.refresh_from_db()
    assert hold.state == HoldState.RELEASED
    assert not Owner.objects.filter(token=lease.token).exists()
    lease.release()


@pytest.mark.django_db(transaction=True)
def test_many_reapers_at_once_release_each_hold_once():
    users = [make_user_with(allowance=100) for _ in range(4)]
    dead = [register(OwnerKind.WEB) for _ in range(5)]
    for lease in dead:
        for user in users:
            take(user, 5, lease)
        lapse(lease)
    moment = now()
    reports = at_once([lambda: reap(moment) for _ in range(6)])
    assert sum(report.holds for report in reports) == 20
    ended = [token for report in reports for token in report.ended]
    assert sorted(ended) == sorted(lease.token for lease in dead)
    for user in User.objects.all():
        assert tokens_left(user_id=user.id, key_id=None).allowance_left == 100


@pytest.mark.django_db(transaction=True)
def test_a_hold_taken_while_its_owner_is_reaped_does_not_stay_open():
    user = make_user_with(allowance=10_000)
    for _ in range(5):
        lease = register(OwnerKind.WEB)
        lapse(lease)
        moment = now()
        at_once([lambda lease=lease: take(user, 1, lease)] * 3 + [lambda at=moment: reap(at)] * 3)
        reap(moment)
        assert not Owner.objects.filter(token=lease.token).exists()
    assert not Hold.objects.open().exists()
    assert tokens_left(user_id=user.id, key_id=None).allowance_left == 10_000
