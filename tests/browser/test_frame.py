"""The frame around every page, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from billing.models import OwnerKind
from billing.owners import register
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import make_user_with, pay, take
from tests.browser.conftest import PageFor, is_too_wide, serious_faults

PAGES = ["/usage", "/usage/request", "/jobs", "/api-keys"]


@pytest.mark.row("A-099", "A-110", "A-100")
def test_the_navigation_closes_by_keyboard_and_stays_closed(page_for: PageFor) -> None:
    page = page_for(make_user(), "/jobs")
    nav = page.get_by_role("navigation", name="App")
    expect(nav).to_be_visible()
    page.keyboard.press("Control+b")
    expect(nav).to_be_hidden()
    page.goto("/usage")
    expect(nav).to_be_hidden()
    page.reload()
    expect(nav).to_be_hidden()
    page.keyboard.press("Meta+b")
    expect(nav).to_be_visible()
    page.get_by_role("button", name="Navigation").click()
    expect(nav).to_be_hidden()


@pytest.mark.row("A-093", "A-094", "A-096", "A-097")
def test_support_is_a_menu_that_arrows_move_in(page_for: PageFor) -> None:
    page = page_for(make_user(), "/jobs")
    page.get_by_role("button", name="Support").press("Enter")
    items = page.get_by_role("menu", name="Support").get_by_role("menuitem")
    expect(items).to_have_text(["Email", "Feedback", "Help"])
    expect(items.nth(0)).to_be_focused()
    assert items.nth(0).get_attribute("href").startswith("mailto:")
    assert items.nth(0).get_attribute("target") is None
    page.keyboard.press("ArrowDown")
    expect(items.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(items.nth(2)).to_be_focused()
    assert items.nth(2).get_attribute("href").endswith("/docs/support")
    page.keyboard.press("Escape")
    expect(items.nth(0)).to_be_hidden()
    expect(page.get_by_role("button", name="Support")).to_be_focused()


@pytest.mark.row("A-105", "A-106")
def test_a_closed_notice_stays_closed_until_nothing_is_left(page_for: PageFor) -> None:
    user = make_user_with(allowance=1_000)
    lease = register(OwnerKind.WEB)
    pay(take(user, 950, lease), lease, 950)
    page = page_for(user, "/jobs")
    notice = page.get_by_text("You have 50 tokens left.")
    expect(notice).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(notice).to_be_hidden()
    page.goto("/usage")
    expect(notice).to_be_hidden()
    pay(take(user, 50, lease), lease, 50)
    page.reload()
    expect(page.get_by_text("You have no tokens left.")).to_be_visible()


@pytest.mark.row("A-072")
def test_with_an_ended_session_a_press_leads_to_the_sign_in(page_for: PageFor) -> None:
    user = make_user()
    make_key(user, "first")
    page = page_for(user, "/api-keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("second")
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("button", name="Create key").click()
    page.wait_for_url(re.compile(r"/sign-in\?next=%2Fapi-keys$"))


@pytest.mark.row("A-128")
def test_the_page_keeps_the_last_errors_with_their_request_ids(page_for: PageFor) -> None:
    user = make_user()
    make_key(user, "first")
    page = page_for(user, "/api-keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("FIRST")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_text("One of your API keys has this name already.")).to_be_visible()
    [error] = page.evaluate("JSON.parse(sessionStorage.getItem('errors'))")
    assert error["requestId"].startswith("req_")
    assert "409" in error["what"]
    assert error["path"] == "/api-keys"


def test_offline_is_said_on_the_page(page_for: PageFor) -> None:
    page = page_for(make_user(), "/jobs")
    page.context.set_offline(True)
    expect(page.get_by_text("You are offline.")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_text("You are offline.")).to_be_hidden()


@pytest.mark.row("A-133")
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_page_has_no_serious_fault_and_fits_a_phone(
    page_for: PageFor, path: str, colours: str
) -> None:
    user = make_user_with(allowance=1_000)
    lease = register(OwnerKind.WEB)
    key, _ = make_key(user, "a key with a rather long name")
    pay(take(user, 950, lease, key_id=key.id), lease, 950)
    for phone in (False, True):
        page = page_for(user, path, phone=phone, color_scheme=colours)
        page.wait_for_load_state("networkidle")
        assert serious_faults(page) == []
        assert not is_too_wide(page)
    page.get_by_role("button", name="Navigation").click()
    expect(page.get_by_role("link", name="Playground", exact=True)).to_be_visible()
    assert serious_faults(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Playground", exact=True)).to_be_hidden()
