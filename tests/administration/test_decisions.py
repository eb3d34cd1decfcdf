"""Applications, Invites, token requests and feedback as the admin shows and decides them."""

import json
import re
from uuid import uuid4

import pytest

from access.decisions import apply
from access.models import Application, ApplicationStatus, Invite
from accounts.models import AdminAction, Mail, User
from billing.allowance import tokens_left
from billing.models import Decision, Entry, TokenRequest
from billing.token_requests import Answers, send_request
from feedback.models import Note
from tests.administration.conftest import once, signed_in
from tests.feedback.test_feedback import picture, send

pytestmark = pytest.mark.django_db

LIST = "/admin/access/application/"
REQUESTS = "/admin/billing/tokenrequest/"
INVITES = "/admin/access/invite/"


def applied(email: str = "ada@example.org", **more) -> Application:
    made = apply(
        email=email,
        name="Ada",
        organization="Society",
        planned_usage="Norms & more",
        answers=[("Role", "Student"), ("Links", "")],
        **more,
    )
    assert made is not None
    return made


def asked(person: User, tokens: int = 50_000, **more) -> TokenRequest:
    answers = Answers(
        tokens=tokens, models=["tiny"], project="Probes", planned_usage="Sweep", **more
    )
    return send_request(user=person, answers=answers)


@pytest.mark.row("A-389", "A-390")
def test_the_tabs_stand_above_the_lists(desk):
    page = desk.get(LIST).content.decode()
    tabs = page.partition('id="tabs-items"')[2].partition("</nav>")[0]
    labels = [
        part.partition("<")[0].strip() for part in tabs.split(">")[1:] if part.strip()[:1].isupper()
    ]
    assert labels == [
        "Applications",
        "Invites",
        "Token requests",
        "Users",
        "Feedback",
        "Models",
        "Analytics",
    ]
    for label in ("usage", "spend"):
        assert desk.get(f"/admin/{label}")["Location"] == f"/admin/analytics/{label}"


@pytest.mark.row("A-393", "A-394", "A-003", "A-138")
def test_an_application_is_listed_and_read_with_each_answer(desk, admin, press):
    one = applied()
    page = desk.get(LIST).content.decode()
    for told in ("ada@example.org", "Society", "Norms &amp; more", "Open", "Submitted", "Reviewed"):
        assert told in page, told
    assert f"{one.submitted_at:%Y-%m-%d}" in page
    for gone in ("Received", "Decided", ">Sent<"):
        assert gone not in page
    read = desk.get(f"{LIST}{one.id}/change/").content.decode()
    for told in ("Role", "Student", "Links", "Not answered", "Norms &amp; more", "Not yet"):
        assert told in read, told
    press(f"{LIST}{one.id}/reject/")
    row = desk.get(LIST).content.decode()
    assert f"{one.submitted_at:%Y-%m-%d}, {admin.email}" in row


@pytest.mark.row("A-395", "A-397", "A-392")
def test_an_application_is_approved_with_a_grant_and_mailed_again(press, admin):
    one = applied()
    press(f"{LIST}{one.id}/approve/", tokens="20K", allowance="7M")
    user = User.objects.get(email="ada@example.org")
    left = tokens_left(user_id=user.id, key_id=None)
    assert (left.budget_left, left.allowance) == (20_000, 7_000_000)
    assert Mail.objects.filter(kind="approval").count() == 1
    press(f"{LIST}{one.id}/again/")
    assert Mail.objects.filter(kind="approval").count() == 2
    actions = AdminAction.objects.filter(kind="access.application").order_by("id")
    assert [(line.action, line.by_id) for line in actions] == [
        ("Approve", admin.id),
        ("Send the email again", admin.id),
    ]
    page = press(f"{LIST}{one.id}/reject/").content.decode()
    assert f"was approved already, by {admin.email}" in page


