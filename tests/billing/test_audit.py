"""A number that was tampered with is found and named."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from billing.audit import check_ledger
from billing.grants import grant_to_key
from billing.models import Counted, OwnerKind, Source, UsageStatus
from billing.owners import register
from tests.accounts.factory import make_key
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def history():
    """A User with each kind of line and of Hold."""
    lease = register(OwnerKind.WEB)
    user = make_user_with(allowance=100, budget=500)
    key, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=300, by=None)
    pay(take(user, 60, lease, key_id=key.id), lease, 20, 5)
    pay(take(user, 90, lease, key_id=key.id), lease, 100, 30)
    pay(take(user, 10, lease), lease, 4, 6, status=UsageStatus.STOPPED, counted=Counted.HELD)
    pay(take(user, 30, lease, source=Source.HARVEST), lease, 50, status=UsageStatus.FAILED)
    give_back(take(user, 20, lease, key_id=key.id), lease)
    take(user, 15, lease, key_id=key.id)


def tamper(*statements):
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for statement in statements:
            cursor.execute(statement)
            assert cursor.rowcount > 0
        cursor.execute("SET session_replication_role = DEFAULT")


def test_a_sound_ledger_has_no_discrepancy(history):
    assert check_ledger() == []
    out = StringIO()
    call_command("check_ledger", stdout=out)
    assert out.getvalue() == "the ledger adds up\n"


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("UPDATE billing_account SET budget_left = budget_left + 1", "Budget of User"),
        ("UPDATE billing_allowancemonth SET used = used + 1", "allowance of User"),
        ("DELETE FROM billing_allowancemonth", "allowance of User"),
        ('UPDATE billing_keybudget SET "left" = "left" + 1', "Budget of API key"),
        ("DELETE FROM billing_keybudget", "Budget of API key"),
        ("UPDATE billing_entry SET total = total + 1 WHERE kind = 'grant'", "running total"),
        ("UPDATE billing_hold SET tokens = tokens + 1 WHERE state = 'open'", "lines of Hold"),
        ("UPDATE billing_hold SET paid = paid - 1 WHERE prompt_tokens = 100", "lines of Hold"),
        (
            "UPDATE billing_hold SET state = 'settled', prompt_tokens = 1, completion_tokens = 0,"
            " paid = 1, status = 'completed', counted = 'reported' WHERE state = 'released'",
            "lines of Hold",
        ),
        ("DELETE FROM billing_entry WHERE bucket = 'key_budget' AND kind = 'settle'", "on its key"),
        (
            "UPDATE billing_hold SET key_budget = true, key_id = (SELECT id FROM accounts_apikey)"
            " WHERE paid = 10",
            "on its key",
        ),
        ("UPDATE billing_dailyusage SET paid = paid - 1 WHERE paid = 10", "usage of User"),
        ("UPDATE billing_dailyusage SET stopped = 0 WHERE stopped = 1", "usage of User"),
        ("UPDATE billing_dailyusage SET day = day + 1 WHERE key_id IS NULL", "usage of User"),
        ("DELETE FROM billing_dailyusage", "usage of User"),
        ("UPDATE billing_hourlyusage SET completions = completions + 1", "in the hour of"),
        ("DELETE FROM billing_hourlyusage", "in the hour of"),
        ("UPDATE billing_weeklyusage SET hours = 0", "in the week of"),
        ("DELETE FROM billing_weeklyusage", "in the week of"),
        ("UPDATE billing_siteusage SET completions = completions + 1", "usage of everybody on"),
        ("UPDATE billing_siteusage SET slot = (slot + 1) % 16", "usage of everybody on"),
        ("UPDATE billing_siteusage SET users = users + 1", "Users who ran on"),
        ("DELETE FROM billing_siteusage", "Users who ran on"),
    ],
)
def test_a_changed_number_is_found_and_named(history, change, subject):
    tamper(change)
    found = check_ledger()
    assert any(subject in discrepancy.subject for discrepancy in found)
    assert all(discrepancy.kept != discrepancy.expected for discrepancy in found)
    out = StringIO()
    with pytest.raises(SystemExit) as exit_:
        call_command("check_ledger", stdout=out)
    assert exit_.value.code == 1
    assert out.getvalue().splitlines() == [str(discrepancy) for discrepancy in found]


def test_a_hold_that_no_reaper_released_is_found(history, settings):
    assert check_ledger() == []
    settings.BASALT = settings.BASALT.model_copy(update={"lease_seconds": 1e-6})
    lost = register(OwnerKind.RUNNER)
    user = make_user_with(allowance=10)
    hold = take(user, 5, lost)
    [found] = check_ledger()
    assert str(hold.id) in found.subject
    assert "runner" in found.subject
    lost.release()
    assert check_ledger() == []
