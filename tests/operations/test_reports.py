"""Analytics, Spend and Models inside the admin: what they count, and who may do what."""

import csv
import io
import random
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import Q, Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from access.models import Application
from accounts.models import AdminAction, User
from billing import spend_stop
from billing.grants import grant
from billing.models import (
    Counted,
    DailyUsage,
    Ending,
    HourlyUsage,
    OwnerKind,
    Source,
    UnpaidRequests,
    UsageStatus,
)
from billing.owners import Lease, register
from billing.usage import WEEKS
from feedback.models import Kind, Note
from operations import analytics, reports, spend, traffic
from operations.analytics import Days, near, paces
from operations.hours import periods, users_of_hours, whole_weeks
from operations.models import SpendKind, SpendSample, WarmWindow
from operations.sums import Split, summed
from operations.tables import Column, Table
from tests.accounts.sessions import sign_in
from tests.billing.factory import give_back, make_user_with, pay, take

pytestmark = pytest.mark.django_db

DAY = date(2031, 3, 10)
DAYS = Days(DAY, DAY + timedelta(days=2))
AT = datetime(2031, 3, 10, 22, 30, tzinfo=UTC)
TABS = ("users", "budget", "platform", "usage", "spend")


@pytest.fixture(autouse=True)
def models(tiny_catalogue) -> None:
    """The tiny catalogue, for the page Models."""


@pytest.fixture
def lease() -> Lease:
    return register(OwnerKind.WEB)


@pytest.fixture
def admin() -> Client:
    return signed_in(User.objects.create_superuser("root@example.org"))


def signed_in(user: User, *, ago: float = 0) -> Client:
    return sign_in(Client(), user, ago=ago)


def ran(user, lease, at=AT, prompt=10, completion=5, status=UsageStatus.COMPLETED, **how):
    hold = take(user, 1000, lease, now=at, **how)
    pay(hold, lease, prompt, completion, status=status, counted=Counted.PARTIAL, now=at)
    return hold


def rows(table: Table | None) -> list[tuple[object, ...]]:
    assert table is not None
    return [tuple(row) for row in table.rows]


def joined_at(user: User, at: datetime) -> User:
    User.objects.filter(id=user.id).update(created_at=at)
    return user


def facts(report) -> dict[str, str]:
    return {fact.label: fact.text for fact in report.facts}


@pytest.mark.row("A-463", "A-465", "A-466", "A-467", "A-399", "A-564")
def test_new_users_and_those_who_ran_within_a_day_leave_the_team_out(lease):
    quick, slow, never, team, staff = (make_user_with(budget=10**6) for _ in range(5))
    for user in (quick, slow, never, team, staff):
        joined_at(user, AT)
    User.objects.filter(id=team.id).update(team=True)
    User.objects.filter(id=staff.id).update(is_staff=True)
    early = joined_at(make_user_with(budget=10**6), AT - timedelta(days=30))
    joined_at(make_user_with(), DAYS.ends)
    daily = rows(analytics.users(DAYS).table("daily"))
    assert [row[1] for row in daily] == [3, 0, 0]
    for user in (quick, team, staff, early):
        ran(user, lease, AT + timedelta(hours=23, minutes=59))
    ran(slow, lease, AT + timedelta(hours=24, minutes=1))
    give_back(take(never, 10, lease, now=AT + timedelta(hours=1)), lease)
    Application.objects.create(
        email="a@example.org", name="A", organization="O", planned_usage="p", rules_agreed_at=AT
    )
    found = facts(analytics.users(DAYS))
    assert found["Applications waiting"] == "1"
    assert found["New Users"] == "3"
    assert found["Ran a Completion within 24 hours"] == "1"


