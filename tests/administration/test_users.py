"""The list of Users, its bulk actions, and the page of one (A-411 to A-444, A-495)."""

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import ProtectedError
from django.test import Client
from django.utils import timezone

from access.decisions import Terms, apply, approve
from accounts.keys import find_key
from accounts.models import AdminAction, ApiKey, PasswordLink, Remark, Role, Tag, User, UserTag
from accounts.people import Refused, delete, set_role, suspend
from accounts.tags import TagInvalid, add_tag, tag_form
from administration.facts import Facts, facts_of
from billing.allowance import tokens_left
from billing.grants import grant
from billing.models import Entry, EntryKind, Hold
from billing.owners import Lease
from tests.accounts.at_once import at_once
from tests.accounts.factory import make_key
from tests.administration.conftest import (
    PASSWORD,
    new_user,
    once,
    signed_in,
    user_act,
    users_list,
)
from tests.billing.factory import give_back, pay, take

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease() -> Lease:
    from billing.models import OwnerKind
    from billing.owners import register

    return register(OwnerKind.WEB)


def ran(user: User, lease: Lease, days_ago: float, tokens: int = 10, model: str = "tiny") -> Hold:
    grant(user_id=user.id, tokens=tokens, by=None)
    now = timezone.now() - timedelta(days=days_ago)
    hold = take(user, tokens, lease, model=model, now=now)
    pay(hold, lease, tokens - 3, 3, now=now)
    return hold


def row_of(client: Client, user: User, query: str = "") -> str:
    page = client.get(f"{users_list()}?q={user.email}{query}").content.decode()
    return page.partition(f"/user/{user.id}/change/")[2].partition("</tr>")[0]


def selected(client: Client, action: str, users: list[User], query: str = "", **written):
    body = {
        "action": f"{action}_selected",
        "_selected_action": [str(user.id) for user in users],
        **written,
    }
    return client.post(users_list() + query, body)


@pytest.mark.row("A-411", "A-416", "A-562")
def test_a_row_tells_what_is_known_of_a_user(desk, admin, lease):
    applied = apply(
        email="ada@example.org",
        name="Ada",
        organization="Analytical Society",
        planned_usage="x",
        answers=[],
    )
    user = approve(application_id=applied.id, terms=Terms(allowance=77_000), by=admin.id)
    make_key(user)
    add_tag(user_ids=[user.id], name="course", by=admin.id)
    ran(user, lease, 1, 1_500, "small")
    ran(user, lease, 1, 2_500, "large")
    ran(user, lease, 45, 9_000, "small")
    grant(user_id=user.id, tokens=4_321, by=None)
    row = row_of(desk, user)
    joined = f"{user.created_at:%Y-%m-%d}"
    left = tokens_left(user_id=user.id, key_id=None).budget_left
    for told in (
        "Analytical Society",
        "User",
        "Active",
        "course",
        "4,000",
        "small, large",
        f"{left:,}",
        "77,000",
        joined,
    ):
        assert told in row, told
    User.objects.filter(id=user.id).update(organization="Other Lab")
    assert "Other Lab" in row_of(desk, user)
    assert "Analytical" not in row_of(desk, user)


@pytest.mark.row("A-412", "A-415", "A-414")
def test_engagement_follows_from_the_newest_completion_that_was_not_released(desk, lease):
    users = {}
    for name, days in (("Active", 7), ("Cooling", 14), ("Churned", 14.01), ("Not activated", None)):
        users[name] = new_user(f"{name.split()[0].lower()}@example.org")
        if days is not None:
            ran(users[name], lease, days - 0.001 if days != 14.01 else days)
    grant(user_id=users["Not activated"].id, tokens=50, by=None)
    give_back(take(users["Not activated"], 50, lease), lease)
    facts = facts_of(list(users.values()))
    for name, user in users.items():
        assert facts[user.id].engagement == name
        page = desk.get(f"{users_list()}?engagement={_key(name)}").content.decode()
        listed = {other for other in users.values() if other.email in page}
        assert listed == {user}, name
    assert facts[users["Not activated"].id].weeks == 0


