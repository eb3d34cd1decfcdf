"""Links that set a password, and asking for one (A-030 to A-038, A-044, A-068, A-075 to A-084)."""

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from access.decisions import Terms, apply, approve, send_again
from accounts.links import mail_link
from accounts.models import LinkAsk, Mail, PasswordLink, User
from accounts.people import restore, suspend
from accounts.secrets import digest_of_token
from tests.access.conftest import PASSWORD, follow, link_in

pytestmark = pytest.mark.django_db

NEW = "an analytical engine"


@pytest.fixture
def newcomer(admin) -> User:
    """A User who was approved and has no password."""
    made = apply(
        email="new@example.org", name="Nu", organization="Lab", planned_usage="Reads", answers=[]
    )
    return approve(application_id=made.id, terms=Terms(), by=admin.id)


def ask(client: Client, email: str):
    return client.post("/forgot-password", {"email": email})


@pytest.mark.row("A-026", "A-030", "A-031", "A-032", "A-081", "A-539")
def test_the_link_of_an_approval_sets_the_first_password_once(client, newcomer, deliver):
    [message] = deliver()
    assert message.subject == f"Your {settings.BASALT.site_name} application is approved"
    assert message.to == ["new@example.org"]
    assert "Choose your password:" in message.body
    assert ">Choose your password</a>" in message.alternatives[0][0]
    page = follow(client, message).content.decode()
    assert "<h1>Set your password</h1>" in page
    assert ">Password<" in page
    assert ">Set the password<" in page
    short = client.post("/set-password", {"password": "1234567"})
    assert short.status_code == 400
    assert 'id="id_password_error"' in short.content.decode()
    done = client.post("/set-password", {"password": "12345678"}).content.decode()
    assert "Your password is set." in done
    assert 'href="/sign-in">Sign in<' in done
    assert "_auth_user_id" not in client.session
    newcomer.refresh_from_db()
    assert newcomer.check_password("12345678")
    again = follow(client, message)
    assert again.status_code == 410
    assert client.post("/set-password", {"password": "another one"}).status_code == 410
    newcomer.refresh_from_db()
    assert newcomer.check_password("12345678")


@pytest.mark.row("A-030")
def test_the_link_of_an_approval_works_for_seven_days(client, newcomer, deliver):
    link = PasswordLink.objects.get()
    assert (link.expires_at - link.created_at).total_seconds() == pytest.approx(7 * 86_400, abs=5)
    [message] = deliver()
    PasswordLink.objects.update(expires_at=timezone.now())
    assert follow(client, message).status_code == 410


@pytest.mark.row("A-029", "A-033", "A-397")
def test_a_newer_link_ends_the_older_ones(client, newcomer, deliver):
    [first] = deliver()
    application = newcomer.applications.get()
    send_again(application_id=application.id)
    [second] = deliver()
    assert link_in(first) != link_in(second)
    assert follow(client, first).status_code == 410
    assert follow(client, second).status_code == 200
    mail_link(user_id=newcomer.id)
    [third] = deliver()
    assert follow(client, second).status_code == 410
    assert follow(client, third).status_code == 200
    assert PasswordLink.objects.filter(used_at=None, replaced_at=None).count() == 1


@pytest.mark.row("A-034", "A-035")
def test_a_dead_link_leads_to_a_new_one(client):
    for token in ("x" * 43, "", "\x00", "a" * 5000):
        client.get("/set-password", {"token": token})
        page = client.get("/set-password")
        assert page.status_code == 410
        assert "The link did not work" in page.content.decode()
        assert 'href="/forgot-password">Ask for a new link<' in page.content.decode()
    form = client.get("/forgot-password").content.decode()
    assert "Ask for a link" in form
    assert ">Email<" in form
    assert ">Send the link<" in form


@pytest.mark.row("A-036", "A-080", "A-543")
def test_who_has_no_password_is_mailed_the_first_one(client, newcomer, deliver):
    deliver()
    ask(client, "new@example.org")
    [message] = deliver()
    assert message.subject == "Set your password"
    link = PasswordLink.objects.get(replaced_at=None)
    assert (link.expires_at - link.created_at).total_seconds() == pytest.approx(3600, abs=5)
    assert link_in(message).startswith("/set-password?")
    assert "<h1>Set your password</h1>" in follow(client, message).content.decode()
    client.post("/set-password", {"password": NEW})
    assert follow(client, message).status_code == 410


@pytest.mark.row("A-037")
def test_a_scanner_that_follows_a_link_does_not_use_it_up(client, newcomer, deliver):
    [message] = deliver()
    for scanner in (Client(), Client()):
        assert scanner.head(link_in(message)).status_code == 302
        assert follow(scanner, message).status_code == 200
    assert PasswordLink.objects.get().used_at is None
    follow(client, message)
    assert client.post("/set-password", {"password": NEW}).status_code == 200


@pytest.mark.row("A-038", "A-537")
def test_a_links_secret_is_in_no_row_and_in_no_address_of_a_page(client, newcomer, deliver, caplog):
    waiting = Mail.objects.get()
    [message] = deliver()
    token = link_in(message).partition("token=")[2]
    assert token not in waiting.text + waiting.html + waiting.link
    link = PasswordLink.objects.get()
    assert link.digest == digest_of_token(token)
    kept = " ".join(str(value) for row in PasswordLink.objects.values() for value in row.values())
    assert token not in kept
    page = follow(client, message)
    assert page.request["PATH_INFO"] == "/set-password"
    assert page.request["QUERY_STRING"] == ""
    assert token not in page.content.decode()
    assert client.cookies["link"]["httponly"]
    assert token not in caplog.text
    sent = Mail.objects.get()
    assert (sent.text, sent.html) == ("", "")


