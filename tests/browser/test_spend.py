"""Models, Analytics and the spend stop in a real browser, as an admin uses them."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from accounts.models import User
from billing import spend_stop
from billing.models import OwnerKind
from billing.owners import register
from operations.models import SpendKind, SpendSample, WarmWindow
from operations.windows import spans_of
from tests.billing.factory import make_user_with, pay, take
from tests.browser.conftest import is_too_wide, serious_faults


@pytest.fixture
def admin(database) -> User:
    return User.objects.create_superuser(f"{uuid4().hex}@example.org")


@pytest.fixture
def used(database) -> None:
    """Two days of Completions, and an hour of a container."""
    lease, user, now = register(OwnerKind.WEB), make_user_with(budget=10**6), timezone.now()
    for ago in (0, 1):
        hold = take(user, 1000, lease, now=now - timedelta(days=ago), model="desk")
        pay(hold, lease, 300, 50, now=now)
    lease.release()
    minute = now.replace(second=0, microsecond=0)
    SpendSample.objects.bulk_create(
        [
            SpendSample(
                minute=minute - timedelta(minutes=n),
                model="desk",
                environment="browser",
                kind=SpendKind.SERVING,
                containers=1,
                price_per_hour=Decimal("36.32"),
            )
            for n in range(60)
        ],
        ignore_conflicts=True,
    )


@pytest.mark.row("A-448", "A-449", "A-451", "A-454", "A-455")
def test_a_window_is_added_with_its_cost_as_it_is_typed_and_removed(page_for, admin) -> None:
    page: Page = page_for(admin, "/admin/models")
    page.get_by_role("row", name="desk").get_by_role("link", name="Add a window").click()
    cost = page.locator("#cost")
    expect(cost).to_have_text("fill in the fields")
    page.get_by_label("Sunday").check()
    page.get_by_label("From").fill("02:30")
    page.get_by_label("To", exact=True).fill("04:00")
    expect(cost).to_have_text(re.compile(r"a week, for 1\.5 hours$"))
    page.get_by_label("Monday").check()
    expect(cost).to_have_text(re.compile(r"a week, for 3 hours$"))
    page.get_by_label("Monday").uncheck()
    page.get_by_label("Time zone").fill("Europe/Prag")
    expect(cost).to_have_text("fill in the fields")
    page.get_by_role("button", name="Save the window").click()
    expect(page.get_by_role("alert")).to_contain_text("There is no such time zone.")
    page.get_by_label("Time zone").fill("Europe/Prague")
    page.get_by_role("button", name="Save the window").click()
    row = page.get_by_role("row", name="Sunday, 02:30 to 04:00 Europe/Prague")
    expect(row).to_be_visible()
    window = WarmWindow.objects.get(made_by=admin)
    # On 29 March 2026 the clock of Prague jumps over 02:30, at 01:00 UTC.
    [span] = spans_of(window, datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC))
    assert (span.start.hour, span.end.hour) == (1, 2)
    row.get_by_role("link", name="Remove").click()
    expect(page.get_by_text("a week.")).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


@pytest.mark.row("A-452", "A-457", "A-482", "A-483")
def test_an_admin_locks_and_clears_from_a_phone(page_for, admin) -> None:
    page: Page = page_for(admin, "/admin/models/desk/warm", phone=True)
    page.get_by_label("Hours").fill("2")
    expect(page.locator("#cost")).to_contain_text("ends by itself")
    page.get_by_role("button", name="Warm now").click()
    floor = page.get_by_role("row", name="desk").first.get_by_role("cell").nth(3)
    expect(floor).to_contain_text("1")
    page.goto("/admin/analytics/spend")
    assert not is_too_wide(page)
    try:
        page.get_by_label("Reason").fill("two in the morning")
        page.get_by_role("button", name="Lock").click()
        expect(page.get_by_text("New GPU work is paused", exact=True).first).to_be_visible()
        assert spend_stop.is_on()
        page.goto("/admin/models")
        expect(floor).to_have_text("0")
        page.goto("/admin/analytics/spend")
        page.get_by_role("button", name="Clear").click()
        expect(page.get_by_text("New GPU work is not paused.")).to_be_visible()
        assert not spend_stop.is_on()
    finally:
        spend_stop.clear(by=None)
        WarmWindow.objects.filter(made_by=admin).update(removed_at=timezone.now())


@pytest.mark.row("A-464", "A-487")
def test_a_chart_is_read_by_the_keyboard_and_its_numbers_come_again(page_for, admin, used) -> None:
    page: Page = page_for(admin, "/admin/analytics/users")
    chart = page.get_by_role("group", name=re.compile("Daily numbers, a chart"))
    told = page.locator(".report-pointed").first
    chart.focus()
    page.keyboard.press("End")
    today = timezone.now().astimezone(UTC).date().isoformat()
    expect(told).to_contain_text(f"{today}: Users who ran")
    page.keyboard.press("Home")
    expect(told).to_contain_text(f"{today[:8]}01: Users who ran")
    page.get_by_text("View as table").first.click()
    expect(page.get_by_role("cell", name=today)).to_be_visible()
    before = page.locator("#read").inner_text()
    page.wait_for_timeout(1100)
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#read")).not_to_have_text(before)
    # What was unfolded stays, and the chart is there again.
    expect(page.get_by_role("cell", name=today)).to_be_visible()
    expect(chart.locator("canvas")).to_have_count(1)
    page.context.set_offline(True)
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("Could not refresh")).to_be_visible()
    expect(page.get_by_role("cell", name=today)).to_be_visible()
    page.context.set_offline(False)
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("Could not refresh")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_reports_can_be_read_by_everybody(page_for, admin, used, scheme) -> None:
    page: Page = page_for(admin, "/admin/analytics/spend", color_scheme=scheme)
    for path in ("analytics/spend", "analytics/platform", "models", "models/desk/window"):
        page.goto(f"/admin/{path}")
        page.locator(".report").wait_for()
        assert not serious_faults(page), path
        assert not is_too_wide(page), path
