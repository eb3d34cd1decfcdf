"""`manage.py create_key`."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from accounts.keys import find_key
from accounts.models import ApiKey, User
from billing.allowance import tokens_left
from tests.accounts.factory import make_user

pytestmark = pytest.mark.django_db


def create_key(*arguments):
    out, err = StringIO(), StringIO()
    call_command("create_key", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_it_prints_only_the_key_and_makes_the_user():
    out, err = create_key("Ada@Example.org")
    assert out.count("\n") == 1
    state = find_key(out.strip())
    assert state.email == "ada@example.org"
    assert "made the User ada@example.org" in err
    user = User.objects.get(id=state.user_id)
    assert (user.is_staff, user.is_superuser, user.has_usable_password()) == (False, False, False)
    assert tokens_left(user_id=user.id, key_id=None).allowance == 5_000_000


def test_a_second_key_is_for_the_same_user():
    first, _ = create_key("ada@example.org", "--name", "one")
    second, err = create_key("ADA@example.org", "--name", "two")
    assert err == ""
    assert find_key(first.strip()).user_id == find_key(second.strip()).user_id
    assert set(ApiKey.objects.values_list("name", flat=True)) == {"one", "two"}


def test_tokens_are_added_to_the_budget_and_the_allowance_is_set():
    user = make_user("ada@example.org")
    create_key("ada@example.org", "--name", "one", "--tokens", "70", "--allowance", "0")
    create_key("ada@example.org", "--name", "two", "--tokens", "5")
    left = tokens_left(user_id=user.id, key_id=None)
    assert (left.allowance, left.budget_left) == (0, 75)


def test_an_admin_without_a_password_is_told_how_to_set_one():
    _, err = create_key("ada@example.org", "--admin")
    user = User.objects.get(email="ada@example.org")
    assert (user.is_staff, user.is_superuser, user.has_usable_password()) == (True, True, False)
    assert "manage.py changepassword ada@example.org" in err
    user.set_password("a difference engine")
    user.save()
    _, err = create_key("ada@example.org", "--admin", "--name", "two")
    assert "changepassword" not in err
    assert User.objects.get(id=user.id).check_password("a difference engine")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["ada.example.org"], "valid email"),
        (["ada@example.org", "--name", "x" * 33], "32 characters"),
        (["ada@example.org", "--name", "  "], "cannot be blank"),
        (["ada@example.org", "--name", "TAKEN"], "another --name"),
        (["bob@example.org", "--tokens=-1"], "whole number"),
        (["bob@example.org", "--allowance", "1.5"], "whole number"),
        (["sus@example.org"], "suspended"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_cause_and_leaves_nothing(arguments, cause):
    create_key("ada@example.org", "--name", "taken")
    suspended = make_user("sus@example.org")
    suspended.suspended_at = timezone.now()
    suspended.save()
    before = set(User.objects.values_list("email")), ApiKey.objects.count()
    with pytest.raises(CommandError, match=cause):
        create_key(*arguments)
    assert (set(User.objects.values_list("email")), ApiKey.objects.count()) == before


def test_an_eleventh_key_is_refused(settings):
    settings.BASALT = settings.BASALT.model_copy(update={"max_keys_per_user": 1})
    create_key("ada@example.org", "--name", "one")
    with pytest.raises(CommandError, match="revoke one"):
        create_key("ada@example.org", "--name", "two")