def _key(name: str) -> str:
    return {"Not activated": "never"}.get(name, name.lower())


@pytest.mark.row("A-412")
def test_engagement_changes_after_seven_and_after_fourteen_days():
    now = timezone.now()
    told = [
        Facts(last=now - timedelta(days=days)).engagement
        for days in (0, 6.99, 7.01, 13.99, 14.01, 400)
    ]
    assert told == ["Active", "Active", "Cooling", "Cooling", "Churned", "Churned"]
    assert Facts().engagement == "Not activated"


@pytest.mark.row("A-412")
def test_a_running_completion_counts(lease):
    user = new_user()
    grant(user_id=user.id, tokens=50, by=None)
    take(user, 50, lease)
    assert facts_of([user])[user.id].engagement == "Active"


@pytest.mark.row("A-413")
def test_an_active_week_runs_from_monday_to_sunday_in_utc(lease):
    sunday = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)
    monday = datetime(2026, 11, 2, 0, 1, tzinfo=UTC)
    next_sunday = datetime(2026, 11, 8, 23, 0, tzinfo=UTC)
    for moments, weeks in (
        ((sunday, monday), 2),
        ((monday, next_sunday), 1),
        ((sunday, monday, next_sunday), 2),
    ):
        user = new_user()
        for moment in moments:
            grant(user_id=user.id, tokens=5, by=None)
            pay(take(user, 5, lease, now=moment), lease, 5, now=moment)
        assert facts_of([user])[user.id].weeks == weeks


@pytest.mark.row("A-415", "A-424")
def test_lists_are_searched_and_filtered(desk, admin):
    ada = new_user("ada@example.org", name="Ada Lovelace", organization="Society")
    bo = new_user("bo@example.org")
    add_tag(user_ids=[ada.id], name="course", by=admin.id)
    suspend(user_id=bo.id, by=admin.id)

    def emails(query: str) -> set[str]:
        page = desk.get(f"{users_list()}?{query}").content.decode()
        return {user.email for user in (ada, bo, admin) if f"/user/{user.id}/change/" in page}

    assert emails("q=lovel") == {ada.email}
    assert emails("q=socie") == {ada.email}
    assert emails("q=BO@exam") == {bo.email}
    assert emails("tag=course") == {ada.email}
    assert emails("standing=suspended") == {bo.email}
    assert emails("role=admin") >= {admin.email}
    assert bo.email not in emails("role=admin")


@pytest.mark.row("A-417", "A-418", "A-419", "A-420", "A-392")
def test_tokens_are_given_and_set_by_amounts_as_people_write_them(press, admin, person):
    press(user_act(person, "grant"), tokens="50K")
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 50_000
    press(user_act(person, "grant"), tokens="1.5K")
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 51_500
    press(user_act(person, "budget"), tokens="2M")
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 2_000_000
    press(user_act(person, "budget"), tokens="0")
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 0
    press(user_act(person, "allowance"), tokens="3M")
    assert tokens_left(user_id=person.id, key_id=None).allowance == 3_000_000
    press(user_act(person, "allowance"), tokens="")
    assert tokens_left(user_id=person.id, key_id=None).allowance == 5_000_000
    kinds = list(Entry.objects.filter(user=person).order_by("id").values_list("kind", "by"))
    assert kinds == [
        (EntryKind.GRANT, admin.id),
        (EntryKind.GRANT, admin.id),
        (EntryKind.SET, admin.id),
        (EntryKind.SET, admin.id),
    ]
    lines = AdminAction.objects.filter(target_id=str(person.id)).order_by("id")
    assert [(line.action, line.details, line.by_id) for line in lines] == [
        ("Grant tokens", "50,000", admin.id),
        ("Grant tokens", "1,500", admin.id),
        ("Set the Budget", "2,000,000", admin.id),
        ("Set the Budget", "0", admin.id),
        ("Set the monthly allowance", "3,000,000", admin.id),
        ("Set the monthly allowance", "the default", admin.id),
    ]