@pytest.mark.row("A-468", "A-462")
def test_users_active_lately_and_the_numbers_of_each_day(lease):
    one, other, team = (make_user_with(budget=10**6) for _ in range(3))
    User.objects.filter(id=team.id).update(team=True)
    now = timezone.now()
    for user, ago in ((one, 0), (one, 2), (other, 7), (team, 0)):
        ran(user, lease, now - timedelta(days=ago))
    today = now.astimezone(UTC).date()
    report = analytics.users(Days(today - timedelta(days=8), today))
    assert facts(report)["Active in the last 7 days"] == "1"
    # Whatever the days.
    assert facts(analytics.users(DAYS))["Active in the last 7 days"] == "1"
    daily = {row[0]: row[2:5] for row in rows(report.table("daily"))}
    assert daily[today] == (1, 1, 15)
    assert daily[today - timedelta(days=1)] == (0, 0, 0)
    assert daily[today - timedelta(days=7)] == (1, 1, 15)
    assert len(daily) == 9


@pytest.mark.row("A-469")
def test_feedback_of_each_day_counts_anonymous_notes_and_leaves_the_team_out():
    one, team = make_user_with(), make_user_with()
    User.objects.filter(id=team.id).update(team=True)
    for user, ago in ((one, 0), (None, 0), (team, 0), (one, 1)):
        Note.objects.create(kind=Kind.choices[0][0], text="x", user=user, sent_at=AT)
        Note.objects.filter(user=user).update(sent_at=AT + timedelta(days=ago))
    daily = {row[0]: row[5] for row in rows(analytics.users(DAYS).table("daily"))}
    assert daily == {DAY: 1, DAY + timedelta(days=1): 2, DAY + timedelta(days=2): 0}


@pytest.mark.row("A-470", "A-472", "A-565", "A-463")
def test_the_closest_to_their_allowance_and_the_day_it_runs_out(lease):
    now = datetime(2031, 3, 11, tzinfo=UTC)
    users = {
        name: make_user_with(allowance=1000) for name in ("spent", "close", "half", "slow", "team")
    }
    User.objects.filter(id=users["team"].id).update(team=True)
    used = {"spent": 1000, "close": 900, "half": 500, "slow": 30, "team": 1000}
    for name, tokens in used.items():
        ran(users[name], lease, datetime(2031, 3, 5, tzinfo=UTC), tokens, 0)
    # Another month's use says nothing of this one.
    ran(users["slow"], lease, datetime(2031, 2, 5, tzinfo=UTC), 900, 0)
    found = {pace.email: (pace.used, pace.runs_out) for pace in paces(now, 10)}
    assert found == {
        users["spent"].email: (1000, date(2031, 3, 11)),
        # 90 tokens a day for ten days: 100 last for a day and a bit.
        users["close"].email: (900, date(2031, 3, 12)),
        users["half"].email: (500, date(2031, 3, 21)),
        users["slow"].email: (30, None),
    }
    assert [pace.email for pace in paces(now, 2)] == [users["spent"].email, users["close"].email]
    assert near(now) == (1, 1)


@pytest.mark.row("A-471")
def test_requests_that_the_budget_could_not_hold_are_counted_by_day():
    for day, ending, n in ((DAY, Ending.BUDGET, 4), (DAY, Ending.TIMEOUT, 9)):
        UnpaidRequests.objects.create(day=day, source="api", model="m", ending=ending, requests=n)
    report = analytics.budget(DAYS)
    assert facts(report)["Requests that the Budget could not hold"] == "4"
    assert [row[1] for row in rows(report.table("refused"))] == [4, 0, 0]


@pytest.mark.row("A-473", "A-474", "A-476", "A-566")
def test_requests_by_ending_source_and_model(lease):
    user = make_user_with(budget=10**6)
    ran(user, lease)
    ran(user, lease, source=Source.JOB, model="large")
    ran(user, lease, status=UsageStatus.FAILED)
    ran(user, lease, status=UsageStatus.STOPPED)
    for ending, n in ((Ending.SERVER_ERROR, 2), (Ending.TIMEOUT, 3), (Ending.CLIENT_ERROR, 5)):
        UnpaidRequests.objects.create(day=DAY, source="api", model="m", ending=ending, requests=n)
    report = traffic.platform(DAYS)
    table = report.table("endings")
    labels = [column.label for column in table.columns]
    first = dict(zip(labels, rows(table)[0], strict=True))
    assert (first["Completed"], first["Failed"], first["Stopped"]) == (2, 1, 1)
    assert (first["Server error"], first["Timeout"], first["Client error"]) == (2, 3, 5)
    sources = {row[0]: row[1:] for row in rows(report.table("sources"))}
    assert sources == {
        "API": (3, 30, 15), "Playground": (0, 0, 0), "Loom": (0, 0, 0), "Jobs": (1, 10, 5),
        "Harvests": (0, 0, 0),
    }  # fmt: skip
    assert rows(report.table("models")) == [("tiny", 3, 30, 15), ("large", 1, 10, 5)]


