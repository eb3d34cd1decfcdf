"""Every address of the admin against everybody: a table made from the addresses themselves."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from django.contrib.admin import site
from django.db.models import Model
from django.test import Client

from accounts.models import User
from accounts.people import suspend
from tests.administration import permissions
from tests.administration.conftest import new_user, signed_in
from tests.administration.permissions import Line
from tests.administration.things import SECRET, rows_of

pytestmark = pytest.mark.django_db

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "permissions.md"
WRITE = "WRITE_PERMISSIONS"
"""Set: the document is written anew, instead of compared."""

FREE = {"login", "jsi18n"}
"""Addresses that tell nothing: the way to the sign-in, and words of scripts."""

OWN = {"logout", "password_change", "password_change_done"}
"""Addresses about one's own sign-in."""

DECISIONS = {
    "access_application_approve",
    "access_application_reject",
    "access_application_send_again",
    "billing_tokenrequest_approve",
    "billing_tokenrequest_reject",
}
"""Dialogs of staff: whoever has a role decides."""


@pytest.fixture
def rows(person: User, tiny_catalogue) -> Mapping[str, Model]:
    return rows_of(person)


@pytest.fixture(autouse=True)
def quick_pages(monkeypatch) -> None:
    """No copy of every template's context, which Django's client keeps and nobody reads here."""
    monkeypatch.setattr("django.test.client.store_rendered_templates", lambda *_, **__: None)


@pytest.fixture
def table(rows, admin, staff) -> list[Line]:
    clients = {
        "anonymous": Client(),
        "User": signed_in(new_user()),
        "staff": signed_in(staff),
        "admin": signed_in(admin),
    }
    return permissions.lines(rows, clients)


@pytest.mark.row("A-090", "A-391", "A-392", "A-494")
def test_the_table_of_permissions_is_that_of_the_addresses(table, rows):
    """`WRITE_PERMISSIONS=1 pytest tests/administration/test_permissions.py` writes it anew.

    What must hold whatever the document says is asked beside: nobody without a role gets anything
    of any address, staff change nothing but by a decision, and nothing answers with a fault.
    """
    wrong = [str(line) for line in table if not _holds(line)]
    assert not wrong, "\n".join(wrong)
    names = {line.address.name for line in table}
    for model in site._registry:
        label = model._meta.label_lower
        assert f"{label.replace('.', '_')}_changelist" in names
        assert label in rows, f"{label} needs a row in things.rows_of"
    if os.environ.get(WRITE):
        DOCUMENT.write_text(permissions.page(table))
    assert DOCUMENT.read_text() == permissions.page(table)


def _holds(line: Line) -> bool:
    name, (nobody, user, staff, admin) = line.address.name, line.gets
    if name in FREE:
        return "done" not in line.gets
    if any(word[0].isdigit() or "," in word for word in line.gets):
        return False
    by_staff = staff != "done" or name in DECISIONS
    return nobody == "sign in" and user == "none" and by_staff and admin != "sign in"


@pytest.mark.row("A-391")
def test_a_suspended_admin_gets_nothing_of_any_address(rows, admin):
    other = User.objects.create_superuser("gone@example.org", "x" * 10)
    client = signed_in(other)
    suspend(user_id=other.id, by=admin.id)
    wrong = [
        (method, address.path)
        for address in permissions.addresses(rows)
        if address.name not in FREE
        for method in address.methods
        if permissions.ask(client, address, method, rows) != "sign in"
    ]
    assert not wrong


@pytest.mark.row("A-444")
def test_no_page_of_the_admin_shows_a_prompt_a_text_or_a_title_of_a_user(rows, admin, person):
    client = signed_in(admin)
    for address in permissions.addresses(rows):
        if address.name in OWN or address.name == "feedback_screenshot":
            continue
        answer = client.get(address.path)
        assert SECRET not in answer.content.decode(), address.path
    for label in ("jobs.job", "jobs.run", "harvests.harvest", "looms.loom", "looms.node"):
        listed = f"/admin/{label.replace('.', '/')}/"
        for query in (rows[label].pk, person.email, "", "\0", "nothing"):
            page = client.get(listed, {"q": query}).content.decode()
            assert SECRET not in page
            assert (f"{listed}{rows[label].pk}/change/" in page) is _finds(label, query, rows)


def _finds(label: str, query: object, rows: Mapping[str, Model]) -> bool:
    """Whether a list finds the row: by its id, its User's email, or as work that is under way."""
    if query == rows[label].pk:
        return True
    if "@" in str(query):
        return label != "looms.node"
    return query in ("", "\0") and label in ("jobs.job", "jobs.run", "harvests.harvest")


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


def test_staff_decide(staff, rows):
    client = signed_in(staff)
    one = f"/admin/access/application/{rows['access.application'].pk}/reject/"
    assert client.get(one).status_code == 200
    assert client.post(one, {"once": uuid4().hex}).status_code == 302
    two = f"/admin/billing/tokenrequest/{rows['billing.tokenrequest'].pk}/approve/"
    assert client.post(two, {"once": uuid4().hex, "tokens": "5"}).status_code == 302
    assert User.objects.filter(is_superuser=True).count() == 0


def test_new_user_has_no_role():
    assert new_user().role == "user"