@pytest.mark.row("A-408")
def test_a_double_press_grants_once(desk, person):
    written = {**once(), "tokens": "100"}
    for _ in range(3):
        desk.post(user_act(person, "grant"), written)
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 100


@pytest.mark.parametrize("tokens", ["", "0", "-5", "lots", "1e9", "5\0"])
def test_what_is_no_amount_is_refused_at_its_field(desk, person, tokens):
    answer = desk.post(user_act(person, "grant"), {**once(), "tokens": tokens})
    assert answer.status_code == 400
    assert "basalt-fault" in answer.content.decode()
    assert tokens_left(user_id=person.id, key_id=None).budget_left == 0


@pytest.mark.row("A-421")
def test_nobody_suspends_deletes_or_demotes_themselves(desk, admin, press):
    User.objects.create_superuser("second@example.org")
    for what in ("suspend", "delete-user", "remove-role", "make-staff"):
        written = {"typed": "delete 1 User", "own_password": PASSWORD}
        page = press(user_act(admin, what), **written).content.decode()
        assert "Another admin has to do this for you." in page, what
    admin.refresh_from_db()
    assert admin.is_admin


def test_the_last_admin_stays():
    only = User.objects.create_superuser("only@example.org")
    for change in (
        lambda: suspend(user_id=only.id, by=None),
        lambda: delete(user_id=only.id, by=None),
        lambda: set_role(user_id=only.id, role=Role.STAFF, by=None),
    ):
        with pytest.raises(Refused, match="is the last admin"):
            change()
    only.refresh_from_db()
    assert only.is_admin


@pytest.mark.django_db(transaction=True)
def test_two_admins_who_demote_each_other_at_once_leave_one():
    one, two = (User.objects.create_superuser(f"{name}@example.org") for name in ("a", "b"))
    done = at_once(
        [
            lambda: set_role(user_id=one.id, role=Role.USER, by=two.id),
            lambda: set_role(user_id=two.id, role=Role.USER, by=one.id),
        ]
    )
    assert sum(isinstance(each, Refused) for each in done) == 1
    assert User.objects.filter(is_superuser=True).count() == 1


@pytest.mark.row("A-417")
def test_a_role_is_given_with_ones_own_password(old_desk, person):
    desk = old_desk

    def press(address, **written):
        desk.post(address, {**once(), **written}, follow=True)

    page = desk.get(user_act(person, "make-admin")).content.decode()
    assert "Your password" in page
    refused = desk.post(user_act(person, "make-admin"), {**once(), "own_password": "wrong"})
    assert refused.status_code == 400
    person.refresh_from_db()
    assert person.role == Role.USER
    press(user_act(person, "make-admin"), own_password=PASSWORD)
    person.refresh_from_db()
    assert person.role == Role.ADMIN
    # For some minutes it is not asked again.
    assert "Your password" not in desk.get(user_act(person, "make-staff")).content.decode()
    press(user_act(person, "make-staff"))
    person.refresh_from_db()
    assert person.role == Role.STAFF
    press(user_act(person, "remove-role"))
    person.refresh_from_db()
    assert person.role == Role.USER


def test_ones_own_password_cannot_be_tried_on(old_desk, person):
    desk = old_desk
    for _ in range(5):
        desk.post(user_act(person, "make-admin"), {**once(), "own_password": "wrong"})
    answer = desk.post(user_act(person, "make-admin"), {**once(), "own_password": PASSWORD})
    assert "Too many tries." in answer.content.decode()


