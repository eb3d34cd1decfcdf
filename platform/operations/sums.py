"""Sums of Completions on some days, split in several ways by one statement.

What does not tell Users apart is read from everybody's days; Users are told apart by whole weeks,
and by days where a report begins or ends within a week. One User's sums are those of their days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from uuid import UUID

from django.db import connection
from psycopg import sql

from operations.analytics import Days

RANKED = 1000
"""Users of a report at most, those with the most tokens."""


class Split(StrEnum):
    """What Completions are split by: a column of the sums."""

    DAY = "day"
    MODEL = "model"
    SOURCE = "source"
    USER = "user_id"


@dataclass(frozen=True, slots=True)
class Sums:
    """Paid Completions and their tokens; split by Users, the last two are not counted and 0."""

    completions: int
    given: int
    taken: int
    failed: int
    stopped: int

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.given + self.taken

    @property
    def counted(self) -> tuple[int, int, int]:
        """Completions, input tokens, output tokens: the columns of tables."""
        return self.completions, self.given, self.taken


Value = date | str | UUID


FOUND = sql.SQL(
    """
    found AS MATERIALIZED (
        SELECT day, model, source, sum(completions) AS n, sum(prompt_tokens) AS given,
               sum(completion_tokens) AS taken, sum(failed) AS failed, sum(stopped) AS stopped
        FROM {table}
        WHERE day BETWEEN %(first)s AND %(last)s
              AND (%(user)s::uuid IS NULL OR {user} = %(user)s::uuid)
              AND (%(model)s = '' OR model = %(model)s)
        GROUP BY 1, 2, 3
    )
    """
)
SPLIT = sql.SQL(
    """
    SELECT {name}, {column}::text, sum(n)::bigint, sum(given)::bigint, sum(taken)::bigint,
           sum(failed)::bigint, sum(stopped)::bigint
    FROM found GROUP BY 2
    """
)
USERS = sql.SQL(
    """
    (SELECT {name}, user_id::text, sum(completions)::bigint, sum(prompt_tokens)::bigint,
            sum(completion_tokens)::bigint, 0, 0
     FROM (
         SELECT user_id, model, completions, prompt_tokens, completion_tokens
         FROM billing_weeklyusage WHERE week >= %(monday)s AND week < %(end)s
         UNION ALL
         SELECT user_id, model, completions, prompt_tokens, completion_tokens
         FROM billing_dailyusage WHERE day BETWEEN %(first)s AND %(before)s
         UNION ALL
         SELECT user_id, model, completions, prompt_tokens, completion_tokens
         FROM billing_dailyusage WHERE day BETWEEN %(end)s AND %(last)s
     ) parts
     WHERE %(model)s = '' OR model = %(model)s
     GROUP BY 2 ORDER BY sum(prompt_tokens + completion_tokens) DESC, 2 LIMIT %(most)s)
    """
)
ONE_USER = sql.SQL(
    """
    SELECT {name}, %(user)s::text, sum(n)::bigint, sum(given)::bigint, sum(taken)::bigint, 0, 0
    FROM found HAVING count(*) > 0
    """
)


def weeks_of(first: date, last: date) -> tuple[date, date]:
    """Return the first Monday of the whole weeks between two days, and the day after the last one.

    Where no whole week lies between them, both are the day after `last`.
    """
    monday = first + timedelta(days=-first.weekday() % 7)
    after = last + timedelta(days=1)
    end = after - timedelta(days=after.weekday())
    return (monday, end) if monday < end else (after, after)


def summed(days: Days, by: Sequence[Split]) -> dict[Split, dict[Value, Sums]]:
    """Return the sums of a report's days, User and model, by each value of each split.

    One statement, so that all splits agree with one another. Of Users those `RANKED` with the most
    tokens.
    """
    # A table without Users has no such column; the condition is never true there.
    table, user = ("billing_dailyusage", "user_id") if days.user_id else ("billing_siteusage", None)
    found = FOUND.format(
        table=sql.Identifier(table),
        user=sql.Identifier(user) if user else sql.SQL("NULL::uuid"),
    )
    parts = [
        (SPLIT if split != Split.USER else ONE_USER if days.user_id else USERS).format(
            name=sql.Literal(split.value), column=sql.Identifier(split.value)
        )
        for split in by
    ]
    statement = sql.SQL("WITH {} {}").format(found, sql.SQL(" UNION ALL ").join(parts))
    monday, end = weeks_of(days.first, days.last)
    sums: dict[Split, dict[Value, Sums]] = {split: {} for split in by}
    with connection.cursor() as cursor:
        cursor.execute(
            statement,
            {
                "first": days.first,
                "last": days.last,
                "user": days.user_id,
                "model": days.model,
                "monday": monday,
                "before": monday - timedelta(days=1),
                "end": end,
                "most": RANKED,
            },
        )
        for name, value, *numbers in cursor.fetchall():
            split = Split(name)
            sums[split][_value(split, value)] = Sums(*numbers)
    return sums


def _value(split: Split, text: str) -> Value:
    match split:
        case Split.DAY:
            return date.fromisoformat(text)
        case Split.USER:
            return UUID(text)
        case _:
            return text
