"""Two-factor sign-in, and the password again for what is guarded."""

import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, hotp_value
from django.test import Client

from tests.access.conftest import PASSWORD

pytestmark = pytest.mark.django_db

KEY = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


def code(secret: str = KEY, ahead: int = 0) -> str:
    return f"{hotp_value(secret, int(time.time()) // 30 + ahead):06d}"


def sign_in(client: Client, user):
    return client.post("/sign-in", {"email": user.email, "password": PASSWORD, "next": "/profile"})


@pytest.fixture
def guarded(admin):
    TOTP.activate(admin, KEY)
    RecoveryCodes.activate(admin)
    return admin


def test_a_sign_in_asks_for_the_code_and_a_code_works_once(client, guarded):
    answer = sign_in(client, guarded)
    assert answer["Location"].startswith("/sign-in/code")
    assert "_auth_user_id" not in client.session
    assert client.get("/profile").status_code == 302
    assert ">Sign in</button>" in client.get("/sign-in/code").content.decode()
    wrong = client.post("/sign-in/code", {"code": "000000"})
    assert wrong.status_code == 200
    assert "fault" in wrong.content.decode()
    assert "_auth_user_id" not in client.session
    used = code()
    answer = client.post("/sign-in/code", {"code": used})
    assert answer["Location"] == "/profile"
    assert client.get("/profile").status_code == 200
    another = Client()
    sign_in(another, guarded)
    another.post("/sign-in/code", {"code": used})
    assert "_auth_user_id" not in another.session


def test_a_recovery_code_signs_in_once(guarded):
    codes = Authenticator.objects.get(type="recovery_codes").wrap().get_unused_codes()
    for expected in (True, False):
        client = Client()
        sign_in(client, guarded)
        client.post("/sign-in/code", {"code": codes[0]})
        assert ("_auth_user_id" in client.session) is expected


def test_codes_cannot_be_tried_on(client, guarded):
    sign_in(client, guarded)
    for _ in range(5):
        assert client.post("/sign-in/code", {"code": "000000"}).status_code == 200
    answer = client.post("/sign-in/code", {"code": code()})
    assert answer.status_code == 429
    assert f"Wait {answer['Retry-After']} seconds" in answer.content.decode()
    assert "_auth_user_id" not in client.session


def test_a_user_sets_it_up_with_the_password_again_and_turns_it_off(client, person):
    sign_in(client, person)
    asked = client.get("/profile/two-factor/activate")
    assert asked["Location"].startswith("/confirm?")
    assert client.post(asked["Location"], {"password": "wrong one"}).status_code == 200
    confirmed = client.post(
        "/confirm", {"password": PASSWORD, "next": "/profile/two-factor/activate"}
    )
    assert confirmed["Location"] == "/profile/two-factor/activate"
    page = client.get("/profile/two-factor/activate").content.decode()
    secret = page.partition('<code class="breaks">')[2].partition("<")[0]
    assert client.post("/profile/two-factor/activate", {"code": "123"}).status_code == 200
    done = client.post("/profile/two-factor/activate", {"code": code(secret)})
    assert done["Location"] == "/profile/two-factor/codes"
    kept = Authenticator.objects.get(type="totp").data["secret"]
    assert secret not in kept, "a secret is stored encrypted"
    assert "Recovery codes" in client.get("/profile/two-factor/codes").content.decode()
    assert "It is on" in client.get("/profile/two-factor").content.decode()
    client.post("/profile/two-factor/deactivate")
    assert not Authenticator.objects.exists()


def test_staff_open_the_admin_only_with_it_where_that_is_set(client, admin, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"staff_two_factor": True})
    client.force_login(admin)
    assert client.get("/admin/")["Location"] == "/profile/two-factor"
    assert "Whoever opens the admin needs it." in (
        client.get("/profile/two-factor").content.decode()
    )
    TOTP.activate(admin, KEY)
    assert client.get("/admin/").status_code == 200


def test_two_factor_sign_in_is_wanted_of_staff_unless_a_setting_says_otherwise():
    from config.environment import Environment

    assert Environment.model_fields["staff_two_factor"].default is True