@pytest.mark.row("A-422", "A-423")
def test_a_tag_has_one_form():
    assert tag_form("Hiring 2026 08") == "hiring-2026-08"
    assert tag_form("  x_y ") == "x-y"
    assert tag_form("a" * 32) == "a" * 32
    for wrong in ("", "a" * 33, "é", "a.b", "a/b", "\0"):
        with pytest.raises(TagInvalid):
            tag_form(wrong)
    from django.db import IntegrityError, transaction

    with pytest.raises(IntegrityError), transaction.atomic():
        Tag.objects.create(name="Not A Tag")


@pytest.mark.row("A-424")
def test_a_tag_is_added_to_and_taken_off_one_user(press, person):
    press(user_act(person, "add-tag"), tag="Hiring 2026 08")
    assert list(person.user_tags.values_list("tag__name", flat=True)) == ["hiring-2026-08"]
    page = press(user_act(person, "add-tag"), tag="hiring-2026-08").content.decode()
    assert "has the tag hiring-2026-08 already" in page
    press(user_act(person, "remove-tag"), tag="hiring-2026-08")
    assert not person.user_tags.exists()
    assert not Tag.objects.exists()


@pytest.mark.row("A-425", "A-426")
def test_a_box_stands_before_every_row_but_ones_own_and_deleted_ones(desk, admin, person):
    gone = new_user()
    delete(user_id=gone.id, by=admin.id)
    page = desk.get(users_list()).content.decode()
    boxes = page.count('name="_selected_action"')
    assert f'value="{person.id}"' in page
    assert f'value="{admin.id}" class="action-select"' not in page
    assert boxes == User.objects.count() - 2


@pytest.mark.row("A-427", "A-428", "A-430", "A-431")
def test_a_bulk_dialog_says_whom_it_changes_and_whom_it_leaves_out(desk, admin):
    page = desk.get(users_list()).content.decode()
    for label in ("Suspend", "Restore", "Add tag", "Remove tag", "Set allowance", "Delete"):
        assert f">{label}</option>" in page
    assert "Selected Users" in page
    active = [new_user(f"active{index}@example.org") for index in range(3)]
    suspended = new_user("suspended@example.org", suspended_at=timezone.now())
    boss = User.objects.create_superuser("boss@example.org")
    everyone = [*active, suspended, boss, admin]
    dialog = selected(desk, "suspend", everyone).content.decode()
    assert "3 Users will be suspended. 3 Users are left out." in dialog
    for who, why in (
        ("suspended@example.org", "is suspended already."),
        ("boss@example.org", "is an admin"),
    ):
        assert f"<strong>{who}</strong> {why}" in dialog
    assert User.objects.filter(suspended_at__isnull=False).count() == 1
    told = selected(desk, "suspend", everyone, **once()).content.decode()
    assert "3 Users were changed." in told
    assert "<strong>suspended@example.org</strong>" in told
    assert User.objects.filter(suspended_at__isnull=False).count() == 4
    assert AdminAction.objects.filter(action="Suspend", by=admin).count() == 3
    restored = selected(desk, "restore", everyone, **once())
    assert "4 Users were changed." in restored.content.decode()
    assert not User.objects.filter(suspended_at__isnull=False).exists()


@pytest.mark.row("A-426", "A-430", "A-433")
def test_a_bulk_tag_tells_who_has_it_already_and_never_touches_oneself(desk, admin):
    had, new = new_user("had@example.org"), new_user("new@example.org")
    add_tag(user_ids=[had.id], name="course", by=admin.id)
    everyone = [had, new, admin]
    told = selected(desk, "add_tag", everyone, tag="course", **once()).content.decode()
    assert "1 User was changed." in told
    assert "<strong>had@example.org</strong> has the tag course already." in told
    assert f"<strong>{admin.email}</strong> is you." in told
    assert not admin.user_tags.exists()
    add_tag(user_ids=[admin.id], name="course", by=None)
    UserTag.objects.filter(user=new).delete()
    told = selected(desk, "remove_tag", everyone, tag="course", **once()).content.decode()
    assert "<strong>new@example.org</strong> does not have the tag course." in told
    assert list(UserTag.objects.values_list("user", flat=True)) == [admin.id]
    lines = AdminAction.objects.order_by("id").values_list("action", "target_id", "details")
    assert list(lines) == [
        ("Add tag", str(new.id), "course"),
        ("Remove tag", str(had.id), "course"),
    ]


