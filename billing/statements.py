"""The ledger's SQL, written out, because every Completion takes a Hold and ends it.

Both happen in a process whose event loop shares the interpreter with them, so these statements are
not put together by the ORM at each call, and `send` sends several in one message. PostgreSQL runs
those in their order, and in a READ COMMITTED transaction each of them sees what was committed
before it began itself. So a statement that may wait for a lock reads nothing else here, and the
totals are read by a statement after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection

from billing.models import SLOTS, Bucket, EntryKind, Hold, UsageStatus

Value: TypeAlias = UUID | str | int | date | datetime | None
"""What a parameter may be."""

Row: TypeAlias = tuple[Any, ...]
"""What the driver returns; `Totals` and `hold_of` give it its types."""


class Statement(NamedTuple):
    """One SQL statement, with a `%s` for each of its values."""

    sql: str
    values: Sequence[Value]


@dataclass(slots=True)
class Totals:
    """Running totals of a User, of one month and of one key; in tokens, open Holds taken off.

    `allowance` is the User's own or None; `used` is of the month; `key_left` is None for a key
    without a Budget of its own and where there is no key. The fields are those of `read_totals`.
    """

    budget_left: int = 0
    allowance: int | None = None
    used: int = 0
    key_left: int | None = None


class Line(NamedTuple):
    """An Entry to be written; each field is named as its column is."""

    user_id: UUID
    bucket: Bucket
    month: date | None
    key_id: UUID | None
    kind: EntryKind
    amount: int
    total: int
    hold_id: UUID | None
    by_id: UUID | None
    created_at: datetime


def send(*statements: Statement) -> list[Row | None]:
    """Run statements in their order, in one message; return the first row of each, or None.

    Where one fails, those after it do not run. Needs a connection that binds parameters on the
    client's side, as Django's does unless `server_side_binding` is set.
    """
    sql = ";".join(statement.sql for statement in statements)
    values = [value for statement in statements for value in statement.values]
    rows: list[Row | None] = []
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        for _ in statements:
            rows.append(cursor.fetchone() if cursor.description else None)
            cursor.nextset()
    return rows


def share_owner(token: UUID) -> Statement:
    """Hold an Owner's row for this transaction, against a reaper but not against heartbeats."""
    return Statement("SELECT 1 FROM billing_owner WHERE token = %s FOR KEY SHARE", [token])


def make_account(user_id: UUID) -> Statement:
    """Make the Account of a User, unless there is one."""
    return Statement(
        "INSERT INTO billing_account (user_id, budget_left) VALUES (%s, 0) ON CONFLICT DO NOTHING",
        [user_id],
    )


def lock_account(user_id: UUID) -> Statement:
    """Lock the Account of a User until the transaction ends."""
    return Statement(
        "SELECT 1 FROM billing_account WHERE user_id = %s FOR NO KEY UPDATE", [user_id]
    )


def lock_account_of(hold_id: UUID) -> Statement:
    """Lock the Account of a Hold's User, who never changes and so may be read before the wait."""
    return Statement(
        """
        SELECT 1 FROM billing_account
        WHERE user_id = (SELECT user_id FROM billing_hold WHERE id = %s)
        FOR NO KEY UPDATE
        """,
        [hold_id],
    )


def read_totals(*, user_id: UUID, month: date, key_id: UUID | None) -> Statement:
    """Read the `Totals` of a User who has an Account; no row for one who has none."""
    return Statement(
        """
        SELECT a.budget_left, a.allowance,
               coalesce((SELECT used FROM billing_allowancemonth m
                         WHERE m.account_id = a.user_id AND m.month = %s), 0),
               (SELECT "left" FROM billing_keybudget k
                WHERE k.account_id = a.user_id AND k.key_id = %s)
        FROM billing_account a
        WHERE a.user_id = %s
        """,
        [month, key_id, user_id],
    )


