"""Daily sums of what was settled."""

from datetime import UTC, date, datetime

import pytest
from django.core.management import call_command
from django.db.models import Sum

from billing.models import (
    Counted,
    DailyUsage,
    HourlyUsage,
    SiteUsage,
    Source,
    UsageStatus,
    WeeklyUsage,
)
from billing.usage import rebuild
from tests.accounts.factory import make_key
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db

EVENING = datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC)
MORNING = datetime(2031, 2, 1, 0, 0, 1, tzinfo=UTC)
COLUMNS = (
    "user_id",
    "key_id",
    "model",
    "source",
    "day",
    "completions",
    "prompt_tokens",
    "completion_tokens",
    "paid",
    "failed",
    "stopped",
)


def rows():
    return set(DailyUsage.objects.values_list(*COLUMNS))


def hours():
    return set(
        HourlyUsage.objects.values_list(
            "user_id", "hour", "model", "completions", "prompt_tokens", "completion_tokens"
        )
    )


@pytest.fixture
def history(lease):
    user = make_user_with(allowance=None)
    key, _ = make_key(user)

    def run(prompt, completion, status=UsageStatus.COMPLETED, begin=EVENING, **how):
        pay(take(user, 100, lease, now=begin, **how), lease, prompt, completion, status=status,
            counted=Counted.PARTIAL, now=MORNING)  # fmt: skip

    run(1, 2)
    run(10, 20, UsageStatus.FAILED)
    run(100, 200, UsageStatus.STOPPED)
    run(5, 5, begin=MORNING)
    run(6, 6, key_id=key.id)
    run(7, 7, key_id=key.id, model="large")
    run(8, 8, key_id=key.id, source=Source.JOB)
    give_back(take(user, 100, lease, now=EVENING), lease)
    take(user, 100, lease, now=EVENING)
    return user, key


def test_each_settle_adds_to_the_day_on_which_its_completion_began(history):
    user, key = history
    january, february = date(2031, 1, 31), date(2031, 2, 1)
    assert rows() == {
        (user.id, None, "tiny", "api", january, 3, 111, 222, 333, 1, 1),
        (user.id, None, "tiny", "api", february, 1, 5, 5, 10, 0, 0),
        (user.id, key.id, "tiny", "api", january, 1, 6, 6, 12, 0, 0),
        (user.id, key.id, "large", "api", january, 1, 7, 7, 14, 0, 0),
        (user.id, key.id, "tiny", "job", january, 1, 8, 8, 16, 0, 0),
    }


def test_a_rebuild_makes_the_same_rows_from_the_holds(history):
    user, _ = history
    right = rows()
    DailyUsage.objects.filter(key=None).delete()
    DailyUsage.objects.update(paid=1)
    assert rows() != right
    call_command("rebuild_usage", verbosity=0)
    assert rows() == right
    assert rebuild(user_id=user.id) == len(right)
    assert rows() == right


def test_each_settle_adds_to_its_hour_and_a_rebuild_makes_the_same_hours(history):
    user, _ = history
    late = datetime(2031, 1, 31, 23, tzinfo=UTC)
    right = {
        (user.id, late, "tiny", 5, 125, 236),
        (user.id, late, "large", 1, 7, 7),
        (user.id, late.replace(year=2031, month=2, day=1, hour=0), "tiny", 1, 5, 5),
    }
    assert hours() == right
    HourlyUsage.objects.filter(model="tiny").delete()
    HourlyUsage.objects.update(completions=9)
    call_command("rebuild_usage", verbosity=0)
    assert hours() == right


def weeks():
    return set(
        WeeklyUsage.objects.values_list(
            "user_id", "week", "model", "completions", "prompt_tokens", "completion_tokens", "hours"
        )
    )


def test_each_settle_adds_to_its_week_and_a_rebuild_makes_the_same_weeks(history):
    user, _ = history
    monday, evening, midnight = date(2031, 1, 27), 1 << 23, 1
    right = {
        (user.id, monday, "tiny", 6, 130, 241, evening | midnight),
        (user.id, monday, "large", 1, 7, 7, evening),
    }
    assert weeks() == right
    WeeklyUsage.objects.filter(model="tiny").delete()
    WeeklyUsage.objects.update(hours=5)
    call_command("rebuild_usage", verbosity=0)
    assert weeks() == right


def site():
    return set(
        SiteUsage.objects.values_list(
            "day", "slot", "model", "source", "completions", "prompt_tokens", "completion_tokens",
            "failed", "stopped",
        )
    )  # fmt: skip


def users_of_days():
    rows = SiteUsage.objects.order_by().values("day").annotate(n=Sum("users"))
    return {row["day"]: row["n"] for row in rows}


def test_everybodys_days_count_each_user_once_and_a_rebuild_makes_the_same(history, lease):
    user, _ = history
    other = make_user_with(allowance=None)
    pay(take(other, 100, lease, now=EVENING, model="other"), lease, 3, 4, now=MORNING)
    slot, january, february = user.id.int % 16, date(2031, 1, 31), date(2031, 2, 1)
    right = {row[:4]: row[4:] for row in site()}
    assert right == {
        (january, slot, "tiny", "api"): (4, 117, 228, 1, 1),
        (february, slot, "tiny", "api"): (1, 5, 5, 0, 0),
        (january, slot, "large", "api"): (1, 7, 7, 0, 0),
        (january, slot, "tiny", "job"): (1, 8, 8, 0, 0),
        (january, other.id.int % 16, "other", "api"): (1, 3, 4, 0, 0),
    }
    assert users_of_days() == {january: 2, february: 1}
    SiteUsage.objects.filter(model="tiny").delete()
    SiteUsage.objects.update(completions=9, users=9)
    SiteUsage.objects.create(day=date(2031, 2, 3), slot=1, model="tiny", source="api")
    call_command("rebuild_usage", verbosity=0)
    assert {row[:4]: row[4:] for row in site()} == right
    assert users_of_days() == {january: 2, february: 1}
