"""People, links and mails for the tests of access."""

import re
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from django.core import mail
from django.test import Client

from accounts.links import answer_asks
from accounts.mail import send_waiting
from accounts.models import User
from inference import valkey

PASSWORD = "a difference engine"


@pytest.fixture(autouse=True)
def fresh_limits() -> Iterator[None]:
    """No test uses up the tries of another."""
    yield
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}rate:*"):
        valkey.connection().delete(name)


@pytest.fixture(autouse=True)
def quick_hashes(settings) -> None:
    """Passwords are hashed slowly on purpose; what is tested here does not depend on it."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mails go to `django.core.mail.outbox` once the outbox sends them."""
    from django.core.mail.backends.locmem import EmailBackend

    from accounts import mail as outbox

    monkeypatch.setattr(outbox, "MailBackend", EmailBackend)


@pytest.fixture
def person() -> User:
    return User.objects.create_user(f"{uuid4().hex[:8]}@example.org", PASSWORD, name="Ada")


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser(f"root-{uuid4().hex[:8]}@example.org", PASSWORD)


@pytest.fixture
def deliver(django_capture_on_commit_callbacks) -> Callable[[], list]:
    """Let the runner answer who asked and send what waits; returns the mails of this call."""

    def send() -> list:
        before = len(mail.outbox)
        answer_asks()
        send_waiting()
        return mail.outbox[before:]

    return send


def link_in(message) -> str:
    """The address in a mail, as a path of the App; text and HTML hold the same."""
    [address] = re.findall(r"https?://\S+\?token=\S+", message.body)
    html = message.alternatives[0][0]
    assert html.count(address) == 2
    return address.partition("//")[2].partition("/")[2].join(("/", ""))


def follow(client: Client, message) -> object:
    """Open a mail's link, as a person does."""
    answer = client.get(link_in(message))
    assert answer.status_code == 302
    assert "token" not in answer["Location"]
    return client.get(answer["Location"])
