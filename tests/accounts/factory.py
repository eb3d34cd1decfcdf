"""Users and keys for tests."""

import uuid

from accounts.keys import create_key
from accounts.models import ApiKey, User


def make_user(email: str | None = None) -> User:
    return User.objects.create_user(email or f"{uuid.uuid4().hex}@example.org")


def make_key(user: User, name: str | None = None) -> tuple[ApiKey, str]:
    return create_key(user=user, name=name or uuid.uuid4().hex)