@pytest.mark.row("A-475", "A-463")
def test_users_of_each_hour_as_five_clocks_show_it(lease):
    one, other, team, staff = (make_user_with(budget=10**6) for _ in range(4))
    User.objects.filter(id=team.id).update(team=True)
    User.objects.filter(id=staff.id).update(is_staff=True)
    ran(one, lease, AT)
    ran(one, lease, AT + timedelta(days=1))
    ran(other, lease, AT + timedelta(minutes=20))
    for user in (team, staff):
        ran(user, lease, AT)
    table = traffic.platform(DAYS).table("hours")
    zones = [column.label for column in table.columns][1:]
    assert zones == ["UTC", "Europe/Prague", "Europe/London", "America/New_York",
                     "America/Los_Angeles"]  # fmt: skip
    counted = {
        zone: {row[0]: row[1 + place] for row in rows(table) if row[1 + place]}
        for place, zone in enumerate(zones)
    }
    # 10 March: New York has changed its clock, Prague has not.
    assert counted["UTC"] == {"22:00": 2}
    assert counted["Europe/Prague"] == {"23:00": 2}
    assert counted["America/New_York"] == {"18:00": 2}


PLAIN = """
SELECT extract(hour FROM hour AT TIME ZONE %s)::int, count(DISTINCT user_id)
FROM billing_hourlyusage WHERE hour >= %s AND hour < %s GROUP BY 1
"""


@pytest.mark.row("A-475")
def test_hours_of_many_clocks_are_those_that_each_clock_shows():
    """Over changes of the clock, and where clocks are half an hour apart, as the database says."""
    draw = random.Random(5)
    begins, ends = datetime(2031, 3, 1, tzinfo=UTC), datetime(2031, 11, 30, tzinfo=UTC)
    hours = int((ends - begins).total_seconds()) // 3600
    users = [make_user_with() for _ in range(7)]
    drawn = [begins + timedelta(hours=draw.randrange(hours)) for _ in range(200)]
    HourlyUsage.objects.bulk_create(
        HourlyUsage(user=users[n % 7], hour=hour, model=str(n)) for n, hour in enumerate(drawn)
    )
    with connection.cursor() as cursor:
        for user in users:
            cursor.execute(WEEKS, [user.id])
    names = ["UTC", "Europe/Prague", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe",
             "Pacific/Chatham", "America/St_Johns"]  # fmt: skip
    zones = [ZoneInfo(name) for name in names]
    assert len(periods(zones, begins, ends)) > 5
    found = users_of_hours(zones, begins, ends)
    for name, of_zone in zip(names, found, strict=True):
        with connection.cursor() as cursor:
            cursor.execute(PLAIN, [name, begins, ends])
            assert of_zone == dict(cursor.fetchall()), name
    weeks, rest = whole_weeks([each.begins for each in periods(zones, begins, ends)], begins, ends)
    assert len(weeks) > 25
    between = Q()
    for first, last in rest:
        between |= Q(hour__gte=first, hour__lt=last)
    # What lies in the whole weeks is read from their sums alone.
    assert HourlyUsage.objects.exclude(between).delete()[0] > 100
    assert users_of_hours(zones, begins, ends) == found


