"""Usage and Request more tokens in a real browser."""

import re
from datetime import UTC, timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from billing.models import OwnerKind
from billing.owners import register
from billing.token_requests import reject
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import make_user_with, pay, take
from tests.browser.conftest import PageFor


@pytest.mark.row("A-169", "A-171", "A-173", "A-195", "A-170")
def test_days_keys_and_models_are_chosen_and_stay_in_the_address(page_for: PageFor) -> None:
    user = make_user_with(budget=100_000)
    lease = register(OwnerKind.WEB)
    key, _ = make_key(user, "lab")
    pay(take(user, 100, lease, key_id=key.id, model="desk"), lease, 60, 40)
    pay(take(user, 30, lease, model="told"), lease, 30)
    page = page_for(user, "/usage")
    used = page.locator(".facts .big").first
    expect(used).to_have_text("130")
    page.get_by_role("button", name=re.compile(r"–|^\d+ \w+ \d{4}$")).first.press("Enter")
    presets = page.get_by_role("dialog", name="Days").get_by_role("menuitem")
    expect(presets).to_have_text(
        ["Today", "Last 7 days", "Last 30 days", "This month", "Last month"]
    )
    presets.nth(1).click()
    page.wait_for_url(re.compile(r"from=.*&to="))
    today = timezone.now().astimezone(UTC).date()
    page.locator("#days-button").click()
    first, last = page.get_by_label("First day"), page.get_by_label("Last day")
    expect(first).to_have_value(str(today - timedelta(days=6)))
    first.fill(str(today - timedelta(days=366)))
    expect(page.get_by_text("A range has at most 366 days.")).to_be_visible()
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    first.fill(str(today - timedelta(days=365)))
    last.fill(str(today))
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url(re.compile(rf"from={today - timedelta(days=365)}&to={today}$"))
    expect(used).to_have_text("130")
    page.get_by_role("combobox", name="Model").select_option(label="Told Llama")
    page.wait_for_url(re.compile("&model=told$"))
    expect(used).to_have_text("30")
    page.reload()
    expect(used).to_have_text("30")
    page.get_by_role("combobox", name="Model").select_option(label="All models")
    page.get_by_role("link", name="lab").click()
    page.wait_for_url(re.compile(f"key={key.id}"))
    expect(used).to_have_text("100")


@pytest.mark.row("A-175", "A-176", "A-115", "A-116")
def test_the_numbers_come_again_and_stay_when_a_read_fails(page_for: PageFor) -> None:
    user = make_user_with(budget=100_000)
    lease = register(OwnerKind.WEB)
    page = page_for(user, "/jobs")
    page.clock.install()
    page.goto("/usage")
    used = page.locator(".facts .big").first
    expect(used).to_have_text("0")
    expect(page.locator("#updated")).to_have_text(re.compile(r"^Updated \d\d:\d\d:\d\d UTC$"))
    page.get_by_text("View as table").click()
    pay(take(user, 100, lease), lease, 60, 40)
    page.get_by_role("button", name="Refresh").click()
    expect(used).to_have_text("100")
    expect(page.locator("#days-table")).to_be_visible()
    page.route("**/usage/numbers*", lambda route: route.abort())
    page.clock.run_for(61_000)
    expect(page.get_by_text("Could not refresh")).to_be_visible()
    expect(used).to_have_text("100")
    page.unroute("**/usage/numbers*")
    pay(take(user, 5, lease), lease, 5)
    page.clock.run_for(61_000)
    expect(used).to_have_text("105")
    expect(page.get_by_text("Could not refresh")).to_be_hidden()


@pytest.mark.row("A-189", "A-190", "A-191")
def test_the_chart_is_read_by_pointing_and_by_arrow_keys(page_for: PageFor) -> None:
    user = make_user_with(budget=100_000)
    lease = register(OwnerKind.WEB)
    today = timezone.now().astimezone(UTC).date()
    pay(take(user, 100, lease), lease, 60, 40)
    page = page_for(user, f"/usage?from={today - timedelta(days=3)}&to={today}")
    chart = page.get_by_role("group", name="Tokens per day")
    expect(chart.locator("canvas")).to_be_visible()
    said = page.locator("#pointed")
    chart.focus()
    page.keyboard.press("End")
    expect(said).to_have_text(f"{today}: 60 input tokens, 40 output tokens")
    page.keyboard.press("ArrowLeft")
    yesterday = today - timedelta(days=1)
    expect(said).to_have_text(f"{yesterday}: 0 input tokens, 0 output tokens")
    box = chart.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 40)
    expect(said).to_have_text(f"{today}: 60 input tokens, 40 output tokens")
    page.get_by_text("View as table").click()
    expect(page.locator("#days-table tbody tr")).to_have_count(1)


@pytest.mark.row("A-132", "A-211")
def test_a_request_is_sent_and_on_a_phone_its_note_is_under_the_status(page_for: PageFor) -> None:
    user = make_user()
    page = page_for(user, "/usage/request", phone=True)
    page.get_by_label("Tokens").fill("lots")
    page.get_by_label("Project").fill("Norms")
    page.get_by_role("button", name="Send request").click()
    expect(
        page.get_by_text("Write a number of tokens, such as 50K, 2.5M or 2500000.")
    ).to_be_visible()
    expect(page.get_by_label("Project")).to_have_value("Norms")
    page.get_by_label("Tokens").fill("2.5M")
    page.get_by_label("Desk Llama").check()
    page.get_by_label("Planned usage").fill("Many runs")
    page.get_by_role("button", name="Send request").click()
    expect(page.get_by_text("Request sent.")).to_be_visible()
    reject(request_id=user.token_requests.get().id, by=make_user(), note="Ask in May.")
    page.reload()
    status = page.get_by_role("cell", name=re.compile("Rejected"))
    expect(status.get_by_text("Ask in May.")).to_be_visible()
    expect(page.get_by_text("Ask in May.").filter(visible=True)).to_have_count(1)
