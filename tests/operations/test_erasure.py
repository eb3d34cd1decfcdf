"""The clock erases what is past its time (section 22)."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from jobs.models import Job, Run
from jobs.states import WorkState
from looms.models import Loom
from operations import tasks
from tests.accounts.factory import make_user

pytestmark = pytest.mark.django_db(transaction=True)


def ended(model: type[Job] | type[Run], ago: timedelta, **fields):
    """Work that is done since a while."""
    at = timezone.now() - ago
    return model.objects.create(
        user=make_user(),
        model="m",
        state=WorkState.DONE,
        created_at=at,
        started_at=at,
        finished_at=at,
        **fields,
    )


def run(ago: timedelta, **fields) -> Run:
    return ended(Run, ago, number=1, settings={}, output=b"{}", **fields)


@pytest.mark.row("C-637")
def test_the_result_of_a_job_goes_30_days_after_its_end_and_the_job_stays():
    old = ended(Job, timedelta(days=30, seconds=1), result=b"old")
    young = ended(Job, timedelta(days=30) - timedelta(minutes=5), result=b"young")
    for _ in range(2):
        tasks.erase.run()
    old.refresh_from_db()
    young.refresh_from_db()
    assert (old.result, old.state) == (None, WorkState.DONE)
    assert bytes(young.result) == b"young"


@pytest.mark.row("C-638")
def test_the_activations_of_a_run_go_7_days_after_its_end_and_its_text_stays():
    reads = {"activations_shape": [1, 2, 3]}
    old = run(timedelta(days=7, seconds=1), activations_file="run-activations/none-1", **reads)
    young = run(timedelta(days=6, hours=23), activations_file="run-activations/none-2", **reads)
    for _ in range(2):
        tasks.erase.run()
    old.refresh_from_db()
    young.refresh_from_db()
    assert (old.activations_file, bytes(old.output)) == ("", b"{}")
    assert young.activations_file


@pytest.mark.row("C-639")
def test_deleted_runs_and_looms_are_erased_after_14_days():
    now, keep = timezone.now(), timedelta(seconds=settings.BASALT.loom_keep_deleted_seconds)
    assert keep == timedelta(days=14)
    for ago, stays in ((timedelta(days=14, seconds=1), False), (timedelta(days=13), True)):
        deleted = run(timedelta(days=20), deleted_at=now - ago)
        loom = Loom.objects.create(
            user=make_user(), created_at=now - ago, changed_at=now - ago, deleted_at=now - ago
        )
        for _ in range(2):
            tasks.erase.run()
        assert Run.objects.filter(id=deleted.id).exists() is stays
        assert Loom.objects.filter(id=loom.id).exists() is stays


@pytest.mark.row("C-642")
def test_a_revoked_key_stays_in_usage_and_a_released_completion_is_in_none():
    from accounts.keys import revoke_key
    from accounts.models import ApiKey
    from billing import report
    from billing.models import OwnerKind
    from billing.owners import register
    from tests.accounts.factory import make_key
    from tests.billing.factory import give_back, make_user_with, pay, take

    lease, user = register(OwnerKind.WEB), make_user_with(budget=1000)
    key, _ = make_key(user)
    kept = take(user, 10, lease, key_id=key.id)
    pay(kept, lease, 3, 4)
    give_back(take(user, 10, lease, key_id=key.id), lease)
    revoke_key(key_id=key.id)
    tasks.erase.run()
    assert ApiKey.objects.filter(id=key.id).exists()
    today = timezone.now().date()
    scope = report.Scope(user_id=user.id, first=today, last=today)
    assert [hold.id for hold in report.listed(scope)] == [kept.id]
    assert [use.sums.tokens for use in report.keys_in(report.splits(scope))] == [7]