@pytest.mark.row("A-478")
def test_users_of_any_days_are_told_apart_as_their_days_say(lease):
    """Whole weeks and the days beside them add up to the days, wherever a report begins."""
    draw = random.Random(8)
    users = [make_user_with(budget=10**6) for _ in range(3)]
    for _ in range(60):
        moment = AT + timedelta(days=draw.randrange(30), hours=draw.randrange(24))
        model = draw.choice(["tiny", "large"])
        ran(draw.choice(users), lease, moment, draw.randrange(1, 9), 2, model=model)
    for length in (*range(1, 9), 13, 14, 15, 21, 30):
        first = DAY + timedelta(days=draw.randrange(31 - length))
        last = first + timedelta(days=length - 1)
        for model in ("", "tiny"):
            right = DailyUsage.objects.filter(day__range=(first, last), model__startswith=model)
            tokens = right.order_by().values_list("user").annotate(
                n=Sum("completions"), given=Sum("prompt_tokens"), taken=Sum("completion_tokens")
            )  # fmt: skip
            found = summed(Days(first, last, model=model), (Split.USER, Split.DAY))
            assert {user: sums.counted for user, sums in found[Split.USER].items()} == {
                user: tuple(numbers) for user, *numbers in tokens
            }, (first, length, model)
            assert sum(sums.tokens for sums in found[Split.DAY].values()) == sum(
                sums.tokens for sums in found[Split.USER].values()
            )
            one = summed(Days(first, last, users[0].id, model), (Split.USER, Split.MODEL))
            assert one[Split.USER].get(users[0].id) == (found[Split.USER].get(users[0].id))


def count(model: str, minutes: int, until: datetime, price: str = "36.32") -> None:
    last = until.replace(second=0, microsecond=0)
    SpendSample.objects.bulk_create(
        SpendSample(
            minute=last - timedelta(minutes=n),
            model=model,
            environment="production",
            kind=SpendKind.SERVING,
            containers=1,
            price_per_hour=Decimal(price),
        )
        for n in range(minutes)
    )


@pytest.mark.row("A-477", "A-487")
def test_the_spend_of_platform_is_that_of_spend():
    count("large", 120, AT)
    count("small", 60, AT, "1.95")
    spend.roll_up(AT)
    table = traffic.platform(DAYS).table("spend")
    assert rows(table)[0] == (DAY, Decimal("74.59"), Decimal("72.64"), Decimal("1.95"))
    assert [column.label for column in table.columns] == ["Day", "All models", "large", "small"]
    assert rows(reports.spend_report(DAYS).table("spend")) == rows(table)


@pytest.mark.row("A-488")
def test_the_parts_of_who_used_a_model_add_up_to_its_spend(lease):
    now = timezone.now()
    users = [make_user_with(budget=10**6) for _ in range(3)]
    for user, tokens in zip(users, (100, 200, 33), strict=True):
        ran(user, lease, now - timedelta(hours=3), tokens, 0, model="large")
    ran(users[0], lease, now - timedelta(hours=60), 500, 0, model="large")
    count("large", 100, now)
    count("idle", 60, now, "10")
    found = rows(traffic.used_lately(now))
    parts = [row for row in found if row[0] == "large"]
    assert [row[3] for row in parts] == [200, 100, 33]
    assert sum(row[4] for row in parts) == (Decimal("36.32") * 100 / 60).quantize(Decimal("0.01"))
    assert ("idle", "nobody", 0, 0, Decimal(10)) in found


@pytest.mark.row("A-488")
def test_many_users_of_a_model_are_summed_and_still_add_up(lease, monkeypatch):
    monkeypatch.setattr(traffic, "OF_A_MODEL", 2)
    now = timezone.now()
    for tokens in (100, 200, 33, 34, 35):
        ran(make_user_with(budget=10**6), lease, now - timedelta(hours=3), tokens, 0, model="large")
    count("large", 60, now)
    found = rows(traffic.used_lately(now))
    assert [row[1:4] for row in found[2:]] == [("3 others", 3, 102)]
    assert [row[3] for row in found] == [200, 100, 102]
    assert sum(row[4] for row in found) == Decimal("36.32")


@pytest.mark.row("A-461", "A-480")
def test_every_table_says_how_it_is_counted():
    for tab in reports.TABS:
        for table in tab.report(DAYS).tables:
            assert len(table.definition) > 20, (tab.name, table.name)


