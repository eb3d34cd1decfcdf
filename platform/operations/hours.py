"""Users of each hour of the day, as the clocks of several time zones show it (A-475, U-20).

The hours are read once, whatever the number of time zones: for each User a mask of UTC hours, in
each period in which no clock changes. A time zone's hours are that mask, turned by its offset.
Whole weeks of a period come from the sums by week, only what lies between them from those by hour.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
HOURS_A_DAY = 24
FULL = (1 << HOURS_A_DAY) - 1

RAN = """
SELECT ran.user_id, ran.place, bit_or(ran.mask)
FROM (
    SELECT user_id, width_bucket(week::timestamp AT TIME ZONE 'UTC', %(starts)s::timestamptz[]) - 1
           AS place, hours AS mask
    FROM billing_weeklyusage WHERE week = ANY(%(weeks)s::date[])
    UNION ALL
    SELECT h.user_id, width_bucket(h.hour, %(starts)s::timestamptz[]) - 1,
           1 << extract(hour FROM h.hour AT TIME ZONE 'UTC')::int
    FROM unnest(%(from)s::timestamptz[], %(to)s::timestamptz[]) AS part(begins, ends)
    JOIN billing_hourlyusage h ON h.hour >= part.begins AND h.hour < part.ends
) ran JOIN accounts_user u ON u.id = ran.user_id
WHERE NOT u.is_staff AND NOT u.team AND u.deleted_at IS NULL
GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Period:
    """Since when each time zone's clock shows which hours."""

    begins: datetime
    turns: tuple[int, ...]
    """By how many hours a clock is before UTC, from 0 to 23, at the start of an hour of UTC."""


def periods(zones: Sequence[ZoneInfo], begins: datetime, ends: datetime) -> list[Period]:
    """Return the periods between two whole hours in which no clock changes, in their order."""
    found = [Period(begins, _turns(zones, begins))]
    day = begins
    while day < ends:
        if _turns(zones, day + DAY - HOUR) != found[-1].turns:
            for hour in range(HOURS_A_DAY):
                moment = day + hour * HOUR
                turns = _turns(zones, moment)
                if turns != found[-1].turns:
                    found.append(Period(moment, turns))
        day += DAY
    return found


def whole_weeks(
    starts: Sequence[datetime], begins: datetime, ends: datetime
) -> tuple[list[date], list[tuple[datetime, datetime]]]:
    """Return the weeks in which no clock changes, by their Mondays, and the spans between them."""
    weeks: list[date] = []
    rest: list[tuple[datetime, datetime]] = []
    monday = begins.replace(hour=0) + -begins.weekday() % 7 * DAY
    monday += WEEK if monday < begins else timedelta(0)
    at = begins
    while monday + WEEK <= ends:
        if not any(monday < start < monday + WEEK for start in starts):
            weeks.append(monday.date())
            if at < monday:
                rest.append((at, monday))
            at = monday + WEEK
        monday += WEEK
    if at < ends:
        rest.append((at, ends))
    return weeks, rest


def users_of_hours(
    zones: Sequence[ZoneInfo], begins: datetime, ends: datetime
) -> list[dict[int, int]]:
    """Return, for each time zone, how many Users ran in each hour that its clock shows.

    `begins` and `ends` are whole hours. The team's accounts are left out (A-463).
    """
    known = periods(zones, begins, ends)
    masks: list[dict[UUID, int]] = [defaultdict(int) for _ in zones]
    with connection.cursor() as cursor:
        starts = [period.begins for period in known]
        weeks, rest = whole_weeks(starts, begins, ends)
        spans = {"from": [span[0] for span in rest], "to": [span[1] for span in rest]}
        cursor.execute(RAN, {"starts": starts, "weeks": weeks, **spans})
        for user_id, place, mask in cursor.fetchall():
            for zone, turn in enumerate(known[place].turns):
                masks[zone][user_id] |= (mask << turn | mask >> (HOURS_A_DAY - turn)) & FULL
    return [_counted(of_zone) for of_zone in masks]


def _turns(zones: Sequence[ZoneInfo], moment: datetime) -> tuple[int, ...]:
    offsets = [moment.astimezone(zone).utcoffset() or timedelta() for zone in zones]
    return tuple(offset // HOUR % HOURS_A_DAY for offset in offsets)


def _counted(masks: dict[UUID, int]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for mask, users in Counter(masks.values()).items():
        for hour in range(HOURS_A_DAY):
            if mask >> hour & 1:
                found[hour] += users
    return dict(found)
