"""Every address of the admin against everybody: a table made from the addresses themselves."""

from uuid import uuid4

import pytest
from django.contrib.admin import site
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from accounts.models import User
from accounts.people import suspend
from tests.administration.conftest import new_user, signed_in

pytestmark = pytest.mark.django_db

FREE = {"admin:login", "admin:jsi18n"}
"""Addresses that tell nothing: the way to the sign-in, and words of scripts."""

DECISIONS = {
    "access_application_approve",
    "access_application_reject",
    "access_application_send_again",
    "billing_tokenrequest_read",
    "billing_tokenrequest_approve",
    "billing_tokenrequest_reject",
}
"""Dialogs of staff: whoever has a role decides."""

READS = {"index", "search", "autocomplete", "app_list", "view_on_site", "feedback_screenshot"}
"""Addresses that answer a POST as they answer a GET, and change nothing."""

OWN = {"logout", "password_change", "password_change_done"}
"""Addresses about one's own sign-in."""


def admin_addresses() -> list[tuple[str, URLPattern, str]]:
    """Every pattern under `/admin/`, with its name and an address that it matches."""

    def walk(patterns, before: str):
        for each in patterns:
            route = before + str(each.pattern)
            if isinstance(each, URLResolver):
                yield from walk(each.url_patterns, route)
            else:
                yield each.name or "", each, route

    [under] = [
        each
        for each in get_resolver().url_patterns
        if isinstance(each, URLResolver) and str(each.pattern) == "admin/"
    ]
    return list(walk(under.url_patterns, "/admin/"))


def filled(route: str) -> str:
    """An address of a route, with ids that nothing has."""
    import re

    some = {
        "path:object_id": str(uuid4()),
        "int:content_type_id": "1",
        "path": "x",
    }

    def put(found: "re.Match[str]") -> str:
        return some.get(found[1], str(uuid4()))

    route = re.sub(r"<([^>]*)>", put, route)
    # Patterns that are regular expressions, such as those of an app's index.
    return re.sub(r"\^|\$|\\Z", "", re.sub(r"\(\?P<\w+>([^)|]*)[^)]*\)", r"\1", route))


@pytest.fixture(scope="module")
def addresses() -> list[tuple[str, str]]:
    """Each address's name and route."""
    return [(name, route) for name, _, route in admin_addresses()]


def test_the_table_has_every_model_and_page(addresses):
    names = {name for name, _ in addresses}
    for model in site._registry:
        meta = model._meta
        assert f"{meta.app_label}_{meta.model_name}_changelist" in names
    assert len(addresses) > 100


@pytest.mark.row("A-090", "A-391")
def test_who_has_no_role_gets_nothing_of_any_address(addresses, person_client, suspended_admin):
    wrong = []
    for name, route in addresses:
        address = filled(route)
        for method in ("get", "post"):
            nobody = getattr(Client(), method)(address)
            user = getattr(person_client, method)(address)
            gone = getattr(suspended_admin, method)(address)
            if f"admin:{name}" in FREE:
                continue
            turned = [
                each.status_code == 302 and each["Location"].startswith("/sign-in?next=/admin/")
                for each in (nobody, gone)
            ]
            if turned != [True, True] or user.status_code != 404:
                wrong.append((method, address, nobody.status_code, user.status_code))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.fixture
def person_client(person: User) -> Client:
    return signed_in(person)


@pytest.fixture
def suspended_admin(admin: User) -> Client:
    other = User.objects.create_superuser("gone@example.org", "x" * 10)
    client = signed_in(other)
    suspend(user_id=other.id, by=admin.id)
    return client


