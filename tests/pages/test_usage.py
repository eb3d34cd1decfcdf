"""Usage: what is counted, for which days, keys and models, and what is left."""

import re
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from accounts.keys import pause_key, revoke_key
from billing import report
from billing.grants import grant, grant_to_key, set_budget
from billing.models import Counted, Source, UsageStatus
from billing.owners import Lease
from billing.report import Scope
from billing.standing import standing_of
from pages.usage import presets
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import give_back, make_user_with, pay, take
from tests.pages.client import signed_in

pytestmark = pytest.mark.django_db

TODAY = timezone.now().astimezone(UTC).date()


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def usage(user, query: str = "") -> str:
    return signed_in(user).get(f"/usage{query}").content.decode()


def section(html: str, name: str) -> str:
    """The words of one part of the page."""
    found = re.search(rf'<section [^>]*aria-labelledby="{name}">(.*?)</section>', html, re.DOTALL)
    return words(found[1])


def facts(html: str) -> dict[str, str]:
    """The numbers on top: label to words."""
    part = html.partition('<dl class="facts"')[2].partition("</dl>")[0]
    return {
        words(label): words(rest)
        for label, rest in re.findall(r"<dt>(.*?)</dt>(.*?)</div>", part, re.DOTALL)
    }


@pytest.mark.row("A-168", "A-177", "A-178", "A-179", "A-181", "A-554")
def test_the_page_opens_on_this_month_with_the_four_numbers(lease: Lease) -> None:
    user = make_user_with(allowance=1_000, budget=5_000)
    key, _ = make_key(user)
    pay(take(user, 300, lease, key_id=key.id), lease, 120, 30)
    take(user, 200, lease)
    html = usage(user)
    found = facts(html)
    assert found["Tokens used"] == "150 120 input · 30 output"
    assert found["Completions"] == "2 1 still running"
    following = (TODAY.replace(day=1) + timedelta(days=32)).replace(day=1)
    reset = f"{following.day} {following:%b %Y}"
    assert found["Monthly allowance"] == f"650 of 1,000 left · resets {reset} UTC"
    assert found["Token budget"] == "5,000 tokens left · Request more tokens"
    assert "All keys" in html
    assert "All models" in html
    assert f'name="from" id="from" value="{TODAY.replace(day=1)}"' in html
    assert f'name="to" id="to" value="{TODAY}"' in html


@pytest.mark.row("A-180")
@pytest.mark.parametrize(
    ("used", "state"), [(899, ""), (900, "warn"), (999, "warn"), (1000, "bad")]
)
def test_the_meter_turns_orange_from_90_percent_and_red_once_spent(
    lease: Lease, used: int, state: str
) -> None:
    user = make_user_with(allowance=1_000)
    pay(take(user, used, lease), lease, used)
    assert f'<dd class="meter {state}">' in usage(user)


@pytest.mark.row("A-182")
def test_an_allowance_of_0_leaves_the_budget_alone() -> None:
    user = make_user_with(allowance=0, budget=70)
    found = facts(usage(user))
    assert found["Monthly allowance"].startswith("0 of 0 left")
    assert found["Token budget"].startswith("70 tokens left")


@pytest.mark.row("A-183", "A-184", "A-137")
def test_a_running_hold_comes_whole_from_one_place_and_is_not_shown_apart(lease: Lease) -> None:
    user = make_user_with(allowance=100, budget=500)
    take(user, 80, lease)
    take(user, 30, lease)
    html = usage(user)
    found = facts(html)
    assert found["Monthly allowance"].startswith("20 of 100 left")
    assert found["Token budget"].startswith("470 tokens left")
    assert "held" not in words(html).lower()


@pytest.mark.row("A-185")
def test_a_new_month_has_its_whole_allowance(lease: Lease) -> None:
    user = make_user_with(allowance=100)
    before = datetime.combine(TODAY.replace(day=1), datetime.min.time(), UTC) - timedelta(hours=1)
    pay(take(user, 90, lease, now=before), lease, 90)
    assert standing_of(user.id).allowance_left == 100
    assert standing_of(user.id, now=before).allowance_left == 10
    assert facts(usage(user))["Tokens used"].startswith("0 ")