HOLD_FIELDS = tuple(field.attname for field in Hold._meta.concrete_fields)
"""Every field of a Hold, named as its column is."""

_HOLD_COLUMNS = ", ".join(f"h.{name}" for name in HOLD_FIELDS)
_HOLD_PLACES = ", ".join(["%s"] * len(HOLD_FIELDS))


def read_hold(hold_id: UUID) -> Statement:
    """Read a Hold and the totals that it was taken from, as `hold_of` takes them apart.

    The Hold is looked for by its id alone: with the owner in the query a planner without
    statistics may walk through all open Holds of the process instead.
    """
    return Statement(
        f"""
        SELECT a.budget_left, a.allowance,
               coalesce((SELECT used FROM billing_allowancemonth m
                         WHERE m.account_id = h.user_id AND m.month = h.month), 0),
               (SELECT "left" FROM billing_keybudget k
                WHERE k.account_id = h.user_id AND k.key_id = h.key_id AND h.key_budget),
               {_HOLD_COLUMNS}
        FROM billing_hold h
        JOIN billing_account a ON a.user_id = h.user_id
        WHERE h.id = %s
        """,  # noqa: S608
        [hold_id],
    )


def hold_of(row: Row) -> tuple[Totals, Hold]:
    """Return what `read_hold` read."""
    return Totals(*row[:4]), Hold.from_db(DEFAULT_DB_ALIAS, HOLD_FIELDS, row[4:])


def insert_hold(hold: Hold) -> Statement:
    """Write a Hold that was just opened."""
    return Statement(
        f"INSERT INTO billing_hold ({', '.join(HOLD_FIELDS)}) VALUES ({_HOLD_PLACES})",  # noqa: S608
        [getattr(hold, name) for name in HOLD_FIELDS],
    )


def end_hold(hold: Hold) -> Statement:
    """Write the end of a Hold; it has no owner from then on."""
    return Statement(
        """
        UPDATE billing_hold
        SET owner_id = NULL, state = %s, ended_at = %s, paid = %s, prompt_tokens = %s,
            completion_tokens = %s, status = %s, counted = %s
        WHERE id = %s
        """,
        [hold.state, hold.ended_at, hold.paid, hold.prompt_tokens, hold.completion_tokens,
         hold.status, hold.counted, hold.id],
    )  # fmt: skip


def set_total(line: Line) -> Statement:
    """Write the running total to which a line brought its bucket."""
    match line.bucket:
        case Bucket.BUDGET:
            return Statement(
                "UPDATE billing_account SET budget_left = %s WHERE user_id = %s",
                [line.total, line.user_id],
            )
        case Bucket.ALLOWANCE:
            return Statement(
                """
                INSERT INTO billing_allowancemonth (account_id, month, used) VALUES (%s, %s, %s)
                ON CONFLICT (account_id, month) DO UPDATE SET used = excluded.used
                """,
                [line.user_id, line.month, -line.total],
            )
        case Bucket.KEY_BUDGET:
            return Statement(
                """
                INSERT INTO billing_keybudget (account_id, key_id, "left") VALUES (%s, %s, %s)
                ON CONFLICT (key_id) DO UPDATE SET "left" = excluded."left"
                """,
                [line.user_id, line.key_id, line.total],
            )


def insert_lines(lines: Sequence[Line]) -> Statement:
    """Write lines of the ledger, at least one, in their order."""
    columns, places = ", ".join(Line._fields), ", ".join(["%s"] * len(Line._fields))
    rows = ", ".join([f"({places})"] * len(lines))
    return Statement(
        f"INSERT INTO billing_entry ({columns}) VALUES {rows}",  # noqa: S608
        [value for line in lines for value in line],
    )


