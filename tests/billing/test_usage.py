"""Daily sums of what was settled."""

from datetime import UTC, date, datetime

import pytest
from django.core.management import call_command

from billing.models import Counted, DailyUsage, HourlyUsage, Source, UsageStatus
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