@pytest.mark.row("A-186", "A-187", "A-188")
def test_a_chosen_key_with_a_budget_shows_it_first_and_the_account_beside(lease: Lease) -> None:
    user = make_user_with(budget=1_000)
    key, _ = make_key(user)
    other, _ = make_key(user)
    grant_to_key(key_id=key.id, tokens=400, by=None)
    pay(take(user, 100, lease, key_id=key.id), lease, 100)
    found = facts(usage(user, f"?key={key.id}"))
    assert next(iter(found)) == "This key's token budget"
    assert found["This key's token budget"] == "300 tokens left"
    assert found["Your account's token budget"].startswith("900 tokens left")
    assert "Your account's monthly allowance" in found
    assert "This key's token budget" not in facts(usage(user, f"?key={other.id}"))
    assert "Your account's token budget" in facts(usage(user, "?model=tiny"))


@pytest.mark.row("A-170", "A-173")
def test_days_of_the_address_are_utc_days_and_at_most_366() -> None:
    user = make_user()
    last = date(2026, 3, 31)
    for days, is_counted in ((366, True), (367, False)):
        first = last - timedelta(days=days - 1)
        html = usage(user, f"?from={first}&to={last}")
        assert (f'value="{first}"' in html) is is_counted
        assert ("A range has at most 366 days." in words(html)) is not is_counted
    html = usage(user, "?from=2026-03-01&to=2026-03-31&model=tiny")
    assert 'hx-get="/usage/numbers?from=2026-03-01&amp;to=2026-03-31&amp;model=tiny"' in html


@pytest.mark.parametrize(
    "query",
    [
        "from=x&to=y",
        "from=2026-03-02&to=2026-03-01",
        "from=2026-03-01",
        "from=0001-01-01&to=0001-01-02",
    ],
)
def test_unreadable_days_open_this_month_and_say_so(query: str) -> None:
    html = usage(make_user(), f"?{query}")
    assert "These are the days of this month." in html
    assert f'value="{TODAY}"' in html


@pytest.mark.row("A-168", "A-169")
def test_the_presets_are_ranges_of_utc_days() -> None:
    found = {each.label: (each.first, each.last) for each in presets(date(2026, 3, 10))}
    assert found == {
        "Today": (date(2026, 3, 10), date(2026, 3, 10)),
        "Last 7 days": (date(2026, 3, 4), date(2026, 3, 10)),
        "Last 30 days": (date(2026, 2, 9), date(2026, 3, 10)),
        "This month": (date(2026, 3, 1), date(2026, 3, 10)),
        "Last month": (date(2026, 2, 1), date(2026, 2, 28)),
    }


@pytest.mark.row("A-170")
def test_a_day_begins_and_ends_at_midnight_utc(lease: Lease) -> None:
    user = make_user_with(budget=1_000)
    for moment in (
        datetime(2026, 3, 9, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 3, 10, 0, 0, tzinfo=UTC),
        datetime(2026, 3, 10, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 3, 11, 0, 0, tzinfo=UTC),
    ):
        pay(take(user, 10, lease, now=moment), lease, 10)
    html = usage(user, "?from=2026-03-10&to=2026-03-10")
    assert facts(html)["Tokens used"].startswith("20 ")
    listed = section(html, "completions")
    assert "2026-03-10 00:00:00" in listed
    assert "2026-03-10 23:59:59" in listed
    assert "2026-03-09" not in listed
    assert "2026-03-11" not in listed


@pytest.mark.row("A-171", "A-172", "A-173", "A-195")
def test_keys_and_models_are_chosen_by_the_address(lease: Lease) -> None:
    user = make_user_with(budget=1_000)
    key, _ = make_key(user, "chosen")
    gone, _ = make_key(user, "gone but used")
    unused, _ = make_key(user, "gone and unused")
    pay(take(user, 10, lease, key_id=key.id, model="a"), lease, 10)
    pay(take(user, 20, lease, key_id=gone.id, model="b"), lease, 20)
    for each in (gone, unused):
        revoke_key(key_id=each.id)
    html = usage(user)
    assert "gone but used (revoked)" in html
    assert "gone and unused" not in html
    assert f"key={key.id}" in html.partition('aria-labelledby="by-key"')[2]
    html = usage(user, f"?key={key.id}")
    assert facts(html)["Tokens used"].startswith("10 ")
    assert f'<option value="{key.id}" selected>' in html
    html = usage(user, "?model=b")
    assert facts(html)["Tokens used"].startswith("20 ")
    assert '<option value="b" selected>' in html


