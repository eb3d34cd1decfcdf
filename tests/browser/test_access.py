"""The first steps of a person, the sign-in, and feedback, in a real browser."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.core.mail.backends.locmem import EmailBackend
from PIL import Image
from playwright.sync_api import Page, expect

from access.decisions import Terms, apply, approve
from accounts import mail as outbox
from accounts.links import answer_asks
from accounts.mail import SecretLink, send_waiting
from accounts.models import Mail, User
from feedback.models import Note
from inference import valkey
from tests.accounts.factory import make_key, make_user
from tests.browser.conftest import Desk, PageFor, is_too_wide, serious_faults

PASSWORD = "a difference engine"
DOORS = ["/sign-in", "/apply", "/forgot-password", "/set-password", "/invited"]


@pytest.fixture(autouse=True)
def fresh_limits() -> Iterator[None]:
    yield
    for name in valkey.connection().scan_iter(f"{valkey.PREFIX}rate:*"):
        valkey.connection().delete(name)


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch):
    """Sends what waits; returns the address in the newest mail to somebody, at the desk.

    A runner beside the desk may have sent it before, so the address is that of the mail's row.
    """
    monkeypatch.setattr(outbox, "MailBackend", EmailBackend)

    def newest(email: str, desk: Desk) -> str:
        answer_asks()
        send_waiting()
        mail = Mail.objects.filter(to=email).exclude(link="").latest("created_at")
        path, kind, row_id = mail.link.split(" ")
        address = SecretLink(path, kind, UUID(row_id)).address
        return address.replace(settings.BASALT.app_address, desk.address)

    return newest


def with_password(email: str = "") -> User:
    return User.objects.create_user(email or f"{uuid4().hex[:8]}@example.org", PASSWORD, name="Ada")


def sign_in_by_hand(page: Page, user: User, password: str = PASSWORD) -> None:
    page.get_by_label("Email").fill(user.email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_a_person_applies_gets_a_password_and_a_first_key(
    page_for: PageFor, desk: Desk, mails
) -> None:
    email = f"new-{uuid4().hex[:8]}@example.org"
    page = page_for(None, "/apply")
    for label, text in (
        ("Email", email),
        ("Name", "Nu"),
        ("Organization", "Lab"),
        ("Planned usage", "Norms of the residual stream"),
    ):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_role("button", name="Apply for access").click()
    expect(page.get_by_text("Tick the box to agree to the rules.")).to_be_visible()
    expect(page.get_by_label("Planned usage")).to_have_value("Norms of the residual stream")
    page.get_by_label("I agree to these rules.").check()
    page.get_by_role("button", name="Apply for access").click()
    expect(page.get_by_role("heading", name="Application received")).to_be_visible()
    from access.models import Application

    approve(application_id=Application.objects.get(email=email).id, terms=Terms(), by=None)
    page.goto(mails(email, desk))
    expect(page).to_have_url(f"{desk.address}/set-password")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Set the password").click()
    page.get_by_role("link", name="Sign in").click()
    sign_in_by_hand(page, User.objects.get(email=email))
    expect(page).to_have_url(f"{desk.address}/api-keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill("first")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_text("sk-acs-").first).to_be_visible()


@pytest.mark.row("A-043", "A-042")
def test_the_refusal_of_too_many_tries_keeps_the_email(page_for: PageFor) -> None:
    user = with_password()
    page = page_for(None, "/sign-in")
    for _ in range(5):
        sign_in_by_hand(page, user, "wrong password")
        expect(page.get_by_text("The email or the password is wrong.")).to_be_visible()
    sign_in_by_hand(page, user)
    expect(
        page.get_by_text(re.compile(r"Too many tries to sign in\. Wait \d+ seconds"))
    ).to_be_visible()
    expect(page.get_by_label("Email")).to_have_value(user.email)


@pytest.mark.row("A-049", "A-073")
def test_after_a_sign_out_nothing_of_the_user_is_left_in_the_tab(page_for: PageFor) -> None:
    first, second = with_password(), with_password()
    make_key(first, "only of the first")
    page = page_for(None, "/sign-in?next=/api-keys")
    sign_in_by_hand(page, first)
    expect(page.get_by_text("only of the first")).to_be_visible()
    page.evaluate(
        "localStorage.setItem('playground.draft', 'secret prompt');"
        "localStorage.setItem('playground.address', '?model=desk');"
        "sessionStorage.setItem('errors', '[]')"
    )
    page.get_by_role("button", name="Ada").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to")).to_be_visible()
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "secret" not in kept
    assert "playground" not in kept
    sign_in_by_hand(page, second)
    expect(page.get_by_text("No API keys yet")).to_be_visible()
    page.go_back()
    page.wait_for_load_state()
    expect(page.get_by_text("only of the first")).to_have_count(0)


def shot(name: str, folder: Path, size: tuple[int, int] = (20, 20)) -> Path:
    out = io.BytesIO()
    Image.new("RGB", size, (10, 110, 105)).save(out, "PNG")
    path = folder / name
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.row("A-377", "A-378", "A-380", "A-381", "A-382", "A-386")
def test_feedback_is_sent_over_the_page_with_what_is_shown(
    page_for: PageFor, tmp_path: Path
) -> None:
    user = make_user()
    page = page_for(user, "/jobs?x=1")
    page.evaluate(
        "sessionStorage.setItem('errors', JSON.stringify([{when: '2026-11-30T10:00:00Z',"
        " what: 'GET /x: 500 broke', requestId: 'req_shown', path: '/x'}]))"
    )
    page.get_by_role("button", name="Support").click()
    page.get_by_role("menuitem", name="Feedback").click()
    dialog = page.get_by_role("dialog", name="Send feedback")
    expect(dialog).to_be_visible()
    for kind in ("Bug", "Feature request", "General"):
        expect(dialog.get_by_label(kind)).to_be_visible()
    dialog.get_by_label("Your note").fill("The graph flickers.")
    dialog.get_by_text("Details that go along").click()
    expect(dialog.get_by_text("req_shown")).to_be_visible()
    expect(dialog.get_by_text("/jobs?x=1")).to_be_visible()
    with page.expect_file_chooser() as chooser:
        dialog.get_by_role("button", name="Choose screenshots").click()
    chooser.value.set_files([shot(f"{index}.png", tmp_path) for index in range(4)])
    expect(dialog.get_by_role("listitem").filter(has=page.get_by_role("img"))).to_have_count(4)
    # One is dropped, one more is pasted and is the sixth.
    for event, make in (("drop", "DragEvent"), ("paste", "ClipboardEvent")):
        page.evaluate(
            """([event, make]) => {
              const data = new DataTransfer();
              const bytes = Uint8Array.from(atob(
                "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
              ), (c) => c.charCodeAt(0));
              data.items.add(new File([bytes], `${event}.png`, {type: "image/png"}));
              const options = {bubbles: true, cancelable: true};
              const name = event === "drop" ? "feedback-drop" : "feedback-text";
              const place = document.getElementById(name);
              const field = event === "drop" ? "dataTransfer" : "clipboardData";
              place.dispatchEvent(new window[make](event, {...options, [field]: data}));
            }""",
            [event, make],
        )
    images = dialog.get_by_role("listitem").filter(has=page.get_by_role("img"))
    expect(images).to_have_count(5)
    expect(dialog.get_by_text("paste.png was left out: 5 images at most.")).to_be_visible()
    assert serious_faults(page) == []
    page.context.set_offline(True)
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_text("Your note was not sent, and is still here.")).to_be_visible()
    expect(dialog.get_by_label("Your note")).to_have_value("The graph flickers.")
    page.context.set_offline(False)
    dialog.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Thanks, your note reached the team.")).to_be_visible()
    note = Note.objects.get(user=user)
    assert note.page == "/jobs?x=1"
    assert note.errors[0] == ["2026-11-30T10:00:00Z", "GET /x: 500 broke", "req_shown"]
    assert "You are offline." in note.errors[1][1], "the send that failed is shown and goes along"
    assert note.screenshots.count() == 5


@pytest.mark.row("A-384")
def test_an_anonymous_note_hides_the_details_and_leaves_them_out(page_for: PageFor) -> None:
    page = page_for(make_user(), "/jobs")
    text = f"anonymous {uuid4().hex}"
    page.get_by_role("button", name="Support").click()
    page.get_by_role("menuitem", name="Feedback").click()
    dialog = page.get_by_role("dialog", name="Send feedback")
    dialog.get_by_label("Your note").fill(text)
    dialog.get_by_label(
        "Send anonymously, without my account or the details below", exact=True
    ).check()
    expect(dialog.get_by_text("Details that go along")).to_be_hidden()
    dialog.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Thanks, your note reached the team.")).to_be_visible()
    note = Note.objects.get(text=text)
    assert (note.user, note.browser, note.errors) == (None, "", [])


@pytest.mark.row("A-133")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_of_access_have_no_serious_fault_and_fit_a_phone(
    page_for: PageFor, colours: str
) -> None:
    wide = page_for(None, "/sign-in", color_scheme=colours)
    phone = page_for(None, "/sign-in", phone=True, color_scheme=colours)
    user = with_password()
    for page in (wide, phone):
        for path in DOORS:
            page.goto(path)
            assert serious_faults(page) == [], path
            assert not is_too_wide(page), path
        page.goto("/sign-in")
        sign_in_by_hand(page, user)
        for path in ("/profile", "/profile/two-factor"):
            page.goto(path)
            assert serious_faults(page) == [], path
            assert not is_too_wide(page), path


def test_the_apply_form_is_filled_with_the_keyboard_alone(page_for: PageFor) -> None:
    email = f"keys-{uuid4().hex[:8]}@example.org"
    page = page_for(None, "/apply")
    page.get_by_label("Email", exact=True).focus()
    for text in (email, "Nu", "Lab", "Norms", "", "", "", ""):
        if text:
            page.keyboard.type(text)
        page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.name") != "agree":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Application received")).to_be_visible()
    assert apply(email=email, name="x", organization="x", planned_usage="x", answers=[]) is None