def add_to_site(hold: Hold) -> Statement:
    """Add a Hold that was just settled to everybody's day. Goes before `add_usage` of the Hold.

    Whether its User ran before on the day is read under the lock of their Account, so that waiting
    for the row of the sums changes nothing of it.
    """
    day = day_of(hold.opened_at)
    return Statement(
        """
        INSERT INTO billing_siteusage AS s
            (day, slot, model, source, completions, prompt_tokens, completion_tokens, failed,
             stopped, users)
        SELECT %s, %s, %s, %s, 1, %s, %s, %s, %s, (NOT EXISTS (
            SELECT 1 FROM billing_dailyusage WHERE user_id = %s AND day = %s
        ))::int
        ON CONFLICT ON CONSTRAINT site_usage_once DO UPDATE
        SET completions = s.completions + 1,
            prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = s.completion_tokens + excluded.completion_tokens,
            failed = s.failed + excluded.failed,
            stopped = s.stopped + excluded.stopped,
            users = s.users + excluded.users
        """,
        [day, hold.user_id.int % SLOTS, hold.model, hold.source, hold.prompt_tokens,
         hold.completion_tokens, int(hold.status == UsageStatus.FAILED),
         int(hold.status == UsageStatus.STOPPED), hold.user_id, day],
    )  # fmt: skip


def add_usage(hold: Hold) -> Statement:
    """Add a Hold that was just settled to its day, the UTC day on which it began (U-39)."""
    return Statement(
        """
        INSERT INTO billing_dailyusage AS d
            (user_id, key_id, model, source, day, completions, prompt_tokens, completion_tokens,
             paid, failed, stopped)
        VALUES (%s, %s, %s, %s, %s, 1, %s, %s, %s, %s, %s)
        ON CONFLICT ON CONSTRAINT daily_usage_once DO UPDATE
        SET completions = d.completions + excluded.completions,
            prompt_tokens = d.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = d.completion_tokens + excluded.completion_tokens,
            paid = d.paid + excluded.paid,
            failed = d.failed + excluded.failed,
            stopped = d.stopped + excluded.stopped
        """,
        [hold.user_id, hold.key_id, hold.model, hold.source, day_of(hold.opened_at),
         hold.prompt_tokens, hold.completion_tokens, hold.paid,
         int(hold.status == UsageStatus.FAILED), int(hold.status == UsageStatus.STOPPED)],
    )  # fmt: skip


def add_hour(hold: Hold) -> Statement:
    """Add a Hold that was just settled to the UTC hour in which it began."""
    return Statement(
        """
        INSERT INTO billing_hourlyusage AS h
            (user_id, hour, model, completions, prompt_tokens, completion_tokens)
        VALUES (%s, %s, %s, 1, %s, %s)
        ON CONFLICT ON CONSTRAINT hourly_usage_once DO UPDATE
        SET completions = h.completions + 1,
            prompt_tokens = h.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = h.completion_tokens + excluded.completion_tokens
        """,
        [hold.user_id, hour_of(hold.opened_at), hold.model, hold.prompt_tokens,
         hold.completion_tokens],
    )  # fmt: skip


def add_week(hold: Hold) -> Statement:
    """Add a Hold that was just settled to the UTC week in which it began."""
    hour = hour_of(hold.opened_at)
    return Statement(
        """
        INSERT INTO billing_weeklyusage AS w
            (user_id, week, model, completions, prompt_tokens, completion_tokens, hours)
        VALUES (%s, %s, %s, 1, %s, %s, %s)
        ON CONFLICT ON CONSTRAINT weekly_usage_once DO UPDATE
        SET completions = w.completions + 1,
            prompt_tokens = w.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = w.completion_tokens + excluded.completion_tokens,
            hours = w.hours | excluded.hours
        """,
        [hold.user_id, hour.date() - timedelta(days=hour.weekday()), hold.model,
         hold.prompt_tokens, hold.completion_tokens, 1 << hour.hour],
    )  # fmt: skip


def day_of(moment: datetime) -> date:
    """Return the UTC day that holds `moment`."""
    return moment.astimezone(UTC).date()


def hour_of(moment: datetime) -> datetime:
    """Return the start of the UTC hour that holds `moment`."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