@pytest.mark.row("A-391", "A-494")
def test_staff_change_nothing_but_by_a_decision(addresses, staff, admin, things):
    """Every address with a real row behind it: staff read and decide, admins do the rest."""
    as_staff = signed_in(staff)
    wrong = []
    for name, route in addresses:
        if f"admin:{name}" in FREE or name in OWN:
            continue
        model = next((key for key in things if name.startswith(f"{key}_")), "")
        address = filled(route.replace("<path:object_id>", things.get(model, str(uuid4()))))
        read, pressed = as_staff.get(address), as_staff.post(address, {"once": uuid4().hex})
        shown = name in READS or name.endswith(("_changelist", "_history"))
        may_press = shown or name in DECISIONS
        if read.status_code >= 500 or pressed.status_code >= 500:
            wrong.append((address, read.status_code, pressed.status_code))
        elif name in DECISIONS and read.status_code != 200:
            wrong.append((address, read.status_code))
        elif not may_press and pressed.status_code not in (302, 403, 404, 405):
            wrong.append((address, pressed.status_code))
        elif not may_press and pressed.status_code == 302 and _leads_on(pressed, address):
            wrong.append((address, pressed["Location"]))
    assert not wrong, "\n".join(map(str, wrong))
    assert not User.objects.exclude(id=admin.id).filter(is_superuser=True).exists()


def _leads_on(answer, address: str) -> bool:
    """Whether a redirect is more than one that corrects an address or turns away."""
    place = answer["Location"]
    moved = {"/admin/usage": "/admin/analytics/usage", "/admin/spend": "/admin/analytics/spend"}
    return place not in ("/admin/", f"{address}/", f"{address}change/", moved.get(address))


@pytest.fixture
def things(person) -> dict[str, str]:
    """A row of each model that has dialogs, by the beginning of its addresses' names."""
    from access.decisions import apply
    from access.invites import invite
    from billing.token_requests import Answers, send_request
    from feedback.models import Note
    from tests.accounts.factory import make_key

    applied = apply(
        email="x@example.org", name="X", organization="Y", planned_usage="Z", answers=[]
    )
    [invited], _ = invite(emails=["bo@example.org"], tokens=0, tag="", by=None)
    asked = send_request(
        user=person,
        answers=Answers(tokens=5, models=["tiny"], project="P", planned_usage="U"),
    )
    return {
        "accounts_user": str(person.id),
        "accounts_apikey": str(make_key(person)[0].id),
        "access_application": str(applied.id),
        "access_invite": str(invited.id),
        "billing_tokenrequest": str(asked.id),
        "feedback_note": str(Note.objects.create(kind="bug", text="x").id),
    }


@pytest.mark.row("A-444")
def test_a_post_of_staff_changes_nobody(staff, person):
    client = signed_in(staff)
    base = f"/admin/accounts/user/{person.id}/"
    for path in ("suspend", "delete-user", "make-admin", "budget", "change", "grant", "remark"):
        answer = client.post(
            base + path + "/", {"once": "x", "tokens": "5", "organization": "Evil"}
        )
        assert answer.status_code == 403, path
    person.refresh_from_db()
    assert person.is_active
    assert not person.is_staff
    assert person.organization == ""
    for action in ("suspend_selected", "delete_selected", "set_allowance_selected"):
        client.post(
            "/admin/accounts/user/",
            {"action": action, "_selected_action": str(person.id), "once": "x"},
        )
    person.refresh_from_db()
    assert person.is_active


@pytest.mark.row("A-391", "A-493")
def test_the_sign_in_of_the_admin_is_the_apps(admin, person):
    assert Client().get("/admin/login/")["Location"] == "/sign-in?next=/admin/"
    assert signed_in(admin).get("/admin/login/")["Location"] == "/admin/"
    assert signed_in(person).get("/admin/login/").status_code == 404
    client = signed_in(admin)
    assert client.get("/admin/logout/").status_code == 405
    assert client.post("/admin/logout/")["Location"] == "/sign-in"
    assert client.get("/admin/").status_code == 302


def test_staff_decide(staff, things):
    client = signed_in(staff)
    one = f"/admin/access/application/{things['access_application']}/reject/"
    assert client.get(one).status_code == 200
    assert client.post(one, {"once": uuid4().hex}).status_code == 302
    two = f"/admin/billing/tokenrequest/{things['billing_tokenrequest']}/approve/"
    assert client.post(two, {"once": uuid4().hex, "tokens": "5"}).status_code == 302
    assert User.objects.filter(is_superuser=True).count() == 0


def test_new_user_has_no_role():
    assert new_user().role == "user"
