"""When warm windows are open, across changes of the clock, and what they cost."""

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.models import WarmWindow
from operations.windows import (
    Span,
    cost,
    day_names,
    days_sum,
    hours_a_week,
    hours_between,
    is_time_zone,
    moment_of,
    open_span,
    spans_of,
    union,
)

EVERY_DAY = tuple(range(7))
SUNDAY = (6,)
# In Prague the clock goes from 2 to 3 on 29 March 2026, and from 3 to 2 on 25 October 2026.
SPRING = datetime(2026, 3, 29, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)


def weekly(opens: str, closes: str, zone: str = "UTC", days=EVERY_DAY) -> WarmWindow:
    return WarmWindow(
        model="m",
        days=days_sum(days),
        opens=time.fromisoformat(opens),
        closes=time.fromisoformat(closes),
        time_zone=zone,
    )


def on_day(window: WarmWindow, day: datetime) -> list[str]:
    """The spans that begin on a UTC day, as times of UTC."""
    spans = spans_of(window, day - timedelta(days=3), day + timedelta(days=3))
    return [
        f"{span.start:%H:%M}-{span.end:%H:%M}"
        for span in spans
        if day <= span.start < day + timedelta(days=1)
    ]


@pytest.mark.row("A-449")
def test_a_weekly_window_opens_on_its_days_alone():
    window = weekly("09:00", "17:00", days=(0, 4))
    monday = datetime(2026, 6, 1, tzinfo=UTC)
    spans = spans_of(window, monday, monday + timedelta(days=7))
    assert [(span.start, span.end) for span in spans] == [
        (monday.replace(hour=9), monday.replace(hour=17)),
        (monday.replace(day=5, hour=9), monday.replace(day=5, hour=17)),
    ]


@pytest.mark.row("C-627", "A-450")
@pytest.mark.parametrize(
    ("opens", "closes", "hours"), [("22:00", "06:00", 8), ("09:00", "09:00", 24)]
)
def test_a_window_that_closes_at_or_before_it_opens_ends_the_next_day(opens, closes, hours):
    [span] = spans_of(
        weekly(opens, closes, days=(2,)),
        datetime(2026, 6, 1, tzinfo=UTC),
        datetime(2026, 6, 8, tzinfo=UTC),
    )
    assert span.start == datetime.combine(datetime(2026, 6, 3), time.fromisoformat(opens), UTC)
    assert span.hours == hours


@pytest.mark.row("A-455")
@pytest.mark.parametrize("day", [SPRING, AUTUMN])
def test_a_window_keeps_the_times_that_the_clock_shows_before_and_after_a_change(day):
    zone = ZoneInfo("Europe/Prague")
    window = weekly("09:00", "11:00", "Europe/Prague")
    for span in spans_of(window, day - timedelta(days=4), day + timedelta(days=4))[1:-1]:
        assert span.start.astimezone(zone).time() == time(9)
        assert span.end.astimezone(zone).time() == time(11)
        assert span.hours == 2


@pytest.mark.row("A-455")
@pytest.mark.parametrize(
    ("opens", "closes", "utc"),
    [
        # 02:30 is shown by no clock: it jumps from 02:00 to 03:00 at 01:00 UTC.
        ("02:30", "04:00", "01:00-02:00"),
        ("01:00", "02:30", "00:00-01:00"),
        ("01:30", "03:30", "00:30-01:30"),
        # Nothing is left of a window that lies in the gap.
        ("02:15", "02:45", None),
    ],
)
def test_a_time_that_the_clock_jumps_over_is_the_moment_of_the_jump(opens, closes, utc):
    window = weekly(opens, closes, "Europe/Prague", SUNDAY)
    assert on_day(window, SPRING) == ([utc] if utc else [])


@pytest.mark.row("A-455")
@pytest.mark.parametrize(
    ("opens", "closes", "utc"),
    [
        # 02:30 is shown at 00:30 and at 01:30 UTC.
        ("02:30", "04:00", "00:30-03:00"),
        ("02:00", "02:30", "00:00-01:30"),
        ("02:15", "02:45", "00:15-01:45"),
    ],
)
def test_a_time_that_the_clock_shows_twice_opens_at_the_first_and_closes_at_the_last(
    opens, closes, utc
):
    assert on_day(weekly(opens, closes, "Europe/Prague", SUNDAY), AUTUMN) == [utc]


