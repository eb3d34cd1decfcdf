"""Compare in a real browser: several models side by side."""

import re
from datetime import date

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from billing.allowance import BudgetExceeded, Short
from completions.failures import budget_exceeded
from completions.kept_failures import stored
from jobs.models import Run
from tests.billing.factory import make_user_with
from tests.browser.conftest import PageFor
from tests.browser.test_playground import press_run, prompt_of, ran, setting

pytestmark = pytest.mark.usefixtures("runner", "engine")


def columns(page: Page):
    return page.locator("#columns > li")


@pytest.fixture
def rich():
    return make_user_with(budget=1_000_000)


@pytest.mark.row("A-262", "A-263", "A-264", "A-265", "A-266", "A-267", "A-268", "A-274", "A-288")
def test_models_are_compared_side_by_side_and_restored(page_for: PageFor, rich) -> None:
    page = page_for(rich, "/playground?m=model%3Ddesk%26max_tokens%3D5%26temperature%3D0")
    prompt_of(page).fill("A bell")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(columns(page)).to_have_count(2)
    expect(page.get_by_role("heading", name="Models")).to_be_visible()
    page.get_by_role("button", name="Settings of model 2").click()
    expect(setting(page, "temperature")).to_have_value("0")
    setting(page, "max_tokens").fill("3")
    page.get_by_role("button", name="Settings of model 1").click()
    expect(setting(page, "max_tokens")).to_have_value("5")
    for _ in range(3):
        page.get_by_role("button", name="Add model").click()
    page.get_by_role("button", name="Duplicate model 2").click()
    expect(columns(page)).to_have_count(6)
    expect(page.get_by_role("button", name="Add model")).to_be_disabled()
    for _ in range(4):
        page.get_by_role("button", name="Remove model 6").or_(
            page.get_by_role("button", name=re.compile("Remove model [543]"))
        ).last.click()
    expect(columns(page)).to_have_count(2)
    assert "view=compare" in page.url
    page.get_by_role("button", name=re.compile("^Run all")).click()
    ran(page, 2)
    expect(page.locator(".run .facts").nth(0)).to_contain_text("max tokens 5")
    expect(page.locator(".run .facts").nth(1)).to_contain_text("max tokens 3")
    expect(page.locator(".run .ending").nth(1)).to_contain_text("the first 3 tokens match Run 1")
    expect(page.locator("#runs .group")).to_contain_text("Comparison of runs 1 and 2")
    page.get_by_role("button", name="Single", exact=True).click()
    prompt_of(page).fill("Another")
    page.get_by_role("button", name="Restore").click()
    expect(columns(page)).to_have_count(2)
    expect(prompt_of(page)).to_have_value("A bell")
    ran(page, 2)
    assert Run.objects.of(rich.id).count() == 2


@pytest.mark.row("A-269", "A-290", "A-266")
def test_one_that_cannot_start_says_why_beside_the_others(page_for: PageFor, told) -> None:
    user = make_user_with(budget=60)
    page = page_for(
        user,
        "/playground?view=compare&m=model%3Dtold%26max_tokens%3D4&m=model%3Dtold%26max_tokens%3D400",
    )
    prompt_of(page).fill("A bell")
    press_run(page)
    expect(page.locator(".run")).to_have_count(2)
    expect(page.locator(".run").nth(1)).to_contain_text("This request can use up to")
    asked = told.next()
    asked.say(" rings")
    expect(page.locator(".own")).to_have_text(" rings")
    page.get_by_role("button", name="Stop all").click()
    expect(page.locator("#runs").get_by_text("Stopped")).to_be_visible()
    assert asked.aborted.wait(10)


@pytest.mark.row("A-277", "A-289", "A-290")
def test_chosen_runs_are_compared_and_restore_waits_for_running_ones(
    page_for: PageFor, rich, told
) -> None:
    page = page_for(
        rich, "/playground?view=compare&m=model%3Dtold%26seed%3D3&m=model%3Dtold%26top_k%3D5"
    )
    prompt_of(page).fill("A bell")
    press_run(page)
    first, second = told.next(), told.next()
    expect(page.get_by_role("button", name="Restore")).to_be_disabled()
    for asked in (first, second):
        asked.say(" rings", finish="stop")
        asked.finish()
    ran(page, 2)
    expect(page.get_by_role("button", name="Restore")).to_be_enabled()
    page.get_by_role("button", name="Show Run 2").click()
    expect(page.locator(".run")).to_have_count(1)
    compare = page.locator("#compare-runs")
    page.get_by_label("Choose Run 1").check()
    expect(compare).to_be_disabled()
    page.get_by_label("Choose Run 2").check()
    expect(compare).to_have_text("Compare 2 runs")
    compare.click()
    expect(page.locator(".run")).to_have_count(2)
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("button", name="Settings of model 1").click()
    expect(setting(page, "seed")).to_have_value("3")
    page.get_by_role("button", name="Settings of model 2").click()
    expect(setting(page, "top_k")).to_have_value("5")
    assert Run.objects.of(rich.id).count() == 2


@pytest.mark.row("A-253", "A-575")
def test_failed_runs_name_no_address_and_each_menu_opens_beside_its_own_button(
    page_for: PageFor, rich
) -> None:
    cause = BudgetExceeded(tokens=900, short=Short.BUDGET, refills_on=date(2026, 12, 1))
    error = stored(budget_exceeded(cause, 900))
    now = timezone.now()
    for number in range(1, 6):
        Run.objects.create(
            user=rich,
            number=number,
            model="desk",
            state="failed",
            created_at=now,
            finished_at=now,
            error=error,
            settings={"max_tokens": 4},
            body=b'{"model": "desk", "prompt": "A bell", "max_tokens": 4}',
        )
    page = page_for(rich, "/playground")
    expect(page.locator(".run .fault")).to_have_text(
        "This request can use up to 900 tokens, more than your token budget has left. "
        "Request more tokens Nothing was charged."
    )
    expect(page.locator("#runs td.run-text")).to_have_text(
        ["This request can use up to 900 tokens, more than your token budget has left."] * 5
    )
    menu = page.locator("#run-menu")
    for number in (5, 1):
        button = page.get_by_role("button", name=f"Menu of Run {number}")
        button.click()
        expect(menu).to_be_visible()
        beside, at = button.bounding_box(), menu.bounding_box()
        below = abs(at["y"] - (beside["y"] + beside["height"]))
        above = abs(at["y"] + at["height"] - beside["y"])
        assert min(below, above) <= 8, (number, beside, at)
        page.keyboard.press("Escape")
        expect(menu).to_be_hidden()