@pytest.mark.row("A-398", "A-403", "A-410")
def test_menus_offer_what_suits_the_state(desk, press, person):
    """In the list and, but for Invites, on the page of the row."""

    def offered(address: str) -> list[str]:
        found = []
        for page in (desk.get(address), desk.get(f"{address}{row.pk}/change/")):
            links = re.findall(rf'href="{address}{row.pk}/([a-z]+)/"', page.content.decode())
            found.append([link for link in links if link not in ("change", "history")])
        listed, own = found
        assert [act for act in listed if act != "read"] == own or address == INVITES
        return listed

    row = applied("dee@example.org")
    assert offered(LIST) == ["approve", "reject"]
    press(f"{LIST}{row.pk}/approve/")
    assert offered(LIST) == ["again"]
    row = applied("bo@example.org")
    press(f"{LIST}{row.pk}/reject/")
    assert offered(LIST) == []
    row = asked(person)
    assert offered(REQUESTS) == ["read", "approve", "reject"]
    press(f"{REQUESTS}{row.pk}/reject/")
    assert offered(REQUESTS) == ["read"]
    press(f"{INVITES}add/", emails="cy@example.org", tokens="", tag="")
    row = Invite.objects.get()
    assert offered(INVITES) == ["withdraw"]
    press(f"{INVITES}{row.pk}/withdraw/")
    assert offered(INVITES) == []


@pytest.mark.row("A-396")
def test_a_rejected_applicant_may_apply_again(press):
    one = applied()
    press(f"{LIST}{one.id}/reject/")
    assert applied().status == ApplicationStatus.OPEN


@pytest.mark.row("A-400", "A-401", "A-402", "A-403", "A-014")
def test_several_are_invited_at_once_listed_and_withdrawn(press, desk, admin, person):
    page = press(
        f"{INVITES}add/",
        emails=f"bo@example.org\r\nCY@example.org\n\n{person.email}",
        tokens="1.5K",
        tag="Hiring 2026 08",
    ).content.decode()
    assert "2 Invites are on the way." in page
    assert f"{person.email} has a User already." in page
    listed = desk.get(INVITES).content.decode()
    for told in (
        "bo@example.org",
        "cy@example.org",
        "1,500",
        "hiring-2026-08",
        "Open",
        admin.email,
    ):
        assert told in listed, told
    one = Invite.objects.get(email="bo@example.org")
    press(f"{INVITES}{one.id}/withdraw/")
    one.refresh_from_db()
    assert one.status == "Withdrawn"
    assert "Withdrawn" in desk.get(INVITES).content.decode()
    assert "Only an open Invite" in press(f"{INVITES}{one.id}/withdraw/").content.decode()
    wrong = press(f"{INVITES}add/", emails="bo@example.org\nnonsense", tokens="", tag="")
    assert "Not an email address: nonsense." in wrong.content.decode()
    for status, email in (("open", "cy@example.org"), ("withdrawn", "bo@example.org")):
        rows = desk.get(f"{INVITES}?status={status}").content.decode()
        other = {"bo@example.org", "cy@example.org"} - {email}
        assert email in rows
        assert other.pop() not in rows


@pytest.mark.row("A-404", "A-405", "A-406", "A-561")
def test_requests_for_tokens_are_listed_and_read(desk, person):
    one = asked(person, reckoning="", links="https://example.org")
    old = asked_long_ago()
    page = desk.get(REQUESTS).content.decode()
    for told in ("ada@example.org", "50,000", "Probes", "Waiting", "None"):
        assert told in page, told
    read = desk.get(f"{REQUESTS}{one.id}/read/").content.decode()
    for told in ("How you got the number", "Not answered", "https://example.org", "Sweep"):
        assert told in read, told
    legacy = desk.get(f"{REQUESTS}{old.id}/read/").content.decode()
    assert "An older reason" in legacy.partition("Planned usage")[2]


def asked_long_ago() -> TokenRequest:
    """A request from before the form asked for a project."""
    from django.utils import timezone

    other = User.objects.create_user(f"{uuid4().hex}@example.org")
    return TokenRequest.objects.create(
        user=other,
        tokens=5,
        project="",
        planned_usage="An older reason",
        sent_at=timezone.now(),
    )


