"""The admin in a real browser: menus, dialogs, boxes, words to type (A-406 to A-440)."""

from uuid import uuid4

import pytest
from django.contrib.sessions.backends.db import SessionStore
from playwright.sync_api import Page, expect

from access.decisions import Terms, apply, approve
from accounts.models import User
from accounts.tags import add_tag
from billing.allowance import tokens_left
from billing.models import TokenRequest
from billing.token_requests import Answers, send_request
from feedback.models import Note
from tests.accounts.factory import make_user
from tests.accounts.sessions import set_back
from tests.browser.conftest import PageFor, is_too_wide, serious_faults

PASSWORD = "a difference engine"
USERS = "/admin/accounts/user/"


@pytest.fixture
def admin(database: None) -> User:
    return User.objects.create_superuser(f"root-{uuid4().hex[:8]}@example.org", PASSWORD)


def menu_of(page: Page, text: str, item: str) -> None:
    """Choose from the menu of the row with a text, with the keyboard."""
    row = page.get_by_role("row").filter(has_text=text)
    row.get_by_role("button", name="More actions").press("Enter")
    page.get_by_role("menuitem", name=item, exact=True).press("Enter")


def tagged(count: int, admin: User) -> tuple[str, list[User]]:
    """Some Users whom a filter shows alone."""
    tag = f"t{uuid4().hex[:10]}"
    users = [make_user(f"{tag}-{index}@example.org") for index in range(count)]
    add_tag(user_ids=[user.id for user in users], name=tag, by=admin.id)
    return tag, users


@pytest.mark.row("A-417")
def test_a_rows_menu_opens_the_dialogs(page_for: PageFor, admin: User) -> None:
    user = make_user(f"row-{uuid4().hex[:8]}@example.org")
    page = page_for(admin, f"{USERS}?q={user.email}")
    row = page.get_by_role("row").filter(has_text=user.email)
    row.get_by_role("button", name="More actions").click()
    items = page.get_by_role("menu").get_by_role("menuitem")
    expect(items).to_have_text(
        [
            "Grant tokens",
            "Set the Budget",
            "Set the monthly allowance",
            "Add tag",
            "Suspend",
            "Make admin",
            "Make staff",
            "Delete",
        ]
    )
    page.keyboard.press("Escape")
    expect(items.first).to_be_hidden()
    menu_of(page, user.email, "Grant tokens")
    page.get_by_role("textbox", name="Tokens").fill("50K")
    page.get_by_role("button", name="Grant tokens").click()
    expect(
        page.get_by_text(f"50,000 tokens were added to the Budget of {user.email}.")
    ).to_be_visible()
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 50_000


@pytest.mark.row("A-425", "A-427", "A-428", "A-432")
def test_the_headers_box_selects_every_row_and_a_delete_wants_its_words(
    page_for: PageFor, admin: User
) -> None:
    tag, users = tagged(53, admin)
    page = page_for(admin, f"{USERS}?tag={tag}")
    [cookie] = [each for each in page.context.cookies() if each["name"] == "sessionid"]
    set_back(SessionStore(cookie["value"]), 3600)
    page.locator("#action-toggle").click()
    expect(page.get_by_text("All 53 selected")).to_be_visible()
    chooser = page.locator("select[name=action]")
    assert [text.strip() for text in chooser.locator("option").all_inner_texts()] == [
        "Selected Users",
        "Suspend",
        "Restore",
        "Add tag",
        "Remove tag",
        "Set allowance",
        "Delete",
    ]
    chooser.select_option(label="Delete")
    page.get_by_role("button", name="Run").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("53 Users will be deleted. 0 Users are left out.")).to_be_visible()
    button = dialog.get_by_role("button", name="Delete")
    expect(button).to_be_disabled()
    words = dialog.get_by_label("Type delete 53 Users")
    words.fill("delete 5 Users")
    expect(button).to_be_disabled()
    words.fill("delete 53 Users")
    dialog.get_by_label("Your password").fill(PASSWORD)
    expect(button).to_be_enabled()
    assert serious_faults(page) == []
    button.click()
    expect(page.get_by_text("53 Users were deleted.")).to_be_visible()
    ids = [user.id for user in users]
    assert User.objects.filter(id__in=ids, deleted_at__isnull=False).count() == 53


@pytest.mark.row("A-406", "A-407", "A-409")
def test_requests_for_tokens_are_read_and_decided(page_for: PageFor, admin: User) -> None:
    users = [make_user(f"asks-{uuid4().hex[:8]}@example.org") for _ in range(2)]
    answers = Answers(tokens=50_000, models=["desk"], project="Probes", planned_usage="Sweep")
    for user in users:
        send_request(user=user, answers=answers)
    page = page_for(admin, f"/admin/billing/tokenrequest/?q={users[0].email}")
    menu_of(page, users[0].email, "Read the request")
    expect(page.get_by_text("How you got the number")).to_be_visible()
    expect(page.get_by_text("Not answered").first).to_be_visible()
    page.goto(f"/admin/billing/tokenrequest/?q={users[0].email}")
    menu_of(page, users[0].email, "Approve")
    expect(page.get_by_label("Tokens to grant")).to_have_value("50K")
    page.get_by_role("button", name="Approve").dblclick()
    expect(page.get_by_text("Approved").first).to_be_visible()
    assert tokens_left(user_id=users[0].id, key_id=None).budget_left == 50_000
    page.goto(f"/admin/billing/tokenrequest/?q={users[1].email}")
    menu_of(page, users[1].email, "Reject")
    page.get_by_label("Note to them").fill("Say which Layers.")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_text("is rejected.")).to_be_visible()
    assert TokenRequest.objects.get(user=users[1]).note == "Say which Layers."


@pytest.mark.row("A-438", "A-439")
def test_the_page_of_a_user_has_the_rows_actions_and_copies_the_id(
    page_for: PageFor, admin: User
) -> None:
    user = make_user(f"page-{uuid4().hex[:8]}@example.org")
    page = page_for(
        admin, f"{USERS}{user.id}/change/", permissions=["clipboard-read", "clipboard-write"]
    )
    page.get_by_role("button", name="Copy User id").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == str(user.id)
    page.locator("summary", has_text="Actions").click()
    page.get_by_role("link", name="Suspend").click()
    page.get_by_role("button", name="Suspend").click()
    expect(page.get_by_text(f"{user.email} is suspended.")).to_be_visible()
    user.refresh_from_db()
    assert not user.is_active


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_of_the_admin_have_no_serious_fault(
    page_for: PageFor, admin: User, colours: str
) -> None:
    made = apply(
        email=f"{uuid4().hex[:8]}@example.org",
        name="Ada",
        organization="Society",
        planned_usage="Norms",
        answers=[("Role", "")],
    )
    assert made is not None
    user = approve(application_id=made.id, terms=Terms(tokens=5), by=admin.id)
    note = Note.objects.create(kind="bug", text="It flickers", user=user)
    wide = page_for(admin, "/admin/", color_scheme=colours)
    phone = page_for(admin, "/admin/", phone=True, color_scheme=colours)
    for page in (wide, phone):
        for path in (
            USERS,
            f"{USERS}{user.id}/change/",
            f"{USERS}{user.id}/grant/",
            "/admin/access/application/",
            "/admin/access/invite/add/",
            f"/admin/feedback/note/{note.id}/change/",
        ):
            page.goto(path)
            faults = serious_faults(page)
            assert not faults, "\n".join([path, *faults])
            assert not is_too_wide(page), path
