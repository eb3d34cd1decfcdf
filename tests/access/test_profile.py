"""The profile, and what is forgotten of people (A-374, A-375, A-569)."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from access.decisions import Terms, apply, approve
from access.erasure import erase_deleted
from access.models import Application
from accounts.forgetting import forget
from accounts.links import mail_link
from accounts.mail import send_waiting
from accounts.models import Mail, PasswordLink, Remark, User
from accounts.people import delete
from billing.grants import grant
from looms.models import Loom

pytestmark = pytest.mark.django_db


@pytest.mark.row("A-374", "A-375", "A-137", "A-560")
def test_the_profile_shows_who_one_is_and_nothing_of_role_or_tokens(client, admin):
    User.objects.filter(id=admin.id).update(name="Grace")
    grant(user_id=admin.id, tokens=123_456, by=None)
    client.force_login(admin)
    page = client.get("/profile").content.decode()
    main = page.partition("<main")[2].partition("</main>")[0]
    assert "Grace" in main
    assert admin.email in main
    assert ">Reset your password<" in main
    for word in ("Admin", "admin", "role", "123,456", "Budget", "allowance", "tokens"):
        assert word not in main, word
    assert client.post("/profile").status_code == 405


@pytest.mark.row("A-569")
def test_ended_sessions_old_links_and_old_mails_are_removed(client, person):
    client.force_login(person)
    mail_link(user_id=person.id)
    send_waiting()
    assert forget() == 0
    now = timezone.now()
    Session.objects.update(expire_date=now - timedelta(seconds=1))
    PasswordLink.objects.update(expires_at=now - timedelta(days=31))
    Mail.objects.update(created_at=now - timedelta(days=31))
    assert forget() == 3
    mail_link(user_id=person.id)
    Mail.objects.update(created_at=now - timedelta(days=31))
    assert forget() == 0, "a mail that waits is kept"


@pytest.mark.row("A-569")
def test_what_a_deleted_user_wrote_goes_at_once_and_is_erased_after_fourteen_days(admin):
    made = apply(
        email="ada@example.org",
        name="Ada",
        organization="Society",
        planned_usage="Norms",
        answers=[("Links", "https://example.org/ada")],
    )
    user = approve(application_id=made.id, terms=Terms(), by=admin.id)
    Remark.objects.create(user=user, by=admin, text="Met Ada")
    now = timezone.now()
    loom = Loom.objects.create(user=user, title="Mine", created_at=now, changed_at=now)
    delete(user_id=user.id, by=admin.id)
    loom.refresh_from_db()
    assert loom.deleted_at
    assert erase_deleted() == 0
    User.objects.filter(id=user.id).update(deleted_at=timezone.now() - timedelta(days=14))
    assert erase_deleted() == 1
    assert erase_deleted() == 0
    kept = str(Application.objects.filter(id=made.id).values().get())
    for trace in ("ada@", "Ada", "Society", "Norms", "example.org/ada"):
        assert trace not in kept
    assert not Remark.objects.exists()
