"""What a person at a terminal does for people: approve, invite, suspend, restore, first admin."""

import pytest
from django.core.management import CommandError, call_command

from access.decisions import apply
from access.models import Invite
from accounts.keys import find_key
from accounts.models import AdminAction, Mail, User
from billing.allowance import tokens_left
from tests.accounts.factory import make_key

pytestmark = pytest.mark.django_db


def test_an_application_is_approved(capsys):
    apply(email="ada@example.org", name="A", organization="O", planned_usage="P", answers=[])
    call_command("approve", "ADA@example.org", "--tokens", "50K", "--allowance", "1M")
    user = User.objects.get(email="ada@example.org")
    left = tokens_left(user_id=user.id, key_id=None)
    assert (left.budget_left, left.allowance) == (50_000, 1_000_000)
    assert Mail.objects.get().kind == "approval"
    assert "ada@example.org has access" in capsys.readouterr().out
    assert AdminAction.objects.filter(by=None).count() == 2
    with pytest.raises(CommandError, match="no Application"):
        call_command("approve", "ada@example.org")


def test_people_are_invited(capsys, person):
    call_command("invite", "bo@example.org", person.email, "--tag", "Course 26", "--tokens", "1K")
    made = Invite.objects.get()
    assert (made.email, made.tag, made.tokens) == ("bo@example.org", "course-26", 1_000)
    printed = capsys.readouterr()
    assert "invited bo@example.org" in printed.out
    assert "has a User already" in printed.err
    for wrong in (
        ["nonsense"],
        ["x@example.org", "--tag", "é"],
        ["x@example.org", "--tokens", "x"],
    ):
        with pytest.raises(CommandError):
            call_command("invite", *wrong)


@pytest.mark.row("A-083", "A-086")
def test_a_user_is_suspended_and_restored_with_their_keys(person, admin):
    _, secret = make_key(person)
    call_command("suspend", person.email)
    assert find_key(secret).suspended
    with pytest.raises(CommandError, match="suspended already"):
        call_command("suspend", person.email)
    call_command("restore", person.email)
    assert find_key(secret).usable
    with pytest.raises(CommandError, match="is not suspended"):
        call_command("restore", person.email)
    with pytest.raises(CommandError, match="there is no User"):
        call_command("restore", "nobody@example.org")
    with pytest.raises(CommandError, match="last admin"):
        call_command("suspend", admin.email)


@pytest.mark.row("A-012")
def test_the_first_admin_is_made_by_a_command(client):
    call_command("create_key", "root@example.org", "--admin")
    root = User.objects.get(email="root@example.org")
    assert root.is_admin
    client.force_login(root)
    assert client.get("/admin/").status_code == 200
    for path in ("/apply", "/sign-in", "/set-password", "/invited"):
        assert "is_staff" not in client.get(path).content.decode()