@pytest.mark.row("A-417", "A-421", "A-438")
def test_menus_offer_what_suits_the_user(desk, admin, person):
    suspended = new_user("suspended@example.org", suspended_at=timezone.now())
    boss = User.objects.create_superuser("boss@example.org")
    gone = new_user()
    delete(user_id=gone.id, by=admin.id)
    add_tag(user_ids=[boss.id], name="course", by=admin.id)
    tokens = ["grant", "budget", "allowance", "add-tag"]
    expected = {
        person: [*tokens, "suspend", "make-admin", "make-staff", "delete-user"],
        suspended: [*tokens, "restore", "delete-user"],
        boss: [*tokens, "remove-tag", "suspend", "make-staff", "remove-role", "delete-user"],
        admin: tokens,
        gone: [],
    }
    listed = desk.get(users_list()).content.decode()
    for user, acts in expected.items():
        for page in (listed, desk.get(user_act(user, "change")).content.decode()):
            found = re.findall(rf'href="{user_act(user, "")[:-1]}([a-z-]+)/"', page)
            offered = [
                act for act in found if act not in ("change", "history", "harvests", "remark")
            ]
            assert offered == acts, (user.email, offered)


def test_nothing_is_given_to_who_is_deleted(press, admin, person):
    delete(user_id=person.id, by=admin.id)
    page = press(user_act(person, "grant"), tokens="5").content.decode()
    assert "This User is deleted." in page
    assert not AdminAction.objects.exists()


@pytest.mark.row("A-425", "A-429")
def test_all_pages_of_a_filter_are_selected_and_nobody_beyond_it(desk, admin):
    for index in range(60):
        new_user(f"u{index:02}@example.org")
    inside = list(User.objects.filter(email__startswith="u")[:55])
    add_tag(user_ids=[user.id for user in inside], name="course", by=admin.id)
    outside = User.objects.filter(user_tags=None).exclude(id=admin.id)
    body = {
        "action": "set_allowance_selected",
        "select_across": "1",
        "_selected_action": [str(inside[0].id), str(outside[0].id)],
        "tokens": "9K",
        **once(),
    }
    desk.post(f"{users_list()}?tag=course", body)
    changed = [
        u for u in User.objects.all() if tokens_left(user_id=u.id, key_id=None).allowance == 9000
    ]
    assert {user.id for user in changed} == {user.id for user in inside}
    # Without that, those who are chosen but are not shown by the filter stay as they are.
    selected(desk, "add_tag", [inside[0], outside[0]], "?tag=course", tag="both", **once())
    assert list(UserTag.objects.filter(tag__name="both").values_list("user", flat=True)) == [
        inside[0].id
    ]


@pytest.mark.row("A-431", "A-432", "A-495")
def test_a_bulk_delete_wants_the_words_and_the_password(old_desk, lease):
    desk = old_desk
    users = [new_user(f"d{index}@example.org", name="Gone") for index in range(3)]
    boss = User.objects.create_superuser("boss@example.org")
    _, secret = make_key(users[0])
    hold = ran(users[0], lease, 1)
    dialog = selected(desk, "delete", [*users, boss]).content.decode()
    assert 'data-typed="delete 3 Users"' in dialog
    chosen = [*users, boss]
    for typed, password in (("delete 4 Users", PASSWORD), ("delete 3 Users", "wrong")):
        answer = selected(desk, "delete", chosen, typed=typed, own_password=password, **once())
        assert answer.status_code == 400
    assert not User.objects.filter(deleted_at__isnull=False).exists()
    selected(desk, "delete", chosen, typed="delete 3 Users", own_password=PASSWORD, **once())
    assert User.objects.filter(deleted_at__isnull=False).count() == 3
    boss.refresh_from_db()
    assert boss.is_admin
    gone = User.objects.get(id=users[0].id)
    assert (gone.name, gone.email) == ("", f"{gone.id}@deleted.invalid")
    assert find_key(secret).revoked
    assert Hold.objects.get(id=hold.id).paid == 10
    assert User.objects.create_user("d0@example.org")