@pytest.mark.row("A-478", "A-479", "A-567", "A-444")
def test_usage_of_all_or_of_one_user_or_model(lease):
    one, other = (make_user_with(budget=10**6) for _ in range(2))
    ran(one, lease, prompt=10, completion=5)
    mine = ran(one, lease, prompt=1, completion=1, model="large")
    ran(other, lease, prompt=100, completion=0, source=Source.LOOM)
    grant(user_id=one.id, tokens=777, by=other.id)
    report = traffic.usage_report(DAYS)
    assert rows(report.table("users")) == [
        (other.email, 1, 100, 0),
        (one.email, 2, 11, 6),
    ]
    assert len(rows(report.table("completions"))) == 3
    assert rows(report.table("changes"))[0][4:] == (777, 10**6 + 777 - 17, other.email)
    of_one = traffic.usage_report(Days(DAY, DAY, user_id=one.id))
    assert [row[0] for row in rows(of_one.table("models"))] == ["tiny", "large"]
    assert {row[1] for row in rows(of_one.table("completions"))} == {one.email}
    of_model = traffic.usage_report(Days(DAY, DAY, model="large"))
    assert rows(of_model.table("users")) == [(one.email, 1, 1, 1)]
    assert [row[7] for row in rows(of_model.table("completions"))] == [mine.request_id]
    assert not rows(traffic.usage_report(Days(DAY - timedelta(days=9), DAY - timedelta(days=8)))
                    .table("completions"))  # fmt: skip


# Pages


@pytest.mark.row("A-459", "A-460", "A-461", "A-464")
@pytest.mark.parametrize("tab", TABS)
def test_a_tab_opens_with_its_days_its_tables_and_their_csv(admin, lease, tab):
    ran(make_user_with(budget=10**6), lease, timezone.now())
    address = reverse("admin:analytics_tab", args=[tab])
    page = admin.get(address).content.decode()
    today = timezone.now().astimezone(UTC).date()
    assert f'value="{today.replace(day=1)}"' in page
    assert f'value="{today}"' in page
    assert "Refresh" in page
    assert "Could not refresh" in page
    assert ("Definitions" in page) is (tab in ("users", "budget", "platform"))
    found = admin.get(f"{address}?from=2031-03-10&to=2031-03-12").content.decode()
    assert 'value="2031-03-10"' in found
    assert re.findall(
        r'href="(/admin/analytics/\w+)\?from=2031-03-10&amp;to=2031-03-12"', found
    ) == [f"/admin/analytics/{name}" for name in TABS]
    links = re.findall(r'href="(/admin/analytics/\w+/[\w-]+\.csv\?[^"]*)"', page)
    assert links
    for link in links:
        answer = admin.get(link.replace("&amp;", "&"))
        assert answer["content-type"].startswith("text/csv")
        assert len(list(csv.reader(io.StringIO(answer.content.decode())))) >= 1
    part = admin.get(f"{address}/numbers").content.decode()
    assert "<html" not in part
    assert "<section" in part


@pytest.mark.row("A-459")
def test_a_range_that_cannot_be_applied_is_not_counted(admin):
    page = admin.get("/admin/analytics/users?from=2020-01-01&to=2031-01-01").content.decode()
    assert "at most 366 days" in page
    assert admin.get("/admin/analytics/users?from=x&to=y").status_code == 200
    assert admin.get("/admin/analytics/nothing").status_code == 404
    assert admin.get("/admin/analytics/usage?user=x").status_code == 200
    assert admin.get("/admin/analytics/users/nothing.csv").status_code == 404


@pytest.mark.row("A-390")
@pytest.mark.parametrize("tab", ["usage", "spend"])
def test_the_addresses_of_former_tabs_lead_to_analytics(admin, tab):
    answer = admin.get(f"/admin/{tab}?from=2031-03-10")
    assert answer.status_code == 302
    assert answer["location"] == f"/admin/analytics/{tab}?from=2031-03-10"


@pytest.mark.row("A-479")
def test_other_days_keep_the_user_and_the_model(admin, lease):
    user = make_user_with(budget=10**6)
    ran(user, lease, timezone.now())
    query = f"user={user.id}&model=tiny"
    page = admin.get(f"/admin/analytics/usage?{query}").content.decode()
    today = timezone.now().astimezone(UTC).date()
    assert f"?from={today}&amp;to={today}&amp;user={user.id}&amp;model=tiny" in page
    assert f'<option value="{user.id}" selected>' in page
    assert "<option selected>tiny</option>" in page


