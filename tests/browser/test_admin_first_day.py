"""The first day of an admin, from their first sign-in to a pause at night from a phone."""

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from access.decisions import apply
from access.models import Invite
from accounts.models import AdminAction, Mail, User
from billing import spend_stop
from billing.allowance import tokens_left
from operations.models import WarmWindow
from operations.windows import spans_of
from tests.browser.conftest import PageFor, serious_faults
from tests.browser.test_access import PASSWORD
from tests.browser.test_admin import menu_of

USERS = "/admin/accounts/user/"


@pytest.mark.row("A-389", "A-395", "A-400", "A-401", "A-419", "A-424", "A-455", "A-483", "A-493")
def test_the_first_day_of_an_admin(page_for: PageFor, database: None) -> None:
    admin = User.objects.create_superuser(f"root-{uuid4().hex[:8]}@example.org", PASSWORD)
    mark = uuid4().hex[:8]
    emails = [f"{who}-{mark}@example.org" for who in ("ada", "bo", "cy")]
    apply(email=emails[0], name="Ada", organization="Society", planned_usage="Norms", answers=[])
    page: Page = page_for(None, "/admin/")

    # The first sign-in leads on to the admin.
    page.get_by_label("Email").fill(admin.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(re.compile("/admin/$"))

    # Approve, with tokens in the same step.
    page.goto(f"/admin/access/application/?q={emails[0]}")
    menu_of(page, emails[0], "Approve")
    page.get_by_label("Tokens to grant").fill("20K")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text(f"{emails[0]} has access")).to_be_visible()
    user = User.objects.get(email=emails[0])
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 20_000
    assert Mail.objects.filter(to=emails[0], kind="approval").count() == 1

    # Invite two, with a tag that is brought to its form as it is typed.
    page.goto("/admin/access/invite/add/")
    page.get_by_label("Emails").fill("\n".join(emails[1:]))
    page.get_by_label("Tag").press_sequentially(f"Hiring {mark}")
    expect(page.get_by_label("Tag")).to_have_value(f"hiring-{mark}")
    page.get_by_role("button", name="Send the Invites").click()
    expect(page.get_by_text("2 Invites are on the way.")).to_be_visible()
    tags = Invite.objects.filter(email__in=emails[1:]).values_list("tag", flat=True)
    assert list(tags) == [f"hiring-{mark}"] * 2

    # Grant, from the row of the User.
    page.goto(f"{USERS}?q={emails[0]}")
    menu_of(page, emails[0], "Grant tokens")
    page.get_by_role("textbox", name="Tokens").fill("30K")
    page.get_by_role("button", name="Grant tokens").click()
    expect(page.get_by_text("30,000 tokens were added")).to_be_visible()
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 50_000

    # Tag many.
    for email in emails[1:]:
        User.objects.create_user(email)
    page.goto(f"{USERS}?q={mark}")
    page.locator("#action-toggle").click()
    page.locator("select[name=action]").select_option(label="Add tag")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("3 Users will be given the tag.")).to_be_visible()
    page.get_by_role("textbox", name="Tag").fill(f"day-{mark}")
    page.get_by_role("button", name="Add tag").click()
    expect(page.get_by_text("3 Users were given the tag")).to_be_visible()
    assert User.objects.filter(user_tags__tag__name=f"day-{mark}").count() == 3

    try:
        window_over_a_change_of_the_clock(page, admin)
        lock_and_clear(page_for(admin, "/admin/analytics/spend", phone=True))
    finally:
        spend_stop.clear(by=None)
        WarmWindow.objects.filter(made_by=admin).update(removed_at=timezone.now())
    assert set(AdminAction.objects.filter(by=admin).values_list("action", flat=True)) == {
        "Approve", "Approved", "Invite", "Grant tokens", "Add tag", "Add a window", "Lock", "Clear",
    }  # fmt: skip


def window_over_a_change_of_the_clock(page: Page, admin: User) -> None:
    """Keep a model warm for a class at nine, before and after the clock is put back."""
    page.goto("/admin/models")
    page.get_by_role("row", name="desk").get_by_role("link", name="Add a window").click()
    for day in ("Saturday", "Monday"):
        page.get_by_label(day).check()
    page.get_by_label("From").fill("08:15")
    page.get_by_label("To", exact=True).fill("10:00")
    page.get_by_label("Time zone").fill("Europe/Prague")
    expect(page.locator("#cost")).to_contain_text("a week, for 3.5 hours")
    assert serious_faults(page) == []
    page.get_by_role("button", name="Save the window").click()
    expect(page.get_by_role("row", name="Monday, Saturday, 08:15 to 10:00")).to_be_visible()
    window = WarmWindow.objects.get(made_by=admin)
    # On 25 October 2026 the clock of Prague is put back, from two hours before UTC to one.
    spans = spans_of(window, datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC))
    assert [(span.start.hour, span.start.minute) for span in spans] == [(6, 15), (7, 15)]
    assert {span.hours * 60 for span in spans} == {105}


def lock_and_clear(phone: Page) -> None:
    """Stop the spending at night, and lift the pause in the morning."""
    phone.get_by_label("Reason").fill("two in the morning")
    phone.get_by_role("button", name="Lock").click()
    expect(phone.get_by_text("New GPU work is paused", exact=True).first).to_be_visible()
    assert spend_stop.is_on()
    phone.get_by_role("button", name="Clear").click()
    expect(phone.get_by_text("New GPU work is not paused.")).to_be_visible()
    assert not spend_stop.is_on()