@pytest.mark.row("A-174", "A-127")
@pytest.mark.parametrize("key", ["anothers", "none", "not-a-uuid"])
def test_a_key_that_is_not_ones_own_shows_nothing_of_another(lease: Lease, key: str) -> None:
    other = make_user_with(budget=1_000)
    theirs, _ = make_key(other, "their secret name")
    pay(take(other, 777, lease, key_id=theirs.id), lease, 777)
    user = make_user()
    html = usage(user, f"?key={ {'anothers': theirs.id, 'none': uuid4()}.get(key, key) }")
    assert "not one of yours" in html
    assert "their secret name" not in html
    assert "777" not in words(html)


@pytest.mark.row("A-191", "A-192", "A-193", "A-203", "A-206", "A-555")
def test_the_splits_add_up_and_name_every_source(lease: Lease) -> None:
    user = make_user_with(budget=100_000)
    for number, source in enumerate(Source):
        for back in (0, 2):
            moment = timezone.now() - timedelta(days=back)
            hold = take(user, 500, lease, source=source, model=f"m{number % 2}", now=moment)
            pay(hold, lease, 100 + number, 10 * number)
    found = report.splits(Scope(user.id, TODAY - timedelta(days=5), TODAY))
    for part in (found.days, found.models, found.sources):
        assert sum(sums.tokens for sums in part.values()) == found.total.tokens
        assert sum(sums.completions for sums in part.values()) == found.total.completions == 10
    assert list(found.days) == [TODAY - timedelta(days=2), TODAY]
    html = usage(user, f"?from={TODAY - timedelta(days=5)}&to={TODAY}")
    assert section(html, "by-source") == (
        "By source Source Completions Input tokens Output tokens "
        "API 2 200 0 Playground 2 202 20 Loom 2 204 40 Jobs 2 206 60 Harvests 2 208 80"
    )
    assert section(html, "by-model") == "By model Model Completions Tokens m0 6 732 m1 4 488"
    table = words(html.partition('id="days-table"')[2].partition("</table>")[0])
    assert table.count(" 5 510 100") == 2
    assert len(re.findall(r"<tr data-day", html)) == 2


@pytest.mark.row("A-194", "A-165")
def test_by_key_tells_of_each_key_that_ran_also_of_a_revoked_one(lease: Lease) -> None:
    user = make_user_with(budget=100_000)
    first, _ = make_key(user, "first")
    second, _ = make_key(user, "second")
    make_key(user, "idle")
    grant_to_key(key_id=first.id, tokens=1_000, by=None)
    earlier = datetime.combine(TODAY.replace(day=1), datetime.min.time(), UTC) - timedelta(days=3)
    pay(take(user, 50, lease, key_id=second.id, now=earlier), lease, 50)
    pay(take(user, 200, lease, key_id=first.id), lease, 150, 50)
    pay(take(user, 60, lease, key_id=second.id), lease, 40, 20)
    pause_key(key_id=first.id)
    revoke_key(key_id=second.id)
    text = section(usage(user), "by-key")
    assert re.search(r"first Paused 150 50 0 200 800 \d\d:\d\d UTC", text)
    assert re.search(r"second Revoked 40 20 50 110 – \d\d:\d\d UTC", text)
    assert "idle" not in text


@pytest.mark.row("A-196", "A-197", "A-198", "A-199", "A-200", "A-202", "A-204", "A-117", "A-556")
def test_a_completion_is_listed_with_how_it_ended_and_what_counted(lease: Lease) -> None:
    user = make_user_with(budget=100_000)
    key, _ = make_key(user, "lab")
    at = timezone.now() - timedelta(minutes=10)

    def end(status: UsageStatus, counted: Counted, prompt: int, **fields) -> None:
        hold = take(user, 30, lease, now=at, **fields)
        pay(
            hold,
            lease,
            prompt,
            30 - prompt,
            status=status,
            counted=counted,
            now=at + timedelta(seconds=75),
        )

    end(UsageStatus.COMPLETED, Counted.REPORTED, 11, key_id=key.id)
    end(UsageStatus.FAILED, Counted.PARTIAL, 12, source=Source.PLAYGROUND)
    end(UsageStatus.STOPPED, Counted.HELD, 13, source=Source.LOOM)
    take(user, 30, lease, now=at)
    text = section(usage(user, f"?from={TODAY - timedelta(days=1)}&to={TODAY}"), "completions")
    started = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    assert f"{started} tiny API lab 11 19 Reported 1 m 15 s Completed" in text
    assert f"{started} tiny Playground 12 18 Partial 1 m 15 s Failed" in text
    assert f"{started} tiny Loom 13 17 Held 1 m 15 s Stopped" in text
    assert f"{started} tiny API – – – – Running" in text


