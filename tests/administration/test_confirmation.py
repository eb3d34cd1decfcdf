"""One's own password again, before what is sensitive, wherever it stands."""

from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AdminAction, User
from administration.many_users import ACTIONS
from administration.one_user import ALL
from administration.users import bulk
from billing import spend_stop
from inference import valkey
from tests.accounts.factory import make_key
from tests.administration.conftest import user_act, users_list

pytestmark = pytest.mark.django_db

ASKS = {
    "Set the role", "Suspend", "Restore", "Delete", "Grant tokens", "Set the Budget",
    "Set the monthly allowance", "Set allowance", "Invite", "Revoke", "Lock", "Clear",
}  # fmt: skip
FORM = {
    "tokens": "5", "tag": "course", "text": "Met.", "per_month": "9", "emails": "new@example.org",
    "reason": "at night", "typed": "delete 1 User",
}  # fmt: skip


def asked(person: User) -> list[tuple[str, str, dict[str, object]]]:
    """What an admin may do to a User, their keys and the spend: action, address, form."""
    key, _ = make_key(person)
    keys = reverse("admin:accounts_apikey_changelist")
    of_one = [(dialog.logged or dialog.label, user_act(person, dialog.path), {}) for dialog in ALL]
    of_many = [
        (
            action.label,
            users_list(),
            {"action": bulk(action).__name__, "_selected_action": person.id},
        )
        for action in ACTIONS
    ]
    of_keys = [
        (label, keys, {"action": label.lower(), "_selected_action": key.id})
        for label in ("Pause", "Resume", "Revoke")
    ]
    return [
        *of_one,
        *of_many,
        *of_keys,
        ("Grant tokens", f"{keys}{key.id}/grant/", {}),
        ("Invite", reverse("admin:access_invite_add"), {}),
        ("Lock", reverse("admin:spend_lock"), {}),
        ("Clear", reverse("admin:spend_clear"), {}),
    ]


def fresh_tries() -> None:
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}rate:*"):
        valkey.connection().delete(name)


def test_what_is_sensitive_wants_the_password_and_nothing_else_does(
    old_desk: Client, person: User
) -> None:
    seen = set()
    for action, address, form in asked(person):
        if action == "Clear":
            spend_stop.lock(by=None)
        suspended_at = timezone.now() if action == "Restore" else None
        User.objects.filter(id=person.id).update(suspended_at=suspended_at)
        before = AdminAction.objects.count()
        written = {**FORM, **form, "once": uuid4().hex}
        answer = old_desk.post(address, written)
        wants = "Your password" in answer.content.decode()
        assert wants == (action in ASKS), (action, address)
        if wants:
            assert AdminAction.objects.count() == before, (action, address)
            seen.add(action)
            wrong = {**written, "own_password": "guessed"}
            assert "That is not right." in old_desk.post(address, wrong).content.decode(), action
            assert AdminAction.objects.count() == before
            fresh_tries()
    assert seen == ASKS
