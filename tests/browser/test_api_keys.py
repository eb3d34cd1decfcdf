"""API Keys in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from accounts.keys import find_key
from tests.accounts.factory import make_key, make_user
from tests.browser.conftest import PageFor, is_too_wide


@pytest.mark.row("A-142", "A-146", "A-147", "A-148", "A-108")
def test_a_key_is_made_shown_once_and_asks_before_it_is_lost(page_for: PageFor) -> None:
    user = make_user()
    page = page_for(user, "/api-keys", permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog", name="New key")
    dialog.get_by_label("Name").fill("x" * 33)
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_text("A name has at most 32 characters.")).to_be_visible()
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("lab")
    dialog.get_by_role("button", name="Create key").press("Enter")
    shown = page.get_by_role("dialog", name="Copy your key")
    expect(shown.locator("code")).to_have_text(re.compile("^sk-acs-"))
    secret = shown.locator("code").inner_text()
    assert find_key(secret).user_id == user.id
    link = shown.get_by_role("link", name="Set the client for long requests")
    assert link.get_attribute("href").endswith("/docs/retries#set-the-client-for-long-requests")
    assert link.get_attribute("target") == "_blank"
    shown.get_by_role("button", name="Done").click()
    question = page.get_by_role("dialog", name="Close without the key?")
    question.get_by_role("button", name="Back").click()
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.evaluate("setTimeout(() => location.reload())")
    page.wait_for_timeout(300)
    assert asked == ["beforeunload"]
    shown.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_text("Key copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    shown.get_by_role("button", name="Done").click()
    expect(shown).to_be_hidden()
    assert secret not in page.content()
    page.reload()
    expect(page.get_by_role("cell", name=re.compile("^lab"))).to_be_visible()
    assert asked == ["beforeunload"]
    assert secret not in page.content()


@pytest.mark.row("A-108")
def test_a_refused_copy_shows_the_text_selected(page_for: PageFor) -> None:
    page = page_for(make_user(), "/api-keys")
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }"
    )
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("lab")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#secret")).to_have_text(re.compile("^sk-acs-"))
    secret = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy", exact=True).click()
    box = page.get_by_label("Text to copy")
    expect(box).to_have_value(secret)
    assert page.evaluate("getSelection().toString() || document.activeElement.value") == secret
    assert page.evaluate(
        "document.activeElement.selectionEnd - document.activeElement.selectionStart"
    ) == len(secret)


@pytest.mark.row("A-141", "A-156", "A-115", "A-116")
def test_the_table_comes_after_its_head_and_stays_when_a_read_fails(page_for: PageFor) -> None:
    user = make_user()
    make_key(user, "first")
    page = page_for(user, "/jobs")
    page.clock.install()
    waiting = []
    page.route("**/api-keys/table", lambda route: waiting.append(route))
    page.goto("/api-keys")
    page.clock.run_for(100)
    expect(page.locator("tr.ghost")).to_have_count(3)
    expect(page.get_by_role("columnheader", name="This month")).to_be_visible()
    waiting.pop().continue_()
    row = page.get_by_role("row", name=re.compile("first"))
    expect(row).to_be_visible()
    expect(page.locator("tr.ghost")).to_have_count(0)
    expect(page.get_by_role("button", name="New key")).to_be_visible()
    page.unroute("**/api-keys/table")
    page.route("**/api-keys/table", lambda route: route.abort())
    page.clock.run_for(61_000)
    expect(page.get_by_text("Could not refresh.")).to_be_visible()
    expect(row).to_be_visible()
    page.unroute("**/api-keys/table")
    make_key(user, "second")
    page.clock.run_for(61_000)
    expect(page.get_by_role("row", name=re.compile("second"))).to_be_visible()
    expect(page.get_by_text("Could not refresh.")).to_be_hidden()


@pytest.mark.row("A-157", "A-158", "A-162", "A-152")
def test_a_key_is_renamed_paused_and_revoked_by_keyboard(page_for: PageFor) -> None:
    user = make_user()
    key, secret = make_key(user, "first")
    page = page_for(user, "/api-keys")
    open_menu = page.get_by_role("button", name="Menu of")
    open_menu.press("Enter")
    items = page.get_by_role("menuitem")
    expect(items.filter(visible=True)).to_have_text(["Rename", "Pause", "View usage", "Revoke"])
    page.keyboard.press("Enter")
    name = page.get_by_role("dialog", name="Rename key").get_by_label("Name")
    expect(name).to_have_value("first")
    name.fill("W" * 32)
    name.press("Enter")
    cell = page.locator(".key-name .one-line")
    expect(cell).to_have_text("W" * 32)
    assert cell.evaluate("e => e.scrollWidth > e.clientWidth && e.clientHeight < 30")
    open_menu.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="Paused")).to_be_visible()
    assert find_key(secret).paused
    open_menu.press("Enter")
    expect(page.get_by_role("menuitem", name="Resume")).to_be_visible()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    question = page.get_by_role("dialog", name="Revoke this key?")
    question.get_by_role("button", name="Cancel").press("Enter")
    assert not find_key(secret).revoked
    open_menu.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    question.get_by_role("button", name="Revoke key").press("Enter")
    expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    assert find_key(secret).revoked
    assert key.name == "first"


@pytest.mark.row("A-130", "A-131")
def test_on_a_phone_columns_go_and_a_key_stays_in_its_dialog(page_for: PageFor) -> None:
    user = make_user()
    make_key(user, "first")
    page = page_for(user, "/api-keys", phone=True)
    heads = page.get_by_role("columnheader").filter(visible=True)
    expect(heads).to_have_text(["Name", "Status", "This month", "Menu"])
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("second")
    page.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog", name="Copy your key")
    code, dialog = shown.locator("code").bounding_box(), shown.bounding_box()
    assert dialog["x"] <= code["x"]
    assert code["x"] + code["width"] <= dialog["x"] + dialog["width"] <= 390
    assert not is_too_wide(page)
