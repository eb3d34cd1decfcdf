"""The count of containers each minute, its sums, and the pause at the amount (section 19)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unittest.mock import patch

import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import Mail
from billing import spend_stop
from billing.models import SpendStop, StopReason
from inference import catalogue, valkey
from inference.fleet import Fleet, Stage, WorkerReport, harvest_worker
from operations import spend, tasks
from operations.models import SpendDay, SpendKind, SpendSample, SpendWarning
from operations.schedule import beat_schedule, rings

pytestmark = pytest.mark.django_db

NOON = datetime(2031, 5, 4, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PRICE = Decimal("36.32")


@pytest.fixture(autouse=True)
def team(tiny_catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        settings, "BASALT", settings.BASALT.model_copy(update={"team_emails": ("t@example.org",)})
    )


def counted(minutes: int, *, until: datetime = NOON, containers: int = 1, **fields) -> None:
    """Samples of so many minutes in a row; the last is that of `until`."""
    last = until.replace(second=0, microsecond=0)
    SpendSample.objects.bulk_create(
        SpendSample(
            **{
                "minute": last - number * MINUTE,
                "model": "large",
                "environment": "production",
                "kind": SpendKind.SERVING,
                "containers": containers,
                "gpus": 8,
                "price_per_hour": PRICE,
                **fields,
            }
        )
        for number in range(minutes)
    )


def at(moment: datetime):
    """A clock that stands still."""
    return patch.object(timezone, "now", lambda: moment)


@pytest.fixture
def worker(tiny_catalogue) -> Iterator[str]:
    """A container of the default model that loads."""
    fleet = Fleet(valkey.connection())
    model = catalogue.current().default.id
    report = WorkerReport(
        worker_id="spend-1",
        model_id=model,
        stage=Stage.WEIGHTS_LOADING,
        started_at=1.0,
        idle_since=None,
        host="h",
        pid=1,
    )
    fleet.report(report)
    yield model
    fleet.retire(report)


@pytest.mark.row("C-618")
def test_a_minute_is_counted_once_for_every_model(worker):
    fleet = Fleet(valkey.connection())
    here = {model.id: len(fleet.workers(model.id)) for model in catalogue.current().enabled}
    assert here[worker] >= 1
    for late in (0, 20):
        spend.sample(fleet, NOON + timedelta(seconds=late))
    rows = SpendSample.objects.values_list("minute", "model", "containers", "environment")
    assert set(rows) == {
        (NOON.replace(second=0), model, count, "production") for model, count in here.items()
    }


@pytest.mark.row("C-618", "A-481")
def test_what_24_hours_cost_is_the_sum_of_their_minutes():
    counted(25 * 60, containers=2)
    stands = spend.standing(NOON)
    assert stands.last_day == 24 * 2 * PRICE
    assert stands.counting == stands.last_day
    assert stands.counted_at == NOON.replace(second=0)
    assert stands.minutes == 24 * 60


@pytest.mark.row("C-617", "A-484")
def test_new_work_pauses_at_the_amount_and_stays_paused_when_the_24_hours_are_over():
    # 3,000 dollars are reached in 82.6 hours of one container at 36.32.
    counted(24 * 60, containers=3)
    assert not spend_stop.is_on()
    assert spend.judge(NOON).counting == Decimal("2615.04")
    assert not spend_stop.is_on()
    counted(24 * 60, containers=1, model="other")
    spend.judge(NOON)
    stop = spend_stop.current()
    assert stop is not None
    assert (stop.reason, stop.spend) == (StopReason.AMOUNT, Decimal("3486.72"))
    spend.judge(NOON)
    spend.judge(NOON + timedelta(days=3))
    assert spend_stop.current() == stop
    assert SpendStop.objects.count() == 1


@pytest.mark.row("C-618", "A-485")
def test_what_counts_starts_over_at_the_last_clear():
    counted(24 * 60, containers=4)
    spend.judge(NOON)
    with at(NOON):
        assert spend_stop.clear(by=None)
    stands = spend.judge(NOON + MINUTE)
    assert not spend_stop.is_on()
    assert stands.counting == 0
    assert stands.last_day > 3000
    # An hour later, what ran in that hour counts.
    counted(60, until=NOON + timedelta(hours=1), containers=4)
    assert spend.judge(NOON + timedelta(hours=1)).counting == 4 * PRICE
    assert not spend_stop.is_on()


def test_an_admins_lock_is_not_turned_into_a_pause():
    counted(24 * 60, containers=4)
    lock = spend_stop.lock(by=None, note="class is over")
    spend.judge(NOON)
    assert spend_stop.current() == lock
    assert (lock.reason, lock.note) == (StopReason.LOCKED, "class is over")
    assert not Mail.objects.filter(subject="GPU spend: pause").exists()


@pytest.mark.row("A-545")
def test_the_team_is_told_once_of_each_crossing_and_of_each_pause():
    counted(24 * 60, containers=3)
    for _ in range(3):
        spend.judge(NOON)
    assert [mail.subject for mail in Mail.objects.all()] == ["GPU spend: warning"]
    assert "$2,615.04" in Mail.objects.get().text
    # A day later nothing has cost anything; then it goes up again.
    later = NOON + timedelta(days=2)
    spend.judge(later)
    assert SpendWarning.objects.get().ended_at == later
    counted(24 * 60, until=later, containers=4)
    for _ in range(3):
        spend.judge(later)
    subjects = sorted(mail.subject for mail in Mail.objects.all())
    assert subjects == ["GPU spend: pause", "GPU spend: warning", "GPU spend: warning"]
    assert all("/admin/analytics" in mail.text for mail in Mail.objects.all())


@pytest.mark.row("A-492")
def test_a_count_that_is_too_old_is_stale():
    assert spend.standing(NOON).stale
    counted(10)
    assert not spend.standing(NOON + 2 * MINUTE).stale
    assert spend.standing(NOON + 4 * MINUTE).stale


def test_a_minute_that_valkey_could_not_answer_is_not_counted():
    lost = Fleet(redis.Redis(port=9))
    with pytest.raises(redis.exceptions.ConnectionError):
        spend.sample(lost, NOON)
    assert not SpendSample.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_amount_is_judged_while_valkey_is_away():
    counted(24 * 60, containers=4)
    with at(NOON), patch.object(tasks, "Fleet", lambda _: Fleet(redis.Redis(port=9))):
        tasks.sample_spend.run()
    assert spend_stop.is_on()


@pytest.mark.row("A-486")
def test_models_and_environments_stand_apart():
    counted(60)
    counted(30, environment="staging", containers=2)
    counted(30, model="small", gpus=1, price_per_hour=Decimal("1.95"))
    counted(60, model="old", gpus=None, price_per_hour=Decimal(1))
    assert [
        (row.model, row.environment, row.hours, row.gpu_hours, round(row.dollars, 2))
        for row in spend.by_model(NOON)
    ] == [
        ("large", "production", 1, 8, Decimal("36.32")),
        ("large", "staging", 1, 8, Decimal("36.32")),
        ("old", "production", 1, None, Decimal(1)),
        ("small", "production", Decimal("0.5"), Decimal("0.5"), Decimal("0.98")),
    ]


@pytest.mark.row("A-486")
@pytest.mark.parametrize(
    ("shape", "gpus"),
    [("8xH200", 8), ("1xL40S", 1), ("16 x B200", 16), ("H200", 1), ("cpu", 0), ("CPU", 0)],
)
def test_a_container_has_the_gpus_of_its_shape(shape, gpus):
    model = catalogue.current().default.model_copy(update={"gpu_shape": shape})
    assert spend.gpus_of(model) == gpus


def test_a_minute_keeps_the_gpus_and_the_containers_of_each_kind(worker):
    fleet = Fleet(valkey.connection())
    model = catalogue.current().default
    harvester = WorkerReport(
        worker_id="spend-2",
        model_id=harvest_worker(model.id),
        stage=Stage.WEIGHTS_LOADING,
        started_at=1.0,
        idle_since=None,
        host="h",
        pid=1,
    )
    fleet.report(harvester)
    try:
        found = spend.sample(fleet, NOON)
    finally:
        fleet.retire(harvester)
    assert found == sum(SpendSample.objects.values_list("containers", flat=True))
    kinds = SpendSample.objects.filter(model=model.id).values_list("kind", "gpus").order_by("kind")
    assert list(kinds) == [(SpendKind.HARVEST, 0), (SpendKind.SERVING, 0)]


@pytest.mark.row("A-487")
def test_days_are_summed_again_and_again_to_the_same_numbers():
    counted(36 * 60, containers=2)
    for _ in range(2):
        assert spend.roll_up(NOON, everything=True) == 2
    noon = NOON.date()
    expected = {
        (noon - timedelta(days=1), "large"): pytest.approx(
            (Decimal(36 * 60 - 12 * 60 - 1) * 2 * PRICE) / 60
        ),
        (noon, "large"): (Decimal(12 * 60 + 1) * 2 * PRICE) / 60,
    }
    # From the samples while the days are new, and from their sums later.
    for now in (NOON, NOON + timedelta(days=20)):
        assert spend.by_day(noon - timedelta(days=9), noon, now) == expected
    SpendSample.objects.all().delete()
    assert spend.by_day(noon, noon, NOON + timedelta(days=20)).keys() == {(noon, "large")}


@pytest.mark.row("A-477", "A-487")
def test_the_day_that_runs_is_counted_up_to_the_last_minute():
    counted(60)
    today = NOON.date()
    assert spend.by_day(today, today, NOON) == {(today, "large"): PRICE}
    assert spend.by_day(today - timedelta(days=9), today - timedelta(days=2), NOON) == {}


def test_a_clock_that_stood_still_for_days_sums_the_day_on_which_it_stopped():
    counted(60, until=NOON)
    spend.roll_up(NOON)
    counted(60, until=NOON + timedelta(hours=2), containers=3)
    later = NOON + timedelta(days=5)
    counted(1, until=later)
    spend.roll_up(later)
    assert SpendDay.objects.get(day=NOON.date()).container_minutes == 60 + 180


def test_samples_past_their_time_go_and_their_days_stay():
    counted(24 * 60)
    spend.roll_up(NOON)
    days = dict(SpendDay.objects.values_list("day", "container_minutes"))
    spend.roll_up(NOON + timedelta(days=34))
    assert SpendSample.objects.filter(minute__date=NOON.date()).exists()
    spend.roll_up(NOON + timedelta(days=36))
    assert not SpendSample.objects.exists()
    spend.roll_up(NOON + timedelta(days=36), everything=True)
    assert dict(SpendDay.objects.values_list("day", "container_minutes")) == days


def test_days_are_made_anew_by_a_command():
    counted(120, until=timezone.now())
    spend.roll_up(timezone.now())
    right = set(SpendDay.objects.values_list("day", "model", "container_minutes"))
    SpendDay.objects.update(container_minutes=1)
    call_command("rebuild_spend", verbosity=0)
    assert set(SpendDay.objects.values_list("day", "model", "container_minutes")) == right


@pytest.mark.row("A-488")
@given(
    cents=st.integers(0, 10**7),
    tokens=st.lists(st.integers(0, 10**9), min_size=1, max_size=20),
)
def test_the_parts_of_a_models_spend_add_up(cents, tokens):
    total = Decimal(cents) / 100
    parts = spend.shares(total, tokens)
    assert sum(parts) == (total if sum(tokens) else 0)
    for part, own in zip(parts, tokens, strict=True):
        if sum(tokens):
            assert abs(part - total * own / sum(tokens)) <= Decimal("0.01")


def test_every_task_of_the_schedule_exists_and_its_bells_expire():
    from celery import current_app

    current_app.loader.import_default_modules()
    for ring in rings(reap_seconds=5):
        assert ring.task in current_app.tasks, ring.task
        entry = beat_schedule(reap_seconds=5)[ring.name]
        assert entry["options"]["queue"] == "runner"
        assert 0 < entry["options"]["expires"] <= 3600


@pytest.mark.django_db(transaction=True)
def test_the_table_of_the_clock_has_what_the_code_has_and_no_more():
    from celery import current_app
    from django_celery_beat.models import IntervalSchedule, PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler

    from operations.management.commands.clock import forget_old_rings

    old = IntervalSchedule.objects.create(every=5, period="seconds")
    PeriodicTask.objects.create(name="long gone", task="gone", interval=old)
    forget_old_rings(current_app)
    DatabaseScheduler(app=current_app, lazy=True).setup_schedule()
    names = {ring.name for ring in rings(reap_seconds=settings.BASALT.reap_seconds)}
    assert set(PeriodicTask.objects.values_list("name", flat=True)) == names


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("A-491", "C-621", "A-490")
def test_work_put_back_during_a_pause_waits_until_it_is_cleared():
    from uuid import uuid4

    from billing.models import OwnerKind
    from billing.owners import register
    from jobs import queue
    from jobs.kinds import kinds
    from jobs.models import Job
    from jobs.states import WorkState
    from tests.accounts.factory import make_user

    kind = next(kind for kind in kinds() if kind.model is Job)
    # The process that ran it has no lease any more.
    job = Job.objects.create(
        user=make_user(), model="m", state=WorkState.RUNNING, request=b"{}", created_at=NOON,
        started_at=NOON, owner=uuid4(), attempt=uuid4(),
    )  # fmt: skip
    spend_stop.lock(by=None)
    [lost] = queue.lost(Job).filter(id=job.id)
    kind.record(lost).lose()
    job.refresh_from_db()
    assert (job.state, job.owner) == (WorkState.QUEUED, None)
    owner = register(OwnerKind.RUNNER).token
    assert queue.claim(Job, owner=owner, room=5, most=5, by_turns=True) == []
    spend_stop.clear(by=None)
    assert queue.claim(Job, owner=owner, room=5, most=5, by_turns=True) == [job]