@pytest.mark.row("A-075")
def test_the_page_for_a_new_password_is_reached_from_the_sign_in_and_the_profile(client, person):
    assert 'href="/forgot-password">Forgot password?<' in client.get("/sign-in").content.decode()
    client.force_login(person)
    profile = client.get("/profile").content.decode()
    assert 'href="/forgot-password">Reset your password<' in profile
    page = client.get("/forgot-password").content.decode()
    assert ">Email<" in page
    assert ">Send the link<" in page


@pytest.mark.row("A-076", "A-077", "A-546", "A-084")
def test_every_address_gets_the_same_answer_and_the_same_work(
    client, person, admin, deliver, django_assert_num_queries
):
    suspended = User.objects.create_user("gone@example.org", PASSWORD)
    suspend(user_id=suspended.id, by=admin.id)
    pages = set()
    for email in (person.email, "nobody@example.org", suspended.email):
        with django_assert_num_queries(3):  # a savepoint, the row, and the savepoint's end
            answer = ask(client, email)
        assert answer.status_code == 200
        assert "Check your email." in answer.content.decode()
        pages.add(answer.content)
        assert not Mail.objects.exists(), "the mail is made after the answer"
    assert len(pages) == 1
    [message] = deliver()
    assert message.to == [person.email]
    assert not LinkAsk.objects.exists()


@pytest.mark.row("A-078", "A-079", "A-081", "A-542")
def test_a_new_password_is_chosen_by_a_link_of_an_hour(client, person, deliver):
    ask(client, person.email.upper())
    [message] = deliver()
    assert message.subject == "Reset your password"
    assert "Choose a new password:" in message.body
    assert link_in(message).startswith("/reset-password?")
    link = PasswordLink.objects.get()
    assert (link.expires_at - link.created_at).total_seconds() == pytest.approx(3600, abs=5)
    page = follow(client, message).content.decode()
    assert "<h1>Choose a new password</h1>" in page
    assert ">New password<" in page
    assert ">Set the new password<" in page
    assert client.post("/reset-password", {"password": "1234567"}).status_code == 400
    done = client.post("/reset-password", {"password": NEW}).content.decode()
    assert "Your password is changed." in done
    assert 'href="/sign-in">Sign in<' in done
    assert "_auth_user_id" not in client.session
    assert follow(client, message).status_code == 410
    assert client.post("/sign-in", {"email": person.email, "password": NEW}).status_code == 302


@pytest.mark.row("A-068")
def test_a_new_password_ends_all_sessions(client, person, deliver):
    devices = [Client(), Client()]
    for device in devices:
        device.post("/sign-in", {"email": person.email, "password": PASSWORD})
        assert device.get("/profile").status_code == 200
    ask(client, person.email)
    [message] = deliver()
    follow(client, message)
    client.post("/reset-password", {"password": PASSWORD})
    assert [device.get("/profile").status_code for device in devices] == [302, 302]


@pytest.mark.row("A-044", "C-382")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/forgot-password", "Too many asks for a link."),
        ("/reset-password", "Too many tries to set a password."),
    ],
)
def test_asking_and_setting_have_the_limit_of_the_sign_in(client, person, deliver, path, words):
    mail_link(user_id=person.id)
    [message] = deliver()
    follow(client, message)
    body = {"email": person.email} if path == "/forgot-password" else {"password": "short"}
    for _ in range(5):
        assert client.post(path, body).status_code in (200, 400)
    answer = client.post(path, body)
    assert answer.status_code == 429
    assert f"{words} Wait {answer['Retry-After']} seconds." in answer.content.decode()
    follow(client, message)
    assert client.post("/sign-in", {"email": person.email, "password": PASSWORD}).status_code == 302


@pytest.mark.row("A-548")
def test_asking_twice_sends_two_mails_of_which_the_second_works(client, person, deliver):
    ask(client, person.email)
    ask(client, person.email)
    first, second = deliver()
    assert follow(client, first).status_code == 410
    assert follow(client, second).status_code == 200


def test_a_link_of_a_suspended_user_does_not_work(client, person, admin, deliver):
    mail_link(user_id=person.id)
    [message] = deliver()
    suspend(user_id=person.id, by=admin.id)
    assert follow(client, message).status_code == 410
    assert client.post("/reset-password", {"password": NEW}).status_code == 410
    restore(user_id=person.id, by=admin.id)
    person.refresh_from_db()
    assert person.check_password(PASSWORD)


def test_a_password_is_any_text_of_eight_to_1024_characters_however_it_is_typed(
    client, person, deliver
):
    mail_link(user_id=person.id)
    [message] = deliver()
    follow(client, message)
    for refused in ("x" * 1025, "12345\x0078"):
        assert client.post("/reset-password", {"password": refused}).status_code == 400
    assert client.post("/reset-password", {"password": "Ångström"}).status_code == 200
    composed = {"email": person.email, "password": "Ångström"}
    assert client.post("/sign-in", composed).status_code == 302


@pytest.mark.django_db(transaction=True)
def test_of_two_uses_of_a_link_at_once_one_wins(person):
    from accounts.links import KIND, LinkDead, set_password
    from accounts.secrets import link_token
    from tests.accounts.at_once import at_once

    mail_link(user_id=person.id)
    token = link_token(KIND, PasswordLink.objects.get().id)
    passwords = [f"password {index}" for index in range(6)]
    calls = [lambda p=p: set_password(token=token, password=p) for p in passwords]
    done = at_once(calls)
    assert sum(isinstance(one, User) for one in done) == 1
    assert sum(isinstance(one, LinkDead) for one in done) == 5