@pytest.mark.row("A-407", "A-408", "A-410", "A-418")
def test_a_request_is_approved_once_with_the_amount_that_is_written(desk, admin, person):
    one = asked(person)
    address = f"{REQUESTS}{one.id}/approve/"
    form = desk.get(address).content.decode()
    assert "Tokens to grant" in form
    assert 'value="50K"' in form
    written = {**once(), "tokens": "2500000"}
    for _ in range(2):
        desk.post(address, written)
    again = desk.post(address, {**once(), "tokens": "7"})
    assert f"was approved already, by {admin.email}" in again.content.decode()
    rejected = desk.post(f"{REQUESTS}{one.id}/reject/", {**once(), "note": "no"})
    assert rejected.status_code == 409
    one.refresh_from_db()
    assert (one.status, one.granted, one.decided_by_id) == (
        Decision.APPROVED,
        2_500_000,
        admin.id,
    )
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 2_500_000
    assert Entry.objects.filter(user=person).count() == 1
    listed = desk.get(REQUESTS).content.decode()
    assert "2,500,000" in listed
    assert f"{one.decided_at:%Y-%m-%d}, {admin.email}" in listed


@pytest.mark.row("A-409", "A-593")
def test_a_rejection_carries_a_note_that_may_be_empty(press, person):
    one = asked(person)
    press(f"{REQUESTS}{one.id}/reject/", note="Say which Layers.")
    one.refresh_from_db()
    assert (one.status, one.note) == (Decision.REJECTED, "Say which Layers.")
    told = Mail.objects.get(kind="token_decision")
    assert "Say which Layers." in told.text
    assert "/usage/request" in told.text
    two = asked(person)
    press(f"{REQUESTS}{two.id}/reject/", note="")
    two.refresh_from_db()
    assert two.status == Decision.REJECTED


@pytest.mark.row("A-544", "A-214")
def test_the_team_is_mailed_the_answers(person, settings):
    settings.BASALT = settings.BASALT.model_copy(update={"team_emails": ("team@example.org",)})
    asked(person, results="A paper")
    told = Mail.objects.get(kind="token_request")
    assert told.subject == f"Token request from {person.email}"
    for part in ("50,000", "Probes", "Sweep", "A paper", "/admin/billing/tokenrequest/"):
        assert part in told.text
        assert part in told.html


@pytest.mark.row("A-445", "A-446")
def test_feedback_is_listed_and_read_with_its_images(desk, person, admin):
    client = signed_in(person)
    send(client, picture("JPEG"), text="The <b>graph</b> flickers")
    send(client, anonymous="on", text="Nameless", kind="general")
    Note.objects.filter(text="Nameless").update(
        issue_id="BAS-7", issue_url="https://linear.app/i/BAS-7"
    )
    page = desk.get("/admin/feedback/note/").content.decode()
    for told in (
        "Bug",
        "General",
        "The &lt;b&gt;graph&lt;/b&gt; flickers",
        "/loom/42",
        "ada@example.org",
        "Anonymous",
        "Submitted",
        "Linear",
        'href="https://linear.app/i/BAS-7"',
    ):
        assert told in page, told
    note = Note.objects.get(kind="bug")
    read = desk.get(f"/admin/feedback/note/{note.id}/change/").content.decode()
    assert "req_1" in read
    address = f"/admin/feedback/screenshot/{note.screenshots.get().id}"
    assert address in read
    image = desk.get(address)
    assert image["Content-Type"] == "image/jpeg"
    assert image["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in image["Content-Security-Policy"]
    assert b"".join(image.streaming_content)[:2] == b"\xff\xd8"
    assert signed_in(person).get(address).status_code == 404
    assert json.dumps(note.errors)


@pytest.mark.row("A-399")
def test_waiting_applications_are_counted():
    applied()
    assert Application.objects.waiting().count() == 1
