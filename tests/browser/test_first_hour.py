"""The first hour of a researcher who is new: from the form to numbers of what was used."""

import re
import subprocess
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from access.decisions import Terms, approve
from access.models import Application
from accounts.models import User
from billing.grants import grant
from looms.models import Loom, Node
from tests.browser.conftest import Desk, PageFor, serious_faults
from tests.browser.test_access import PASSWORD, mails, sign_in_by_hand
from tests.live import eventually

__all__ = ["mails"]


@pytest.mark.row("A-236", "A-313", "A-327", "A-168")
def test_a_new_researcher_gets_from_the_form_to_their_usage(
    page_for: PageFor, desk: Desk, runner, engine, mails
) -> None:
    email = f"new-{uuid4().hex[:8]}@example.org"
    page = page_for(None, "/apply", permissions=["clipboard-read", "clipboard-write"])
    for label in ("Email", "Name", "Organization", "Planned usage"):
        page.get_by_label(label, exact=True).fill(email if label == "Email" else f"My {label}")
    page.get_by_label("I agree to these rules.").check()
    page.get_by_role("button", name="Apply for access").click()
    expect(page.get_by_role("heading", name="Application received")).to_be_visible()
    approve(application_id=Application.objects.get(email=email).id, terms=Terms(), by=None)
    page.goto(mails(email, desk))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Set the password").click()
    page.get_by_role("link", name="Sign in").click()
    user = User.objects.get(email=email)
    grant(user_id=user.id, tokens=10_000, by=None)
    sign_in_by_hand(page, user)

    # A key, and curl with it.
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("first")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#secret")).to_contain_text("sk-acs-")
    secret = page.locator("#secret").inner_text()
    page.get_by_role("button", name="Copy", exact=True).click()
    page.get_by_role("button", name="Done").click()
    body = '{"model": "desk", "prompt": "The sky is", "max_tokens": 4}'
    headers = ("-H", f"Authorization: Bearer {secret}", "-H", "Content-Type: application/json")
    curl = ["curl", "-sf", f"{desk.address}/v1/completions", *headers, "-d", body]
    answer = subprocess.run(curl, capture_output=True, check=True, timeout=60).stdout
    assert b'"text_completion"' in answer

    # A Run, and a Loom of it.
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("textbox", name="Prompt").fill("The sky is")
    run = page.get_by_role("button", name=re.compile("^Run"))
    expect(run).to_be_enabled()
    page.locator("#max_tokens").fill("5")
    run.click()
    into = page.locator(".run").get_by_role("button", name="Open in Loom")
    expect(into).to_be_visible(timeout=60_000)
    into.click()
    page.wait_for_url(re.compile("/loom/[0-9a-f-]{36}"))
    loom = Loom.objects.get(user=user)
    page.get_by_label("Branches").fill("2")
    page.get_by_label("Max tokens").fill("4")
    page.keyboard.press("Escape")
    page.get_by_role("button", name=re.compile("^Branch")).click()
    grown = Node.objects.filter(loom=loom, status="completed").exclude(options=None)
    eventually(lambda: grown.count() >= 2, 60)
    page.get_by_role("treeitem").last.click()
    assert serious_faults(page) == []

    # What it cost.
    page.get_by_role("link", name="Usage").click()
    for source in ("API", "Playground", "Loom"):
        expect(page.get_by_text(source, exact=True).first).to_be_visible()
    assert page.get_by_role("cell", name="desk").or_(page.get_by_text("Desk Llama")).count() > 0