@pytest.mark.row("A-455")
def test_a_change_at_midnight_is_a_jump_too():
    """In Beirut the clock goes from 0 to 1 on 29 March 2026."""
    zone = ZoneInfo("Asia/Beirut")
    day = SPRING.date()
    assert moment_of(day, time(0, 30), zone, last=False) == datetime(2026, 3, 28, 22, tzinfo=UTC)
    assert on_day(
        weekly("00:00", "02:00", "Asia/Beirut", days=(6,)), SPRING - timedelta(days=1)
    ) == ["22:00-23:00"]


@given(
    days=st.sets(st.integers(0, 6), min_size=1),
    opens=st.integers(0, 24 * 4 - 1),
    closes=st.integers(0, 24 * 4 - 1),
    zone=st.sampled_from(["UTC", "Europe/Prague", "America/New_York", "Australia/Lord_Howe"]),
    hour=st.integers(0, 24 * 400),
)
def test_a_window_is_open_when_the_clock_on_the_wall_says_so(days, opens, closes, zone, hour):
    """Compared with a look at the clock, away from the hours in which it changes."""

    def at(quarter: int) -> time:
        return time(quarter // 4, quarter % 4 * 15)

    window = weekly(str(at(opens)), str(at(closes)), zone, days)
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour, minutes=7)
    here = ZoneInfo(zone)
    offsets = {(now + timedelta(hours=h)).astimezone(here).utcoffset() for h in range(-30, 30)}
    if len(offsets) > 1:
        return
    wall = now.astimezone(here)
    yesterday = (wall.weekday() - 1) % 7
    shown = wall.time().replace(tzinfo=None)
    if at(closes) > at(opens):
        expected = wall.weekday() in days and at(opens) <= shown < at(closes)
    else:
        expected = (wall.weekday() in days and shown >= at(opens)) or (
            yesterday in days and shown < at(closes)
        )
    assert (open_span([window], now) is not None) is expected


@pytest.mark.row("A-456")
def test_windows_that_overlap_count_once():
    monday = datetime(2026, 6, 1, tzinfo=UTC)
    once = WarmWindow(model="m", starts_at=monday.replace(hour=16), ends_at=monday.replace(hour=20))
    windows = [weekly("09:00", "17:00", days=(0,)), weekly("12:00", "18:00", days=(0,)), once]
    assert hours_between(windows, monday, monday + timedelta(days=7)) == 11
    # Only what is left of a window that is open counts.
    assert hours_between(windows, monday.replace(hour=19), monday + timedelta(days=7)) == 1
    # A week has all hours of its windows, at whatever moment it begins.
    within = monday.replace(hour=3, microsecond=123_457)
    of_week = hours_between(windows, within, within + timedelta(days=7))
    assert cost(of_week, Decimal("1000000")) == cost(Decimal(11), Decimal("1000000"))
    assert union([Span(monday, monday + timedelta(hours=2))] * 3) == [
        Span(monday, monday + timedelta(hours=2))
    ]


@pytest.mark.row("A-451")
@pytest.mark.parametrize(
    ("days", "opens", "closes", "hours"),
    [
        ((0, 1, 2, 3, 4), "09:00", "17:00", 40),
        (EVERY_DAY, "00:00", "00:00", 168),
        # Sunday's night reaches into Monday.
        ((6,), "22:00", "06:00", 8),
        # A window of 24 hours on two days that follow each other.
        ((5, 6), "12:00", "12:00", 48),
    ],
)
def test_the_hours_of_a_week(days, opens, closes, hours):
    assert (
        hours_a_week(days_sum(days), time.fromisoformat(opens), time.fromisoformat(closes)) == hours
    )


@pytest.mark.row("A-453")
def test_a_cost_is_hours_times_the_price_to_the_cent():
    assert cost(Decimal(40), Decimal("36.32")) == Decimal("1452.80")
    assert cost(Decimal(1) / 3, Decimal("1.95")) == Decimal("0.65")


def test_names():
    assert is_time_zone("Europe/Prague")
    assert not is_time_zone("Europe/Basel-City")
    assert day_names(days_sum((0, 1, 2, 3, 4))) == "Monday to Friday"
    assert day_names(days_sum(EVERY_DAY)) == "every day"
    assert day_names(days_sum((6, 1))) == "Tuesday, Sunday"
