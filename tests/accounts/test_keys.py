import re
import uuid
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts import keys
from accounts.keys import KeyNameTaken, TooManyKeys, create_key, digest_of, find_key
from accounts.models import ApiKey
from tests.accounts.at_once import at_once
from tests.accounts.factory import make_key, make_user

pytestmark = pytest.mark.django_db


@pytest.mark.row("C-009")
def test_new_keys_have_the_new_prefix_and_old_keys_work_alike():
    user = make_user()
    _, secret = create_key(user=user, name="new")
    assert re.fullmatch("sk-acs-[A-Za-z0-9]{43}", secret)
    old_secret = "acs-bm-" + "x" * 32
    old = ApiKey.objects.create(
        user=user, name="old", prefix=old_secret[:11], digest=digest_of(old_secret)
    )
    new_state, old_state = find_key(secret), find_key(old_secret)
    assert new_state.usable
    assert old_state.usable
    assert old_state.key_id == old.id
    keys.revoke_key(key_id=old.id)
    assert find_key(old_secret).revoked


@pytest.mark.row("C-010")
def test_only_a_hash_and_the_first_characters_of_a_key_are_kept():
    key, secret = make_key(make_user())
    row = ApiKey.objects.filter(id=key.id).values().get()
    assert row["prefix"] == secret[:11]
    assert row["digest"] == digest_of(secret)
    kept = " ".join(map(str, row.values()))
    rest = secret.removeprefix("sk-acs-")
    assert not any(rest[start : start + 5] in kept for start in range(len(rest) - 4))


def test_two_keys_are_never_alike():
    user = make_user()
    secrets = {make_key(user)[1] for _ in range(10)}
    assert len(secrets) == 10


def test_a_wrong_secret_finds_nothing():
    _, secret = make_key(make_user())
    wrong = [
        secret[:-1],
        secret + "a",
        secret.upper(),
        "",
        "sk-acs-",
        secret[7:],
        "sk-acs-\udc80\0",
    ]
    assert [find_key(text) for text in wrong] == [None] * len(wrong)


def test_a_secret_of_another_form_is_not_looked_up(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert find_key("sk-proj-0123456789") is None


def test_a_key_is_found_with_one_query(django_assert_num_queries):
    key, secret = make_key(make_user("ada@example.org"))
    find_key(secret)
    with django_assert_num_queries(1):
        state = find_key(secret)
    assert (state.key_id, state.user_id, state.email) == (key.id, key.user_id, "ada@example.org")
    assert keys.read_key(key.id) == state
    assert keys.read_key(uuid.uuid4()) is None


def test_pause_resume_revoke_and_suspension_count_at_once():
    user = make_user()
    key, secret = make_key(user)
    _, other_secret = make_key(user)
    keys.pause_key(key_id=key.id)
    assert find_key(secret).paused
    assert find_key(other_secret).usable
    keys.resume_key(key_id=key.id)
    assert find_key(secret).usable
    user.suspended_at = timezone.now()
    user.save()
    assert find_key(secret).suspended
    assert find_key(other_secret).suspended
    user.suspended_at = None
    user.save()
    assert find_key(secret).usable
    keys.revoke_key(key_id=key.id)
    assert find_key(secret).revoked
    assert find_key(other_secret).usable


def test_a_revoke_cannot_be_undone():
    key, secret = make_key(make_user())
    keys.revoke_key(key_id=key.id)
    revoked_at = ApiKey.objects.get(id=key.id).revoked_at
    keys.pause_key(key_id=key.id)
    keys.resume_key(key_id=key.id)
    keys.revoke_key(key_id=key.id)
    state = find_key(secret)
    assert state.revoked
    assert not state.paused
    assert ApiKey.objects.get(id=key.id).revoked_at == revoked_at


def test_the_last_use_is_written_once_a_minute_and_only_for_a_usable_key():
    key, secret = make_key(make_user())

    def last_use():
        return ApiKey.objects.get(id=key.id).last_used_at

    assert last_use() is None
    find_key(secret)
    first = last_use()
    find_key(secret)
    assert last_use() == first is not None
    before = first - timedelta(seconds=61)
    ApiKey.objects.filter(id=key.id).update(last_used_at=before)
    find_key(secret)
    assert last_use() > before
    ApiKey.objects.filter(id=key.id).update(last_used_at=before, paused_at=timezone.now())
    find_key(secret)
    assert last_use() == before


def test_a_user_has_ten_keys_at_most_of_which_paused_ones_count_and_revoked_do_not():
    user = make_user()
    made = [make_key(user)[0] for _ in range(settings.BASALT.max_keys_per_user)]
    assert len(made) == 10
    keys.pause_key(key_id=made[0].id)
    with pytest.raises(TooManyKeys):
        make_key(user)
    make_key(make_user())
    keys.revoke_key(key_id=made[1].id)
    make_key(user)


@pytest.mark.row("C-012")
def test_a_name_is_once_among_the_keys_of_a_user_that_are_not_revoked():
    user = make_user()
    first, _ = create_key(user=user, name="Straße" + "x" * 25)
    with pytest.raises(KeyNameTaken):
        create_key(user=user, name="STRASSE" + "X" * 25)
    with pytest.raises(KeyNameTaken):
        create_key(user=user, name="straße" + "x" * 25)
    create_key(user=make_user(), name=first.name)
    keys.pause_key(key_id=first.id)
    with pytest.raises(KeyNameTaken):
        create_key(user=user, name=first.name)
    keys.revoke_key(key_id=first.id)
    create_key(user=user, name=first.name.upper())


@pytest.mark.row("C-012")
def test_the_database_refuses_a_name_twice_and_a_name_too_long():
    user = make_user()
    key, _ = create_key(user=user, name="Main")
    twin = ApiKey(user=user, name="mAIN", prefix=key.prefix, digest="0" * 64)
    with pytest.raises(IntegrityError, match="api_key_name_once_per_user"), transaction.atomic():
        twin.save(force_insert=True)
    long = ApiKey(user=user, name="x" * 33, prefix=key.prefix, digest="0" * 64)
    with pytest.raises(Exception, match="character varying"), transaction.atomic():
        long.save(force_insert=True)


def test_a_rename_keeps_the_rules_of_names():
    user = make_user()
    key, _ = create_key(user=user, name="one")
    create_key(user=user, name="two")
    with pytest.raises(KeyNameTaken):
        keys.rename_key(key_id=key.id, name="TWO")
    keys.rename_key(key_id=key.id, name="One")
    assert ApiKey.objects.get(id=key.id).name == "One"
    keys.revoke_key(key_id=key.id)
    keys.rename_key(key_id=key.id, name="three")
    assert ApiKey.objects.get(id=key.id).name == "One"


@pytest.mark.django_db(transaction=True)
def test_two_calls_at_once_cannot_pass_the_limit_together():
    user = make_user()
    for _ in range(settings.BASALT.max_keys_per_user - 1):
        make_key(user)
    made = at_once([lambda: make_key(user) for _ in range(12)])
    assert sum(isinstance(one, TooManyKeys) for one in made) == 11
    assert ApiKey.objects.filter(user=user).count() == settings.BASALT.max_keys_per_user


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("C-012")
def test_two_calls_at_once_cannot_take_one_name():
    user = make_user()
    made = at_once([lambda: create_key(user=user, name="Main") for _ in range(6)])
    assert sum(isinstance(one, KeyNameTaken) for one in made) == 5