@pytest.mark.row("A-495")
def test_a_deleted_user_is_gone_at_once_and_the_rows_that_count_stay(person, admin, lease):
    client = signed_in(person)
    ran(person, lease, 0.1)
    PasswordLink.objects.create(
        user=person, purpose="reset", digest="0" * 64, expires_at=timezone.now()
    )
    delete(user_id=person.id, by=admin.id)
    assert client.get("/profile").status_code == 302
    again = Client().post("/sign-in", {"email": "ada@example.org", "password": PASSWORD})
    assert again.status_code == 400
    assert not PasswordLink.objects.filter(user=person).exists()
    assert Hold.objects.filter(user=person).count() == 1
    with pytest.raises(Refused):
        delete(user_id=person.id, by=admin.id)
    with pytest.raises(ProtectedError):
        User.objects.get(id=person.id).delete()


@pytest.mark.row("A-433")
def test_those_who_suit_no_more_are_told_and_the_others_changed(desk, admin, monkeypatch):
    users = [new_user(f"s{index}@example.org") for index in range(3)]
    from accounts import people

    real = people.suspend_many

    def late(*, user_ids, by):
        suspend(user_id=users[0].id, by=by)
        return real(user_ids=user_ids, by=by)

    monkeypatch.setattr(people, "suspend_many", late)
    told = selected(desk, "suspend", users, **once()).content.decode()
    assert "2 Users were changed." in told
    assert "<strong>s0@example.org</strong>" in told


@pytest.mark.row("A-434", "A-435", "A-436", "A-439", "A-444")
def test_the_page_of_a_user_shows_the_person_whole(desk, admin, lease):
    applied = apply(
        email="ada@example.org",
        name="Ada",
        organization="Society",
        planned_usage="Reads",
        answers=[("Role", ""), ("Links", "https://example.org")],
    )
    user = approve(application_id=applied.id, terms=Terms(tokens=500), by=admin.id)
    key, secret = make_key(user, "laptop")
    ran(user, lease, 0, 40)
    address = user_act(user, "change")
    page = desk.get(address).content.decode()
    for told in (
        "Details",
        "Organization",
        "Discord handle",
        "Budget and usage",
        "API keys",
        "Application",
        "Notes",
        "laptop",
        key.prefix,
        "Reads",
        "Not answered",
        "https://example.org",
        str(user.id),
        "Copy User id",
        "Save details",
    ):
        assert told in page, told
    assert secret not in page
    assert user.password not in page
    saved = desk.post(address, {"organization": "Lab", "discord_handle": "@ada"}, follow=True)
    assert saved.status_code == 200
    user.refresh_from_db()
    assert (user.organization, user.discord_handle) == ("Lab", "@ada")
    assert AdminAction.objects.filter(action="Save details", by=admin).exists()
    desk.post(address, {"organization": "", "discord_handle": "@ada"})
    assert facts_of([User.objects.get(id=user.id)])[user.id].organization == "Society"


@pytest.mark.row("A-437")
def test_budget_and_usage_counts_as_usage_does(desk, person, lease):
    ran(person, lease, 0, 40, "small")
    ran(person, lease, 0, 60, "large")
    ran(person, lease, 40, 1_000, "small")
    make_key(person)
    usage = signed_in(person).get("/usage").content.decode()
    page = desk.get(user_act(person, "change")).content.decode()
    today = timezone.now().astimezone(UTC).date()
    one = desk.get(f"{user_act(person, 'change')}?from={today}&to={today}&model=small")
    assert "100 (94 input, 6 output)" in page
    assert ">100<" in usage
    assert "40 (37 input, 3 output)" in one.content.decode()