@pytest.mark.row("A-483")
def test_the_stop_asks_for_the_password_once_where_the_sign_in_is_old():
    user = User.objects.create_superuser("night@example.org", "a difference engine")
    phone, lock = signed_in(user, ago=3_600), reverse("admin:spend_lock")
    page = phone.post(lock, {"reason": "at night"}).content.decode()
    assert "Your password" in page
    assert 'name="reason" value="at night"' in page
    written = {"once": uuid4().hex, "reason": "at night", "own_password": "guessed"}
    assert phone.post(lock, written).status_code == 400
    assert not spend_stop.is_on()
    written["own_password"] = "a difference engine"
    page = phone.post(lock, written, follow=True).content.decode()
    assert "New GPU work is paused</strong>" in page
    assert spend_stop.current().note == "at night"
    # The password counts for some minutes, so that Clear is one press.
    page = phone.post(reverse("admin:spend_clear"), follow=True).content.decode()
    assert "New GPU work is not paused" in page
    spend_stop.lock(by=None)
    old = signed_in(user, ago=3_600)
    assert "Your password" in old.post(reverse("admin:spend_clear")).content.decode()
    assert spend_stop.is_on()


@pytest.mark.row("A-482", "A-483", "A-489", "A-392", "A-568")
def test_lock_and_clear_are_said_kept_and_logged(admin):
    page = admin.get("/admin/analytics/spend").content.decode()
    assert "New GPU work is not paused" in page
    answer = admin.post(reverse("admin:spend_lock"), {"reason": "the class is over"}, follow=True)
    page = answer.content.decode()
    assert "New GPU work is paused</strong>" in page
    assert "the class is over" in page
    stop = spend_stop.current()
    assert stop.started_by.email == "root@example.org"
    page = admin.post(reverse("admin:spend_clear"), follow=True).content.decode()
    assert "New GPU work is not paused" in page
    assert not spend_stop.is_on()
    spend_stop.pause_for_amount(spend=Decimal("3001.50"))
    changes = rows(reports.spend_report(DAYS).table("changes"))
    assert [row[1:] for row in changes] == [
        ("Pause at the stop amount", "the clock", "$3,001.50"),
        ("Clear", "root@example.org", ""),
        ("Lock", "root@example.org", "the class is over"),
    ]
    assert lines("billing.spendstop") == [
        ("Lock", "root@example.org", "the class is over"),
        ("Clear", "root@example.org", ""),
    ]
    # The pause is on: a Lock changes nothing, and says so nowhere.
    admin.post(reverse("admin:spend_lock"), {"reason": "again"})
    assert spend_stop.current().reason == "amount"
    assert len(lines("billing.spendstop")) == 2
    listed = admin.get("/admin/accounts/adminaction/?kind=billing.spendstop").content.decode()
    assert "the class is over" in listed
    stops = admin.get("/admin/billing/spendstop/").content.decode()
    for told in ("the class is over", "root@example.org", "3001.50"):
        assert told in stops


def lines(kind: str) -> list[tuple[str, str, str]]:
    """What the log says of one kind of object."""
    found = AdminAction.objects.filter(kind=kind).order_by("id")
    return list(found.values_list("action", "by__email", "details"))


@pytest.mark.row("A-489")
def test_the_newest_ten_changes_of_the_stop_are_shown():
    for number in range(7):
        spend_stop.lock(by=None, note=f"number {number}")
        spend_stop.clear(by=None)
    found = rows(reports.spend_report(DAYS).table("changes"))
    assert [row[1] for row in found] == ["Clear", "Lock"] * 5
    assert [row[3] for row in found if row[3]] == [f"number {n}" for n in (6, 5, 4, 3, 2)]


