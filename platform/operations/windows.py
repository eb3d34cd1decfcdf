"""When warm windows are open: spans of time, made from times of the clock in a time zone.

A weekly window keeps the times that the clock on the wall shows (A-455). Where the clock is put
forward over its opening or its closing, the moment of the change takes that time's place. Where the
clock is put back and shows a time twice, a window opens at the first and closes at the last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo, available_timezones

from operations.models import WarmWindow

WEEK_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MINUTES_A_DAY = 24 * 60
CENT = Decimal("0.01")
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, order=True)
class Span:
    """From one moment of UTC to another, without it."""

    start: datetime
    end: datetime

    @property
    def hours(self) -> Decimal:
        """Its length."""
        return Decimal((self.end - self.start) // MICROSECOND) / (timedelta(hours=1) // MICROSECOND)


def is_time_zone(name: str) -> bool:
    """Whether this is the name of a time zone."""
    return name in available_timezones()


def spans_of(window: WarmWindow, since: datetime, until: datetime) -> list[Span]:
    """Return when a window is open between two moments, cut to them, in their order."""
    if window.starts_at is not None and window.ends_at is not None:
        whole = [Span(window.starts_at, window.ends_at)]
    else:
        whole = list(_weekly(window, since, until))
    cut = [Span(max(span.start, since), min(span.end, until)) for span in whole]
    return sorted(span for span in cut if span.start < span.end)


def _weekly(window: WarmWindow, since: datetime, until: datetime) -> Iterable[Span]:
    assert window.opens is not None
    assert window.closes is not None
    zone = ZoneInfo(window.time_zone)
    day = since.astimezone(zone).date() - timedelta(days=2)
    last = until.astimezone(zone).date()
    overnight = timedelta(days=1 if window.closes <= window.opens else 0)
    while day <= last:
        if window.days >> day.weekday() & 1:
            start = moment_of(day, window.opens, zone, last=False)
            end = moment_of(day + overnight, window.closes, zone, last=True)
            yield Span(start, end)
        day += timedelta(days=1)


def moment_of(day: date, at: time, zone: ZoneInfo, *, last: bool) -> datetime:
    """Return when the clock of a zone shows a time: the `last` or the first time it does.

    Where it never shows it, the moment at which it jumps past it.
    """
    wall = datetime.combine(day, at)
    moment = wall.replace(tzinfo=zone, fold=int(last)).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment
    # The clock jumps between what the offsets on its two sides make of the time.
    before, after = sorted(wall.replace(tzinfo=zone, fold=f).astimezone(UTC) for f in (0, 1))
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)


def union(spans: Iterable[Span]) -> list[Span]:
    """Return spans that do not overlap and cover the same time."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def open_span(windows: Iterable[WarmWindow], now: datetime) -> Span | None:
    """Return since when and until when windows of one model keep it warm now, at most two weeks."""
    around = timedelta(days=14)
    spans = [span for each in windows for span in spans_of(each, now - around, now + around)]
    return next((span for span in union(spans) if span.start <= now < span.end), None)


def hours_between(windows: Iterable[WarmWindow], since: datetime, until: datetime) -> Decimal:
    """Return for how many hours windows of one model keep it warm; overlaps count once (A-456)."""
    spans = [span for each in windows for span in spans_of(each, since, until)]
    return sum((span.hours for span in union(spans)), Decimal(0))


def hours_a_week(days: int, opens: time, closes: time) -> Decimal:
    """Return the hours of a weekly window in a week without a change of the clock (A-451)."""
    length = (_minutes(closes) - _minutes(opens)) % MINUTES_A_DAY or MINUTES_A_DAY
    covered: set[int] = set()
    for day in range(7):
        if days >> day & 1:
            begin = day * MINUTES_A_DAY + _minutes(opens)
            covered.update(minute % (7 * MINUTES_A_DAY) for minute in range(begin, begin + length))
    return Decimal(len(covered)) / 60


def cost(hours: Decimal, price_per_hour: Decimal) -> Decimal:
    """Return US dollars, to the cent."""
    return (hours * price_per_hour).quantize(CENT)


def day_names(days: int) -> str:
    """Return the days of a weekly window in words."""
    names = [name for number, name in enumerate(WEEK_DAYS) if days >> number & 1]
    if days == 0b0011111:
        return "Monday to Friday"
    return "every day" if days == 0b1111111 else ", ".join(names)


def words_of(window: WarmWindow) -> str:
    """Return when a window is open, in words."""
    if window.opens is not None and window.closes is not None:
        return (
            f"{day_names(window.days)}, {window.opens:%H:%M} to {window.closes:%H:%M} "
            f"{window.time_zone}"
        )
    assert window.ends_at is not None
    return f"now, until {window.ends_at.astimezone(UTC):%Y-%m-%d %H:%M UTC}"


def days_sum(numbers: Sequence[int]) -> int:
    """Return the sum that `WarmWindow.days` keeps, of numbers from 0 for Monday to 6."""
    return sum(1 << number for number in set(numbers))


def _minutes(at: time) -> int:
    return at.hour * 60 + at.minute
