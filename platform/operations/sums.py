"""Sums of Completions on some days, split in several ways by one look at the daily roll-ups."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from uuid import UUID

from django.db import connection
from psycopg import sql

from operations.analytics import Days


class Split(StrEnum):
    """What Completions are split by: a column of the daily sums."""

    DAY = "day"
    MODEL = "model"
    SOURCE = "source"
    USER = "user_id"


@dataclass(frozen=True, slots=True)
class Sums:
    """Paid Completions and their tokens."""

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


SUMS = sql.SQL(
    "SELECT grouping({names}), {names}, sum(completions), sum(prompt_tokens),"
    " sum(completion_tokens), sum(failed), sum(stopped)"
    " FROM billing_dailyusage WHERE {where} GROUP BY GROUPING SETS ({sets})"
)


def summed(days: Days, by: Sequence[Split]) -> dict[Split, dict[Value, Sums]]:
    """Return the sums of a report's days, User and model, by each value of each split.

    One statement with grouping sets, so that all splits agree with one another.
    """
    names = [sql.Identifier(name) for name in by]
    where: list[sql.Composable] = [sql.SQL("day BETWEEN %s AND %s")]
    wanted: list[Value] = [days.first, days.last]
    for column, value in (("user_id", days.user_id), ("model", days.model)):
        if value:
            where.append(sql.SQL("{} = %s").format(sql.Identifier(column)))
            wanted.append(value)
    with connection.cursor() as cursor:
        cursor.execute(
            SUMS.format(
                names=sql.SQL(", ").join(names),
                where=sql.SQL(" AND ").join(where),
                sets=sql.SQL(", ").join(sql.SQL("({})").format(name) for name in names),
            ),
            wanted,
        )
        rows = cursor.fetchall()
    found: dict[Split, dict[Value, Sums]] = {split: {} for split in by}
    # `grouping` has a bit for each column, the last one lowest, set where it is summed over.
    every = (1 << len(by)) - 1
    places = {every ^ (1 << place): len(by) - 1 - place for place in range(len(by))}
    for grouping, *rest in rows:
        place = places[grouping]
        numbers = (int(number) for number in rest[len(by) :])
        found[by[place]][rest[place]] = Sums(*numbers)
    return found
