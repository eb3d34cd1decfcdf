"""Users of each hour of the day, as the clocks of several time zones show it (A-475, U-20).

The hours are read once, whatever the number of time zones: for each User a mask of UTC hours, in
each period in which no clock changes. A time zone's hours are that mask, turned by its offset.
Whole weeks of a period come from the sums by week, only what lies between them from those by hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import connection
from psycopg import sql

HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
HOURS_A_DAY = 24

RAN = """
WITH ran AS (
    SELECT user_id, width_bucket(week::timestamp AT TIME ZONE 'UTC', %(starts)s::timestamptz[]) - 1
           AS place, hours AS mask
    FROM billing_weeklyusage WHERE week = ANY(%(weeks)s::date[])
    UNION ALL
    SELECT h.user_id, width_bucket(h.hour, %(starts)s::timestamptz[]) - 1,
           1 << extract(hour FROM h.hour AT TIME ZONE 'UTC')::int
    FROM unnest(%(from)s::timestamptz[], %(to)s::timestamptz[]) AS part(begins, ends)
    JOIN billing_hourlyusage h ON h.hour >= part.begins AND h.hour < part.ends
), masks AS (
    SELECT ran.user_id, ran.place, bit_or(ran.mask)::bigint AS mask
    FROM ran JOIN accounts_user u ON u.id = ran.user_id
    WHERE NOT u.is_staff AND NOT u.team AND u.deleted_at IS NULL
    GROUP BY 1, 2
), turned AS (
    SELECT clock.zone, masks.user_id,
           bit_or((masks.mask << clock.turn) | (masks.mask >> (24 - clock.turn))) AS mask
    FROM masks JOIN unnest(%(places)s::int[], %(zones)s::int[], %(turns)s::int[])
        AS clock(place, zone, turn) USING (place)
    GROUP BY 1, 2
)
SELECT zone, {counts} FROM turned GROUP BY 1
"""
COUNT = sql.SQL("count(*) FILTER (WHERE (mask >> {}) & 1 = 1)")


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
    starts = [period.begins for period in known]
    weeks, rest = whole_weeks(starts, begins, ends)
    clocks = [
        (place, zone, turn)
        for place, period in enumerate(known)
        for zone, turn in enumerate(period.turns)
    ]
    counts = sql.SQL(", ").join(COUNT.format(hour) for hour in range(HOURS_A_DAY))
    found: list[dict[int, int]] = [{} for _ in zones]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL(RAN).format(counts=counts),
            {
                "starts": starts,
                "weeks": weeks,
                "from": [span[0] for span in rest],
                "to": [span[1] for span in rest],
                "places": [place for place, _, _ in clocks],
                "zones": [zone for _, zone, _ in clocks],
                "turns": [turn for _, _, turn in clocks],
            },
        )
        for zone, *users in cursor.fetchall():
            found[zone] = {hour: count for hour, count in enumerate(users) if count}
    return found


def _turns(zones: Sequence[ZoneInfo], moment: datetime) -> tuple[int, ...]:
    offsets = [moment.astimezone(zone).utcoffset() or timedelta() for zone in zones]
    return tuple(offset // HOUR % HOURS_A_DAY for offset in offsets)
