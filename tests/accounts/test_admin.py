import pytest
from django.contrib.admin import site
from django.test import RequestFactory

from accounts.models import ApiKey, User
from tests.accounts.factory import make_key, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def request_of_an_admin():
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root@example.org", "a difference engine")
    return request


def test_a_user_is_made_with_an_email_and_no_password(request_of_an_admin):
    form = site._registry[User].get_form(request_of_an_admin)(
        {"email": "Ada@Example.org", "name": "Ada", "usable_password": "false"}
    )
    assert form.is_valid(), form.errors
    assert form.save().email == "ada@example.org"


def test_an_email_that_a_user_has_is_refused_whatever_its_letter_case(request_of_an_admin):
    make_user("ada@example.org")
    form = site._registry[User].get_form(request_of_an_admin)(
        {"email": "ADA@example.org", "usable_password": "false"}
    )
    assert not form.is_valid()
    assert form.errors["email"]


def test_keys_are_paused_resumed_and_revoked_as_a_set(request_of_an_admin):
    user = make_user()
    chosen = ApiKey.objects.filter(id__in=[make_key(user)[0].id, make_key(user)[0].id])
    admin = site._registry[ApiKey]
    admin.pause(request_of_an_admin, chosen)
    assert chosen.filter(paused_at=None).count() == 0
    admin.resume(request_of_an_admin, chosen)
    assert chosen.filter(paused_at=None).count() == 2
    admin.revoke(request_of_an_admin, chosen)
    assert chosen.filter(revoked_at=None).count() == 0
    assert not admin.has_delete_permission(request_of_an_admin)
    assert not admin.has_add_permission(request_of_an_admin)