@pytest.mark.row("A-480", "A-481", "A-492")
def test_the_top_of_spend(admin):
    page = admin.get("/admin/analytics/spend").content.decode()
    assert "An estimate from a count of containers each minute, not the provider&#x27;s bill." in (
        page.replace("provider's", "provider&#x27;s")
    )
    found = {fact.label: fact for fact in reports.spend_report(DAYS).facts}
    assert found["Pauses new GPU work at"].text == "$3,000.00"
    assert found["Warns the team at"].text == "$2,000.00"
    assert found["Containers last counted"].text == "never"
    assert "stale" in found["Containers last counted"].definition
    assert found["Last 24 hours"].text == found["The pause counts"].text == "not known"
    count("large", 60, timezone.now() - timedelta(minutes=10))
    found = {fact.label: fact for fact in reports.spend_report(DAYS).facts}
    assert found["Last 24 hours"].text == found["The pause counts"].text == "$36.32, stale"
    SpendSample.objects.all().delete()
    count("large", 60, timezone.now())
    found = {fact.label: fact for fact in reports.spend_report(DAYS).facts}
    assert found["Last 24 hours"].text == found["The pause counts"].text == "$36.32"
    assert found["Containers last counted"].definition == ""


@pytest.mark.row("A-447", "A-448", "A-449", "A-450", "A-451", "A-453", "A-454", "A-456", "A-563")
@pytest.mark.row("A-392")
def test_windows_are_added_with_their_cost_and_removed(admin, monkeypatch):
    priced(monkeypatch)
    form = reverse("admin:add_window", args=["tiny"])
    assert 'value="UTC"' in admin.get(form).content.decode()
    page = admin.get("/admin/models").content.decode()
    row = page.partition('<th scope="row">tiny</th>')[2].partition("</tr>")[0]
    assert 'data-label="A warm hour">$36.32</td>' in row
    assert 'data-label="Floor">0</td>' in row
    assert f'<a href="{form}">Add a window</a>' in row
    assert f'<a href="{reverse("admin:warm_now", args=["tiny"])}">Warm now</a>' in row
    fields = {"days": ["0", "1"], "opens": "22:00", "closes": "06:00", "time_zone": "UTC"}
    cost = admin.get(reverse("admin:window_cost", args=["tiny"]), fields).json()["cost"]
    assert cost == "$581.12 a week, for 16 hours"
    assert admin.get(reverse("admin:window_cost", args=["tiny"]), {}).json() == {"cost": ""}
    for _ in range(2):
        page = admin.post(form, fields, follow=True).content.decode()
    assert "Monday, Tuesday, 22:00 to 06:00 UTC" in page
    # Two equal windows are paid once.
    assert "$581.12</td>" in page
    assert WarmWindow.objects.count() == 2
    window = WarmWindow.objects.first()
    assert window.made_by.email == "root@example.org"
    remove = reverse("admin:remove_window", args=[window.id])
    assert "It costs $581.12 a week" in admin.get(remove).content.decode()
    admin.post(remove)
    window.refresh_from_db()
    assert window.removed_at
    assert admin.get(remove).status_code == 404
    when = "tiny: Monday, Tuesday, 22:00 to 06:00 UTC"
    assert lines("operations.warmwindow") == [
        ("Add a window", "root@example.org", when),
        ("Add a window", "root@example.org", when),
        ("Remove the window", "root@example.org", when),
    ]


@pytest.mark.row("A-453")
def test_a_warm_hour_of_the_contracts_models_costs_what_the_catalogue_says():
    from inference.catalogue import load_catalogue

    served = load_catalogue(settings.BASE_DIR / "deploy" / "catalogue-acs.toml")
    assert {model.id: str(model.price_per_hour) for model in served.models} == {
        "llama-8b": "1.95", "llama-405b": "36.32", "trinity-truebase": "36.32",
    }  # fmt: skip
    assert [spend.gpus_of(model) for model in served.models] == [1, 8, 8]


@pytest.mark.row("A-452")
def test_warm_now_shows_its_cost_and_takes_1_to_24_hours(admin, monkeypatch):
    priced(monkeypatch)
    form = reverse("admin:warm_now", args=["tiny"])
    assert "$36.32, and it ends by itself" in admin.get(form).content.decode()
    cost = admin.get(reverse("admin:window_cost", args=["tiny"]), {"hours": "3"}).json()["cost"]
    assert cost == "$108.96, and it ends by itself"
    assert admin.post(form, {"hours": "25"}).status_code == 400
    assert not WarmWindow.objects.exists()
    page = admin.post(form, {"hours": "2"}, follow=True).content.decode()
    assert "now, until" in page
    assert "$72.64" in page


