"""The Apply form, Invites and decisions (A-001 to A-029, A-396 to A-403)."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from access.decisions import Terms, approve, reject
from access.invites import InviteDead, accept, invite, withdraw
from access.models import Application, ApplicationStatus, Invite
from accounts.models import Mail, User, UserTag
from accounts.people import Refused, delete, suspend
from billing.allowance import tokens_left
from billing.models import Entry, EntryKind
from tests.access.conftest import follow, link_in
from tests.accounts.at_once import at_once

pytestmark = pytest.mark.django_db

FORM = {
    "email": "ada@example.org",
    "name": "Ada",
    "organization": "Analytical Society",
    "planned_usage": "Reads of the\r\nresidual stream",
    "agree": "on",
}
RULES = ("personal", "illegal, harmful", "rough edges", "published")


def send(client: Client, path: str = "/apply", **changes):
    return client.post(path, {**FORM, **changes})


@pytest.mark.row("A-001", "A-004", "A-005", "A-006", "A-003")
def test_everybody_sees_the_form_with_its_questions_and_rules(client):
    page = client.get("/apply").content.decode()
    for label in ("Email", "Name", "Organization", "Planned usage"):
        assert f">{label}<" in page
    for question in ("Role", "Links", "Models you need", "How did you hear of us"):
        assert f">{question} <" in page
    assert all(rule in page for rule in RULES)
    assert f'href="{settings.BASALT.app_address}"' in page
    assert "I agree to these rules." in page
    assert ">Apply for access</button>" in page


@pytest.mark.row("A-006", "A-011")
def test_an_application_keeps_each_answer(client):
    before = timezone.now()
    answer = send(client, answer_0="Student", answer_3="A talk")
    assert answer.status_code == 200
    assert "Application received" in answer.content.decode()
    kept = Application.objects.get()
    assert (kept.email, kept.name) == ("ada@example.org", "Ada")
    assert kept.organization == "Analytical Society"
    assert kept.planned_usage == "Reads of the\nresidual stream"
    assert kept.answers == [
        ["Role", "Student"],
        ["Links", ""],
        ["Models you need", ""],
        ["How did you hear of us", "A talk"],
    ]
    assert before <= kept.submitted_at <= timezone.now()
    assert before <= kept.rules_agreed_at <= timezone.now()
    assert kept.status == ApplicationStatus.OPEN


@pytest.mark.row("A-002", "A-005")
@pytest.mark.parametrize("missing", ["email", "name", "organization", "planned_usage", "agree"])
def test_a_missing_answer_stores_nothing_and_keeps_the_rest(client, missing):
    body = {name: value for name, value in FORM.items() if name != missing}
    answer = client.post("/apply", {**body, "answer_0": "Student"})
    assert answer.status_code == 400
    page = answer.content.decode()
    assert f'id="id_{missing}_error"' in page
    assert page.count('class="fault"') == 1
    assert "Student" in page
    kept = {name: value.split("\r")[0] for name, value in body.items() if name != "agree"}
    assert all(value in page for value in kept.values())
    assert (" checked" in page) == (missing != "agree")
    assert not Application.objects.exists()


@pytest.mark.row("A-010", "A-126")
@pytest.mark.parametrize("name", ["email", "name", "organization", "planned_usage", "answer_1"])
def test_a_nul_is_refused_at_its_question(client, name):
    answer = send(client, **{name: "a\0b@example.org"})
    assert answer.status_code == 400
    page = answer.content.decode()
    fault = page.partition(f'id="id_{name}_error">')[2].partition("<")[0]
    assert fault == "A text cannot hold the character U+0000 (NUL)."
    assert not Application.objects.exists()


@pytest.mark.row("A-007", "A-008", "A-139")
def test_every_address_gets_one_answer_and_a_waiting_application_stays(client, person, admin):
    new = send(client)
    waiting = send(client, name="Another", email="ADA@example.org")
    user = send(client, email=person.email)
    suspended = User.objects.create_user("gone@example.org")
    suspend(user_id=suspended.id, by=admin.id)
    gone = send(client, email="gone@example.org")
    answers = [(each.status_code, each.content) for each in (new, waiting, user, gone)]
    assert len(set(answers)) == 1
    assert b"already exists" not in answers[0][1]
    [kept] = Application.objects.all()
    assert kept.name == "Ada"


@pytest.mark.row("A-009", "A-027", "A-396", "A-540")
def test_after_a_rejection_one_may_apply_again(client, admin, deliver):
    send(client)
    first = Application.objects.get()
    reject(application_id=first.id, by=admin.id)
    assert not User.objects.filter(email=FORM["email"]).exists()
    [message] = deliver()
    assert message.subject == f"Your {settings.BASALT.site_name} application"
    assert f"{settings.BASALT.app_address}/apply" in message.body
    assert "token=" not in message.body
    send(client, name="Ada again")
    assert Application.objects.waiting().get().name == "Ada again"
    first.refresh_from_db()
    assert (first.status, first.name) == (ApplicationStatus.REJECTED, "Ada")


@pytest.mark.row("A-024", "A-025", "A-028", "A-393")
def test_an_approval_gives_what_the_admin_chose_or_the_default(client, admin):
    send(client)
    send(client, email="other@example.org")
    plain, rich = Application.objects.order_by("id")
    user = approve(application_id=plain.id, terms=Terms(), by=admin.id)
    left = tokens_left(user_id=user.id, key_id=None)
    assert (left.allowance, left.budget_left) == (5_000_000, 0)
    assert not user.has_usable_password()
    other = approve(application_id=rich.id, terms=Terms(allowance=100, tokens=2_000), by=admin.id)
    left = tokens_left(user_id=other.id, key_id=None)
    assert (left.allowance, left.budget_left) == (100, 2_000)
    assert Entry.objects.get(user=other).by_id == admin.id
    plain.refresh_from_db()
    assert plain.reviewed_by_id == admin.id
    assert plain.reviewed_at.date() == timezone.now().date()
    assert plain.user_id == user.id


@pytest.mark.row("A-398")
@pytest.mark.django_db(transaction=True)
def test_of_decisions_at_once_one_is_made_and_the_others_see_by_whom(client, admin):
    send(client)
    one = Application.objects.get(email=FORM["email"])
    calls = [
        lambda: approve(application_id=one.id, terms=Terms(tokens=5), by=admin.id),
        lambda: reject(application_id=one.id, by=admin.id),
    ] * 3
    done = at_once(calls)
    refused = [each for each in done if isinstance(each, Refused)]
    assert len(refused) == 5
    assert all(admin.email in str(each) for each in refused)
    assert Mail.objects.filter(to=FORM["email"]).count() == 1
    assert User.objects.filter(email=FORM["email"]).count() <= 1


@pytest.mark.row("A-014", "A-015", "A-016", "A-017", "A-400", "A-541")
def test_each_invite_opens_the_form_for_its_address(client, admin, deliver):
    made, refused = invite(
        emails=["bo@example.org", "cy@example.org", "bo@example.org"],
        tokens=50_000,
        tag="course-2026",
        by=admin.id,
    )
    assert [each.email for each in made] == ["bo@example.org", "cy@example.org"]
    assert refused == []
    messages = deliver()
    assert [message.to for message in messages] == [["bo@example.org"], ["cy@example.org"]]
    assert messages[0].subject == f"You are invited to {settings.BASALT.site_name}"
    assert link_in(messages[0]) != link_in(messages[1])
    page = follow(client, messages[0]).content.decode()
    assert 'value="bo@example.org"' in page
    assert ">Set up my account</button>" in page
    assert "Apply for access" not in page
    assert "once you send it, you have access" in page
    assert " review" not in page.lower()
    assert all(rule in page for rule in RULES)


@pytest.mark.row("A-018", "A-019", "A-020", "A-021", "A-022", "A-546")
def test_an_invites_form_sets_the_person_up_once(client, admin, deliver):
    invite(emails=["bo@example.org"], tokens=50_000, tag="course", by=admin.id)
    assert not UserTag.objects.exists()
    [message] = deliver()
    follow(client, message)
    missing = client.post("/invited", {**FORM, "name": ""})
    assert missing.status_code == 400
    assert not User.objects.filter(email="bo@example.org").exists()
    answer = client.post("/invited", {**FORM, "email": "eve@example.org"})
    assert answer["Location"] == "/set-password"
    user = User.objects.get(email="bo@example.org")
    assert not User.objects.filter(email="eve@example.org").exists()
    page = client.get("/set-password").content.decode()
    assert "<h1>Set your password</h1>" in page
    assert client.post("/set-password", {"password": "long enough"}).status_code == 200
    application = Application.objects.get()
    assert application.status == ApplicationStatus.APPROVED
    assert (application.user_id, application.email) == (user.id, "bo@example.org")
    left = tokens_left(user_id=user.id, key_id=None)
    assert (left.allowance, left.budget_left) == (5_000_000, 50_000)
    assert Entry.objects.get(user=user).kind == EntryKind.INVITE
    assert list(user.user_tags.values_list("tag__name", flat=True)) == ["course"]
    assert deliver() == []
    again = Client()
    assert follow(again, message).status_code == 410
    assert again.post("/invited", FORM).status_code == 410
    assert Application.objects.count() == 1
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 50_000
    assert Invite.objects.get().status == "Used"


@pytest.mark.row("A-023")
def test_an_invite_ends_after_seven_days(client, admin, deliver):
    [made], _ = invite(emails=["bo@example.org"], tokens=0, tag="", by=admin.id)
    assert made.expires_at - made.sent_at == timedelta(days=7)
    [message] = deliver()
    Invite.objects.update(expires_at=timezone.now())
    page = follow(client, message)
    assert page.status_code == 410
    assert "The link did not work" in page.content.decode()
    assert 'href="/apply"' in page.content.decode()
    assert client.post("/invited", FORM).status_code == 410
    assert not User.objects.filter(email="bo@example.org").exists()
    assert Invite.objects.get().status == "Expired"


@pytest.mark.row("A-403")
def test_a_withdrawn_invite_makes_nothing(client, admin, deliver):
    [made], _ = invite(emails=["bo@example.org"], tokens=0, tag="", by=admin.id)
    [message] = deliver()
    withdraw(invite_id=made.id)
    assert follow(client, message).status_code == 410
    with pytest.raises(Refused):
        withdraw(invite_id=made.id)


def test_an_invite_for_a_user_is_refused_and_another_one_replaces_the_open_one(admin, person):
    made, refused = invite(emails=[person.email, "bo@example.org"], tokens=0, tag="", by=admin.id)
    assert [each.email for each in made] == ["bo@example.org"]
    assert refused == [f"{person.email} has a User already."]
    invite(emails=["bo@example.org"], tokens=7, tag="", by=admin.id)
    open_ones = [each.tokens for each in Invite.objects.all() if each.status == "Open"]
    assert open_ones == [7]


def test_an_invite_approves_an_open_application_of_its_address(client, admin, deliver):
    send(client)
    invite(emails=[FORM["email"]], tokens=0, tag="", by=admin.id)
    [message] = deliver()
    follow(client, message)
    client.post("/invited", {**FORM, "name": "Ada L."})
    [application] = Application.objects.all()
    assert application.status == ApplicationStatus.APPROVED
    assert application.name == "Ada L."


@pytest.mark.row("A-022")
@pytest.mark.django_db(transaction=True)
def test_an_invite_used_at_once_makes_one_user(admin):
    from access.invites import KIND
    from accounts.secrets import link_token

    [made], _ = invite(emails=["bo@example.org"], tokens=10, tag="", by=admin.id)
    token = link_token(KIND, made.id)
    words = {"name": "Bo", "organization": "Lab", "planned_usage": "x", "answers": []}
    done = at_once([lambda: accept(token=token, **words)] * 6)
    assert sum(isinstance(each, InviteDead) for each in done) == 5
    user = User.objects.get(email="bo@example.org")
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 10


def test_a_deleted_users_address_can_apply_again(client, person, admin):
    address = person.email
    delete(user_id=person.id, by=admin.id)
    send(client, email=address)
    assert Application.objects.get().email == address