@pytest.mark.row("A-201", "A-202")
def test_a_released_completion_is_nowhere_on_the_page(lease: Lease) -> None:
    user = make_user_with(budget=1_000)
    hold = take(user, 30, lease)
    assert facts(usage(user))["Completions"] == "1 1 still running"
    give_back(hold, lease)
    html = usage(user)
    assert facts(html)["Completions"] == "0 0 still running"
    assert "No Completions on these days." in section(html, "completions")


@pytest.mark.row("A-196")
def test_the_list_holds_the_newest_100(lease: Lease) -> None:
    user = make_user_with(budget=10_000)
    now = timezone.now()
    for number in range(102):
        hold = take(user, 5, lease, now=now - timedelta(milliseconds=number))
        pay(hold, lease, 5, 0) if number < 101 else pay(hold, lease, 3, 2)
    html = usage(user, f"?from={TODAY - timedelta(days=1)}&to={TODAY}")
    part = html.partition('aria-labelledby="completions"')[2].partition("</section>")[0]
    assert part.count("<tr>") == 101
    assert facts(html)["Completions"].startswith("102 ")


@pytest.mark.row("A-205")
def test_budget_history_lists_the_newest_100_changes_and_no_spends(lease: Lease) -> None:
    user = make_user_with(budget=1_000)
    key, _ = make_key(user, "lab")
    pay(take(user, 30, lease), lease, 30)
    grant_to_key(key_id=key.id, tokens=250, by=None)
    set_budget(user_id=user.id, tokens=400, by=None)
    text = section(usage(user), "history")
    assert f"{TODAY} Set by an admin Your account -570 400 {TODAY} Grant lab +250 250" in text
    assert "30" not in text.replace(str(TODAY), "")
    for _ in range(100):
        grant(user_id=user.id, tokens=1, by=None)
    html = usage(user)
    part = html.partition('aria-labelledby="history"')[2].partition("</section>")[0]
    assert part.count("<tr>") == 101


def test_the_number_of_queries_is_fixed(lease: Lease, django_assert_num_queries) -> None:
    user = make_user_with(budget=1_000_000)
    browser = signed_in(user)

    def work(times: int) -> None:
        for number in range(times):
            key, _ = make_key(user) if number < 5 else (None, "")
            hold = take(user, 10, lease, key_id=key and key.id, model=f"m{number}")
            pay(hold, lease, 10)

    work(3)
    with django_assert_num_queries(13):
        browser.get("/usage")
    work(8)
    with django_assert_num_queries(13):
        browser.get("/usage")


@pytest.mark.row("A-101", "A-102", "A-103", "A-104", "A-551")
@pytest.mark.parametrize(
    ("used", "says"),
    [
        (899, None),
        (900, "You have 100 tokens left. Request more"),
        (1_000, "You have no tokens left. Request more"),
    ],
)
def test_the_notice_stands_on_every_page_from_90_percent(
    lease: Lease, used: int, says: str | None
) -> None:
    user = make_user_with(allowance=600, budget=400)
    for tokens in (min(used, 600), max(0, used - 600)):
        if tokens:
            pay(take(user, tokens, lease), lease, tokens)
    for path in ("/jobs", "/usage", "/api-keys", "/usage/request"):
        html = signed_in(user).get(path).content.decode()
        notice = re.search(r'<p class="notice" id="notice".*?</p>', html, re.DOTALL)
        assert (words(notice[0]) if notice else None) == says, path
        assert not notice or 'href="/usage/request"' in notice[0]


@pytest.mark.row("A-106")
def test_a_closed_notice_comes_back_when_nothing_is_left(lease: Lease) -> None:
    user = make_user_with(allowance=1_000)
    pay(take(user, 950, lease), lease, 950)
    browser = signed_in(user)
    browser.cookies["notice"] = "closed"
    assert 'id="notice"' not in browser.get("/jobs").content.decode()
    pay(take(user, 50, lease), lease, 50)
    assert "You have no tokens left." in browser.get("/jobs").content.decode()
