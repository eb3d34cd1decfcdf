import pytest
from django.contrib.auth import authenticate
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from accounts.models import User
from tests.accounts.factory import make_user

pytestmark = pytest.mark.django_db


def test_an_email_is_one_user_whatever_its_letter_case():
    user = make_user(" Ada.Lovelace@Example.ORG ")
    assert user.email == "ada.lovelace@example.org"
    assert User.objects.get(email="ADA.lovelace@example.org") == user
    with pytest.raises(IntegrityError), transaction.atomic():
        make_user("ada.LOVELACE@example.org")


def test_the_database_refuses_an_email_with_a_capital():
    user = make_user("ada@example.org")
    with pytest.raises(IntegrityError, match="user_email_lower_case"), transaction.atomic():
        User.objects.raw(
            "UPDATE accounts_user SET email = 'Ada@example.org' WHERE id = %s RETURNING id",
            [user.id],
        )[0]


def test_the_email_matches_at_sign_in_whatever_its_letter_case():
    user = User.objects.create_user("ada@example.org", "a difference engine")
    assert authenticate(username="Ada@Example.org", password="a difference engine") == user
    assert authenticate(username="ada@example.org", password="another engine") is None


def test_a_user_made_without_a_password_cannot_sign_in():
    user = make_user("ada@example.org")
    assert not user.has_usable_password()
    assert authenticate(username="ada@example.org", password="") is None


def test_a_suspended_user_can_neither_sign_in_nor_go_on():
    user = User.objects.create_superuser("ada@example.org", "a difference engine")
    client = Client()
    client.force_login(user)
    User.objects.filter(id=user.id).update(suspended_at=timezone.now())
    assert authenticate(username="ada@example.org", password="a difference engine") is None
    from django.contrib.auth import get_user

    request = type("Request", (), {"session": client.session})()
    assert get_user(request).is_anonymous
    User.objects.filter(id=user.id).update(suspended_at=None)
    assert authenticate(username="ada@example.org", password="a difference engine") == user
