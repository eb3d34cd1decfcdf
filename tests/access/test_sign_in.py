"""Signing in and out, and where it leads (A-039 to A-050, A-066 to A-074, A-082)."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from accounts.people import restore, suspend
from completions.failures import suspension_message
from tests.access.conftest import PASSWORD
from tests.accounts.factory import make_key

pytestmark = pytest.mark.django_db


def try_it(client: Client, user, password: str = PASSWORD, **more):
    return client.post("/sign-in", {"email": user.email, "password": password, **more})


@pytest.mark.row("A-039")
def test_the_page_has_its_fields_and_the_way_to_a_new_password(client):
    page = client.get("/sign-in").content.decode()
    for label in ("Email", "Password", "Sign in", "Forgot password?"):
        assert f">{label}<" in page
    assert 'href="/forgot-password"' in page


@pytest.mark.row("A-040")
def test_a_wrong_email_and_a_wrong_password_read_alike(client, person):
    wrong_password = try_it(client, person, "another engine")
    wrong_email = client.post("/sign-in", {"email": "nobody@example.org", "password": PASSWORD})
    assert wrong_password.status_code == wrong_email.status_code == 400
    texts = [
        answer.content.decode().partition('id="fault">')[2].partition("<")[0]
        for answer in (wrong_password, wrong_email)
    ]
    assert texts == ["The email or the password is wrong."] * 2
    assert "_auth_user_id" not in client.session


@pytest.mark.row("A-040")
def test_both_make_one_hash(client, person, monkeypatch):
    from django.contrib.auth import hashers

    made = []
    hasher = type(hashers.get_hasher())
    encode = hasher.encode
    monkeypatch.setattr(
        hasher, "encode", lambda self, *a, **k: made.append(1) or encode(self, *a, **k)
    )
    try_it(client, person, "another engine")
    with_user = len(made)
    client.post("/sign-in", {"email": "nobody@example.org", "password": PASSWORD})
    assert with_user == len(made) - with_user == 1


@pytest.mark.row("A-041")
def test_the_email_matches_whatever_its_letter_case(client, person):
    answer = client.post("/sign-in", {"email": person.email.upper(), "password": PASSWORD})
    assert answer.status_code == 302
    assert client.session["_auth_user_id"] == str(person.id)


@pytest.mark.row("A-042", "A-043", "A-045", "C-382")
@pytest.mark.case("U04")
def test_after_five_tries_an_address_waits_and_then_signs_in(client, person, monkeypatch):
    for _ in range(5):
        assert try_it(client, person, "wrong").status_code == 400
    answer = try_it(client, person)
    page = answer.content.decode()
    assert answer.status_code == 429
    seconds = int(answer["Retry-After"])
    assert 1 <= seconds <= 60
    assert f"Too many tries to sign in. Wait {seconds} seconds." in page
    assert f'value="{person.email}"' in page
    assert "_auth_user_id" not in client.session
    another = try_it(client, person, REMOTE_ADDR="10.0.0.9")
    assert another.status_code == 429, "the address comes from the connection, not from the form"
    elsewhere = Client(REMOTE_ADDR="203.0.113.9")
    assert try_it(elsewhere, person).status_code == 302
    from inference import valkey

    valkey.connection().delete(f"{valkey.PREFIX}rate:sign-in:127.0.0.1")
    assert try_it(client, person).status_code == 302


@pytest.mark.case("U04")
def test_behind_a_proxy_each_client_has_its_own_limit_and_nobody_else_names_one(person):
    proxied = [Client(HTTP_X_FORWARDED_FOR=f"198.51.100.{index}") for index in (1, 2)]
    for _ in range(5):
        try_it(proxied[0], person, "wrong")
    assert try_it(proxied[1], person).status_code == 429, "no proxy is trusted"
    before = settings.BASALT
    settings.BASALT = before.model_copy(update={"trusted_proxies": ("127.0.0.1",)})
    try:
        for _ in range(5):
            try_it(proxied[0], person, "wrong")
        assert try_it(proxied[0], person).status_code == 429
        assert try_it(proxied[1], person).status_code == 302
    finally:
        settings.BASALT = before


@pytest.mark.row("A-046", "A-047", "A-552")
def test_the_first_page_follows_from_the_keys(client, person):
    assert try_it(client, person)["Location"] == "/api-keys"
    key, _ = make_key(person)
    assert try_it(Client(), person)["Location"] == "/playground"
    assert try_it(Client(), person, next="/usage?days=3")["Location"] == "/usage?days=3"
    from accounts.keys import pause_key, revoke_key

    pause_key(key_id=key.id)
    assert try_it(Client(), person)["Location"] == "/playground"
    revoke_key(key_id=key.id)
    assert try_it(Client(), person)["Location"] == "/api-keys"


@pytest.mark.row("A-048")
@pytest.mark.parametrize(
    "next_page",
    [
        "https://evil.example.org/",
        "//evil.example.org/usage",
        "/\\evil.example.org",
        "javascript:alert(1)",
        "http:///evil.example.org",
        "/sign-in?next=/sign-in",
        "/sign-out",
        "usage",
    ],
)
def test_a_sign_in_leads_nowhere_else(client, person, next_page):
    assert try_it(client, person, next=next_page)["Location"] == "/api-keys"
    signed_in = client.get("/sign-in", {"next": next_page})
    assert signed_in["Location"] == "/api-keys"


@pytest.mark.row("A-050")
def test_who_is_signed_in_goes_on(client, person):
    client.force_login(person)
    assert client.get("/sign-in")["Location"] == "/api-keys"
    assert client.get("/sign-in?next=/profile")["Location"] == "/profile"


@pytest.mark.row("A-066")
def test_a_session_ends_thirty_days_after_its_renewal(client, person):
    try_it(client, person)
    assert client.cookies["sessionid"]["max-age"] == 30 * 86_400
    assert client.get("/profile").status_code == 200
    row = Session.objects.get(session_key=client.session.session_key)
    left = row.expire_date - timezone.now()
    assert timedelta(days=30) - left < timedelta(minutes=1)
    Session.objects.update(expire_date=timezone.now())
    assert client.get("/profile").status_code == 302


@pytest.mark.row("A-067")
def test_a_visit_renews_a_session_once_a_day(client, person, monkeypatch):
    try_it(client, person)
    now = timezone.now()

    def at(hours: float):
        monkeypatch.setattr("accounts.sessions.timezone.now", lambda: now + timedelta(hours=hours))
        before = Session.objects.get().session_data
        answer = client.get("/profile")
        return Session.objects.get().session_data != before, "sessionid" in answer.cookies

    assert at(23) == (False, False)
    assert at(25) == (True, True)
    assert at(26) == (False, False)
    assert at(50) == (True, True)
    began = client.session["signed_in_at"]
    assert abs(began - now.timestamp()) < 60


@pytest.mark.row("A-069")
def test_a_suspension_ends_all_sessions_for_good(person, admin):
    clients = [Client(), Client()]
    for each in clients:
        try_it(each, person)
        assert each.get("/profile").status_code == 200
    suspend(user_id=person.id, by=admin.id)
    assert [each.get("/profile").status_code for each in clients] == [302, 302]
    restore(user_id=person.id, by=admin.id)
    assert [each.get("/profile").status_code for each in clients] == [302, 302]
    assert try_it(Client(), person).status_code == 302


@pytest.mark.row("A-070", "A-071", "A-087")
def test_an_ended_session_leads_to_a_sign_in_that_says_so_and_back(client, person):
    fresh = Client()
    assert "Your session has ended." not in fresh.get("/sign-in").content.decode()
    try_it(client, person)
    client.get("/profile")
    Session.objects.all().delete()
    answer = client.get("/profile?x=1")
    assert answer["Location"] == "/sign-in?next=/profile%3Fx%3D1"
    page = client.get(answer["Location"]).content.decode()
    assert "Your session has ended." in page
    assert 'value="/profile?x=1"' in page
    back = try_it(client, person, next="/profile?x=1")
    assert back["Location"] == "/profile?x=1"


@pytest.mark.row("A-070")
def test_who_signed_out_is_not_told_of_an_ended_session(client, person):
    try_it(client, person)
    client.get("/profile")
    client.post("/sign-out")
    assert "Your session has ended." not in client.get("/sign-in").content.decode()


@pytest.mark.row("A-074", "A-129")
def test_only_a_post_with_its_token_signs_out(person):
    client = Client(enforce_csrf_checks=True)
    client.force_login(person)
    assert client.get("/sign-out").status_code == 405
    assert client.post("/sign-out").status_code == 403
    assert client.get("/profile").status_code == 200
    token = client.cookies["csrftoken"].value
    answer = client.post("/sign-out", {"csrfmiddlewaretoken": token})
    assert answer["Location"] == "/sign-in"
    assert client.get("/profile").status_code == 302


@pytest.mark.row("A-129")
@pytest.mark.parametrize(
    "path",
    ["/sign-in", "/apply", "/invited", "/forgot-password", "/set-password", "/reset-password"],
)
def test_every_form_before_the_sign_in_wants_its_token(path):
    assert Client(enforce_csrf_checks=True).post(path, {}).status_code == 403


@pytest.mark.row("A-082")
def test_a_suspended_user_is_told_so_only_with_the_right_password(client, person, admin):
    suspend(user_id=person.id, by=admin.id)
    answer = try_it(client, person)
    assert answer.status_code == 403
    assert suspension_message() in answer.content.decode()
    assert suspension_message() == (
        f"Your access to {settings.BASALT.site_name} is suspended. Write to "
        f"{settings.BASALT.support_email} if you think this is a mistake."
    )
    wrong = try_it(client, person, "another engine")
    assert wrong.status_code == 400
    assert "suspended" not in wrong.content.decode()


@pytest.mark.row("A-126", "A-010")
def test_a_text_with_nul_is_refused_at_its_field(client):
    answer = client.post("/sign-in", {"email": "a\0b@example.org", "password": "x\0"})
    assert answer.status_code == 400
    words = answer.content.decode()
    assert words.count("A text cannot hold the character U+0000 (NUL).") == 2


@pytest.mark.row("A-013")
@pytest.mark.parametrize(
    "path",
    ["/sign-up", "/signup", "/accounts/signup/", "/sign-in/none", "/accounts/social/signup/"],
)
def test_nobody_signs_up(client, path):
    assert client.get(path).status_code == 404
    assert client.post(path, {"email": "new@example.org", "password1": PASSWORD}).status_code == 404
