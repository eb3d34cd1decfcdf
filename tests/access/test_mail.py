"""The outbox: mails leave after their commit, and are tried until they go (A-536 to A-550)."""

import re
from collections.abc import Iterator
from datetime import timedelta
from email import message_from_bytes, policy

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from aiosmtpd.smtp import AuthResult
from django.conf import settings
from django.core import mail as django_mail
from django.db import transaction
from django.utils import timezone

from accounts import mail as outbox
from accounts.links import mail_link
from accounts.mail import Button, Words, post, post_to_team, send_waiting
from accounts.mail_backend import MailBackend, MailServerInvalid
from accounts.models import Mail, MailKind
from accounts.people import delete, restore, suspend
from tests.accounts.at_once import at_once

pytestmark = pytest.mark.django_db

WORDS = Words(
    subject="A subject\nof two lines",
    paragraphs=["First & <b>second</b>."],
    button=Button("Open Usage", "/usage/request"),
    facts=[("Tokens", "50K"), ("Links", "")],
)


class Kept(Message):
    """A mail server's handler that keeps what it took, and refuses at wish."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list = []
        self.refuse = 0

    async def handle_DATA(self, server, session, envelope):
        if self.refuse:
            self.refuse -= 1
            return "451 try again later"
        self.taken.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"

    def handle_message(self, message) -> None:
        raise AssertionError("handle_DATA takes all")


@pytest.fixture
def server(monkeypatch, settings) -> Iterator[Kept]:
    """A real mail server, and the backend that speaks to it."""
    kept = Kept()
    controller = Controller(kept, hostname="127.0.0.1", port=0)
    # The controller asks its own port for a sign of life, so the port must be known first.
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        controller.port = free.getsockname()[1]
    controller.start()
    monkeypatch.setattr(outbox, "MailBackend", MailBackend)
    settings.BASALT = settings.BASALT.model_copy(
        update={"mail_url": f"smtp://127.0.0.1:{controller.port}"}
    )
    yield kept
    controller.stop()


def write(to: str = "ada@example.org") -> Mail:
    return post(kind=MailKind.TOKEN_DECISION, to=to, words=WORDS, by_name="Ada <i>")


@pytest.mark.row("A-537", "A-538")
def test_a_mail_goes_over_smtp_as_text_and_html(server: Kept):
    mail = write()
    assert send_waiting() == 1
    [message] = server.taken
    assert message["Subject"] == "A subject of two lines"
    assert message["To"] == "ada@example.org"
    assert message["From"] == settings.DEFAULT_FROM_EMAIL
    assert str(mail.id) in message["Message-ID"]
    text = message.get_body(("plain",)).get_content().replace("\r\n", "\n")
    html = message.get_body(("html",)).get_content()
    address = f"{settings.BASALT.app_address}/usage/request"
    assert f"Open Usage:\n{address}" in text
    assert f'href="{address}"' in html
    assert "First & <b>second</b>." in text
    assert "First &amp; &lt;b&gt;second&lt;/b&gt;." in html
    assert "Ada &lt;i&gt;" in html
    assert "Links:\nNot answered" in text
    assert settings.BASALT.site_name in html
    for found in re.findall(r"https?://[^\s\"<]+", text + html):
        assert found.startswith(settings.BASALT.app_address)


@pytest.mark.row("A-536")
def test_mails_have_the_colours_of_the_pages():
    write()
    html = Mail.objects.get().html
    tokens = (settings.BASE_DIR / "static" / "css" / "tokens.css").read_text().lower()
    colours = set(re.findall(r"#[0-9a-f]{6}", html.lower()))
    assert colours
    assert all(colour in tokens for colour in colours - {"#ffffff"})


@pytest.mark.row("A-537")
@pytest.mark.django_db(transaction=True)
def test_nothing_leaves_of_what_was_rolled_back(monkeypatch):
    rung = []
    monkeypatch.setattr(outbox, "ring", lambda: rung.append(1))
    with pytest.raises(RuntimeError), transaction.atomic():
        write()
        assert not rung
        raise RuntimeError
    assert (send_waiting(), rung) == (0, [])
    with transaction.atomic():
        write()
        assert not rung
    assert (send_waiting(), rung) == (1, [1])


@pytest.mark.row("A-549")
def test_a_refused_mail_is_tried_again_until_it_goes(server: Kept, monkeypatch):
    write()
    server.refuse = 2
    now = timezone.now()
    clock = [now]
    monkeypatch.setattr("accounts.mail.timezone.now", lambda: clock[0])
    assert send_waiting() == 0
    kept = Mail.objects.get()
    assert "try again later" in kept.error
    assert kept.text
    assert send_waiting() == 0
    assert Mail.objects.get().attempts == 1, "not before its time"
    clock[0] = now + timedelta(minutes=3)
    assert send_waiting() == 0
    clock[0] = now + timedelta(minutes=9)
    assert send_waiting() == 1
    sent = Mail.objects.get()
    assert sent.sent_at
    assert (sent.text, sent.html, sent.error) == ("", "", "")
    assert len(server.taken) == 1
    clock[0] = now + timedelta(days=1)
    assert send_waiting() == 0


@pytest.mark.row("A-549")
def test_a_page_answers_alike_while_the_mail_server_is_away(client, person, settings, monkeypatch):
    monkeypatch.setattr(outbox, "MailBackend", MailBackend)
    settings.BASALT = settings.BASALT.model_copy(update={"mail_url": "smtp://127.0.0.1:1"})
    answer = client.post("/forgot-password", {"email": person.email})
    assert "Check your email." in answer.content.decode()
    from accounts.links import answer_asks

    answer_asks()
    assert send_waiting() == 0
    assert Mail.objects.get().sent_at is None


@pytest.mark.django_db(transaction=True)
def test_senders_at_once_send_each_mail_once():
    for index in range(12):
        write(f"p{index}@example.org")
    sent = at_once([send_waiting] * 6)
    assert sum(sent) == 12
    assert len({message.to[0] for message in django_mail.outbox}) == len(django_mail.outbox) == 12


def test_a_mail_whose_sender_died_is_sent_after_its_lease(monkeypatch):
    write()
    taken = outbox._take()
    assert taken is not None
    assert send_waiting() == 0
    later = timezone.now() + timedelta(minutes=6)
    monkeypatch.setattr("accounts.mail.timezone.now", lambda: later)
    assert send_waiting() == 1


def test_a_mail_that_is_too_old_is_given_up(monkeypatch):
    write()
    Mail.objects.update(expires_at=timezone.now())
    assert send_waiting() == 0
    assert Mail.objects.get().given_up_at
    assert not django_mail.outbox


@pytest.mark.row("A-547", "A-546")
def test_no_mail_goes_on_a_suspension_a_restore_or_a_delete(person, admin):
    suspend(user_id=person.id, by=admin.id)
    assert mail_link(user_id=person.id) is False
    restore(user_id=person.id, by=admin.id)
    delete(user_id=person.id, by=admin.id)
    assert not Mail.objects.exists()


@pytest.mark.row("A-550")
def test_the_teams_addresses_are_settings_and_may_be_none(settings):
    assert post_to_team(kind=MailKind.SPEND, words=WORDS) == 0
    assert not Mail.objects.exists()
    addresses = ("a@example.org", "b@example.org")
    settings.BASALT = settings.BASALT.model_copy(update={"team_emails": addresses})
    assert post_to_team(kind=MailKind.SPEND, words=WORDS) == 2
    assert {mail.to for mail in Mail.objects.all()} == set(addresses)


def test_a_password_goes_to_no_server_without_encryption(settings):
    class Login:
        def __call__(self, *known: object) -> AuthResult:
            raise AssertionError("the password was sent")

    with_login = Controller(
        Kept(), hostname="127.0.0.1", port=0, authenticator=Login(), auth_require_tls=False
    )
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with_login.port = free.getsockname()[1]
    with_login.start()
    try:
        settings.BASALT = settings.BASALT.model_copy(
            update={"mail_url": f"smtp://user:secret@127.0.0.1:{with_login.port}"}
        )
        with pytest.raises(MailServerInvalid, match="offers no STARTTLS"):
            MailBackend()._inner.open()
    finally:
        with_login.stop()


@pytest.mark.parametrize("url", ["http://mail.example.org", "smtp://", "mail.example.org"])
def test_an_address_that_is_no_mail_servers_is_refused(url, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"mail_url": url})
    with pytest.raises(MailServerInvalid):
        _ = MailBackend()._inner


def test_without_a_server_mails_are_printed(settings, capsys, monkeypatch):
    monkeypatch.setattr(outbox, "MailBackend", MailBackend)
    write()
    assert send_waiting() == 1
    assert "Subject: A subject of two lines" in capsys.readouterr().out