@pytest.mark.row("A-440", "A-441")
def test_a_key_gets_a_budget_of_its_own(press, person):
    key, _ = make_key(person)
    grant(user_id=person.id, tokens=1_000, by=None)
    address = f"/admin/accounts/apikey/{key.id}/grant/"
    press(address, tokens="300")
    assert tokens_left(user_id=person.id, key_id=key.id).key_left == 300
    press(address, tokens="1K")
    left = tokens_left(user_id=person.id, key_id=key.id)
    assert left.key_left == 1_300
    assert left.largest_hold == min(max(left.allowance_left, left.budget_left), 1_300)
    ApiKey.objects.filter(id=key.id).update(revoked_at=timezone.now())
    assert "revoked" in press(address, tokens="5").content.decode()


@pytest.mark.row("A-442")
def test_another_number_of_harvests_is_set_and_unset(press, person):
    from harvests.models import HarvestQuota

    press(user_act(person, "harvests"), per_month="7")
    assert HarvestQuota.objects.get(user=person).per_month == 7
    press(user_act(person, "harvests"), per_month="")
    assert not HarvestQuota.objects.exists()


@pytest.mark.row("A-586")
def test_remarks_keep_text_admin_and_time_and_the_user_never_reads_them(press, admin, person):
    press(user_act(person, "remark"), text="Met at the workshop.")
    kept = Remark.objects.get()
    assert (kept.text, kept.by_id, kept.user_id) == ("Met at the workshop.", admin.id, person.id)
    assert (
        "Met at the workshop." in signed_in(admin).get(user_act(person, "change")).content.decode()
    )
    assert "Met at the workshop." not in signed_in(person).get("/profile").content.decode()


@pytest.mark.row("A-392")
def test_the_log_is_never_changed(press, person):
    press(user_act(person, "remark"), text="x")
    from django.db import IntegrityError, transaction

    for change in (
        lambda: AdminAction.objects.update(action="nothing"),
        lambda: AdminAction.objects.all().delete(),
    ):
        with pytest.raises(IntegrityError, match="final"), transaction.atomic():
            change()


@pytest.mark.row("A-494")
def test_no_raw_form_writes_what_is_counted(desk):
    from django.contrib.admin import site
    from django.contrib.admin.utils import flatten_fieldsets
    from django.test import RequestFactory

    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("again@example.org")
    for model, model_admin in site._registry.items():
        if model is User:
            shown = flatten_fieldsets(model_admin.get_fieldsets(request, request.user))
            assert shown == ["organization", "discord_handle", "team"]
            continue
        assert not model_admin.has_change_permission(request), model
        assert not model_admin.has_delete_permission(request), model
        if model_admin.has_add_permission(request):
            assert model.__name__ == "Invite"


@pytest.mark.row("A-496")
def test_the_list_asks_as_much_for_many_users_as_for_few(desk):
    def queries() -> int:
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as asked:
            assert desk.get(users_list()).status_code == 200
        return len(asked)

    for _ in range(3):
        new_user(f"{uuid4().hex}@example.org")
    few = queries()
    for _ in range(40):
        new_user(f"{uuid4().hex}@example.org")
    assert queries() == few <= 25


@pytest.mark.row("A-443")
def test_an_admin_cancels_a_users_harvest(press, person, staff):
    from harvests.models import Harvest

    harvest = Harvest.objects.create(
        user=person,
        key=make_key(person)[0],
        model="reads",
        created_at=timezone.now(),
        size="small",
        n_prompts=3,
        reserved_tokens=10,
        layers=[0],
        projects=False,
    )
    address = f"/admin/harvests/{harvest.id}/cancel"
    assert signed_in(staff).post(address, once()).status_code == 403
    press(address)
    harvest.refresh_from_db()
    assert harvest.state == "cancelled"
    assert AdminAction.objects.filter(action="Cancel", target_id=str(harvest.id)).exists()
