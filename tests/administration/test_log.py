"""The log: a line for each change, by whomever, and none where nothing changed (A-392)."""

import pytest
from django.core.management import call_command
from django.utils import timezone

from accounts.models import AdminAction, ApiKey, User
from billing import spend_stop
from operations import stop
from tests.accounts.factory import make_key
from tests.administration.conftest import new_user, once

pytestmark = pytest.mark.django_db

KEYS = "/admin/accounts/apikey/"


def lines(**which) -> list[tuple[str, str, str]]:
    found = AdminAction.objects.filter(**which).order_by("id")
    return list(found.values_list("action", "by__email", "details"))


@pytest.mark.row("A-392")
def test_a_command_has_its_line_by_nobody(person, tiny_catalogue, capsys):
    call_command("grant", person.email, "50K")
    call_command("suspend", person.email)
    call_command("restore", person.email)
    assert lines(target_id=str(person.id)) == [
        ("Grant tokens", None, "50,000"),
        ("Suspend", None, ""),
        ("Restore", None, ""),
    ]
    call_command("spend_stop", "lock", "--reason", "night")
    call_command("spend_stop", "clear")
    call_command("spend_stop", "clear")
    assert lines(kind="billing.spendstop") == [("Lock", None, "night"), ("Clear", None, "")]
    call_command("warm_now", "tiny", "3")
    [(action, by, details)] = lines(kind="operations.warmwindow")
    assert (action, by) == ("Warm now", None)
    assert details.startswith("tiny: now, until ")


@pytest.mark.row("A-392")
def test_a_lock_of_a_stop_that_is_on_has_no_line(admin):
    begun = spend_stop.pause_for_amount(spend=3001)
    assert stop.lock(by=admin.id, note="me too") == begun
    assert lines() == []
    assert stop.clear(by=admin.id)
    assert not stop.clear(by=admin.id)
    assert lines() == [("Clear", admin.email, "")]


def chosen(desk, action: str, keys: list[ApiKey], **written):
    body = {"action": action, "_selected_action": [str(key.id) for key in keys], **written}
    return desk.post(KEYS, body)


@pytest.mark.row("A-392", "A-440")
def test_keys_are_paused_resumed_and_revoked_with_a_line_for_each_that_changed(desk, admin, person):
    live, paused, gone = (make_key(person, name)[0] for name in ("live", "paused", "gone"))
    ApiKey.objects.filter(id=paused.id).update(paused_at=timezone.now())
    ApiKey.objects.filter(id=gone.id).update(revoked_at=timezone.now())
    keys = [live, paused, gone]
    dialog = chosen(desk, "pause", keys).content.decode()
    assert "1 API key will be paused. 2 API keys are left out." in dialog
    assert "is paused already." in dialog
    assert "is revoked already." in dialog
    live.refresh_from_db()
    assert live.paused_at is None
    chosen(desk, "pause", keys, **once())
    live.refresh_from_db()
    assert live.paused_at is not None
    assert lines(kind="accounts.apikey") == [("Pause", admin.email, "")]
    chosen(desk, "resume", keys, **once())
    assert not ApiKey.objects.filter(paused_at__isnull=False).exists()
    chosen(desk, "revoke", keys, **once())
    assert not ApiKey.objects.live().exists()
    assert [action for action, *_ in lines(kind="accounts.apikey")] == [
        "Pause", "Resume", "Resume", "Revoke", "Revoke",
    ]  # fmt: skip


def test_the_log_is_found_by_who_what_and_kind(desk, admin, person):
    other = User.objects.create_superuser("other@example.org")
    stop.lock(by=other.id, note="night")
    AdminAction.objects.create(by=admin, action="X", kind="accounts.user", target_id=str(person.id))

    def actions(query: str) -> set[str]:
        page = desk.get(f"/admin/accounts/adminaction/?{query}").content.decode()
        return {word for word in ("Lock", "X") if f">{word}<" in page}

    assert actions("") == {"Lock", "X"}
    assert actions("q=OTHER@example.org") == {"Lock"}
    assert actions(f"q={person.id}") == {"X"}
    assert actions("kind=billing.spendstop") == {"Lock"}
    assert actions("q=nobody@example.org") == set()


def test_no_list_fails_on_what_no_filter_knows(desk, person):
    from django.contrib.admin import site

    new_user()
    for model, listed in site._registry.items():
        meta, filters = model._meta, listed.list_filter
        address = f"/admin/{meta.app_label}/{meta.model_name}/"
        names = [
            "q",
            *(each.parameter_name for each in filters if hasattr(each, "parameter_name")),
            *(f"{each}__exact" for each in filters if isinstance(each, str)),
            *(f"{each[0]}__isempty" for each in filters if isinstance(each, tuple)),
        ]
        for name in names:
            for value in ("\0", "a\0b", "nothing", "-1"):
                answer = desk.get(address, {name: value})
                assert answer.status_code in (200, 302), (address, name, value)
