"""People with and without a role, and what the admin shows of them."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from inference import valkey
from tests.accounts.sessions import sign_in

PASSWORD = "a difference engine"


@pytest.fixture(autouse=True)
def quick_and_fresh(settings) -> Iterator[None]:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    yield
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}rate:*"):
        valkey.connection().delete(name)


def new_user(email: str = "", **more) -> User:
    user = User.objects.create_user(email or f"{uuid4().hex[:8]}@example.org", PASSWORD)
    for name, value in more.items():
        setattr(user, name, value)
    user.save()
    return user


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("root@example.org", PASSWORD)


@pytest.fixture
def staff() -> User:
    return new_user("staff@example.org", is_staff=True)


@pytest.fixture
def person() -> User:
    return new_user("ada@example.org", name="Ada")


def signed_in(user: User | None, *, ago: float = 0) -> Client:
    """The browser of somebody who gave their password so many seconds ago."""
    return Client() if user is None else sign_in(Client(), user, ago=ago)


@pytest.fixture
def desk(admin: User) -> Client:
    """The browser of an admin."""
    return signed_in(admin)


def once() -> dict[str, str]:
    """What a dialog's own form sends along."""
    return {"once": uuid4().hex}


@pytest.fixture
def old_desk(admin: User) -> Client:
    """The browser of an admin, who gave the password long ago."""
    return signed_in(admin, ago=3_600)


@pytest.fixture
def press(desk: Client) -> Callable:
    """Open a dialog, then press its button; returns the last answer."""

    def do(address: str, **written):
        assert desk.get(address).status_code == 200
        return desk.post(address, {**once(), **written}, follow=True)

    return do


def users_list() -> str:
    return reverse("admin:accounts_user_changelist")


def user_act(user: User, what: str) -> str:
    return f"{users_list()}{user.id}/{what}/"