@pytest.mark.row("A-457")
def test_the_floor_is_0_while_new_work_is_paused(admin):
    admin.post(reverse("admin:warm_now", args=["tiny"]), {"hours": "2"})

    def floor() -> int:
        from operations.model_pages import model_rows

        return {row.model.id: row.floor for row in model_rows(timezone.now())}["tiny"]

    assert floor() == 1
    spend_stop.lock(by=None)
    assert floor() == 0
    assert "no window keeps a model warm" in admin.get("/admin/models").content.decode()
    spend_stop.clear(by=None)
    assert floor() == 1


@pytest.mark.row("A-458")
def test_slow_starts_are_told(admin, monkeypatch):
    priced(monkeypatch, start_seconds=1260)
    page = admin.get("/admin/models").content.decode()
    assert "takes 17 to 25 minutes: let a window begin 30 to 45 minutes early" in page


def priced(monkeypatch, **changes) -> None:
    """Give the default model the price of a large one."""
    from inference import catalogue

    served = catalogue.current()
    dear = served.default.model_copy(update={"price_per_hour": Decimal("36.32"), **changes})
    others = [entry for entry in served.models if entry.id != dear.id]
    monkeypatch.setattr(
        catalogue, "current", lambda: served.model_copy(update={"models": (dear, *others)})
    )


READS = [
    "/admin/models",
    *(f"/admin/analytics/{tab}" for tab in TABS),
    "/admin/analytics/users/daily.csv",
]
WRITES = [
    "/admin/spend/lock",
    "/admin/spend/clear",
    "/admin/models/tiny/window",
    "/admin/models/tiny/warm",
]


@pytest.mark.row("A-391")
def test_staff_read_and_only_admins_change():
    staff = User.objects.create_user("staff@example.org")
    User.objects.filter(id=staff.id).update(is_staff=True)
    staff.refresh_from_db()
    user = User.objects.create_user("user@example.org")
    by_staff, by_user, anonymous = signed_in(staff), signed_in(user), Client()
    for address in READS:
        assert by_staff.get(address).status_code == 200, address
        assert by_user.get(address).status_code == 404, address
        assert anonymous.get(address).status_code == 302, address
    for address in WRITES:
        assert by_staff.post(address, {"hours": "1"}).status_code == 403, address
        assert by_user.post(address, {"hours": "1"}).status_code == 404, address
        assert anonymous.post(address, {"hours": "1"}).status_code == 302, address
    assert not spend_stop.is_on()
    assert not WarmWindow.objects.exists()


@pytest.mark.row("A-391")
def test_a_suspended_admin_has_no_role(admin):
    User.objects.update(suspended_at=timezone.now())
    assert admin.post("/admin/spend/lock").status_code in (302, 404)
    assert not spend_stop.is_on()


def test_a_page_asks_a_fixed_number_of_queries(admin, lease):
    def queries() -> dict[str, int]:
        found = {}
        for address in READS:
            with CaptureQueriesContext(
                connection,
            ) as made:
                assert admin.get(address).status_code == 200
            found[address] = len(made)
        return found

    ran(make_user_with(budget=10**6), lease, timezone.now())
    queries()
    before = queries()
    for _ in range(5):
        ran(make_user_with(budget=10**6), lease, timezone.now(), model="other")
    assert queries() == before


def test_csv_runs_no_formula_and_keeps_numbers_plain():
    table = Table(
        "t",
        "T",
        (Column("User"), Column("Spend", "$"), Column("Time")),
        [("=cmd|' /C calc'!A0", Decimal("1234.5"), AT), ("a,b", None, None)],
    )
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["User", "Spend", "Time"],
        ["'=cmd|' /C calc'!A0", "1234.5", "2031-03-10T22:30:00+00:00"],
        ["a,b", "", ""],
    ]
    assert [cell.text for cell in table.shown[0]][1:] == ["$1,234.50", "2031-03-10 22:30"]


def test_the_settings_of_reports_are_the_contracts():
    assert settings.BASALT.spend_stop_dollars == 3000
    assert len(settings.BASALT.analytics_time_zones) == 5
