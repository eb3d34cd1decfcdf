"""Tables of the admin's reports: shown, drawn as a chart, and written as CSV from the same rows."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

Cell = str | int | Decimal | date | datetime | None
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so would be run by a spreadsheet."""


@dataclass(frozen=True)
class Column:
    """One column: its heading, and what its numbers are."""

    label: str
    unit: str = ""
    """`$` for US dollars, `h` for hours; empty for whole numbers and for words."""
    drawn: bool = False
    """Whether a chart of the table draws it."""

    def text(self, cell: Cell) -> str:
        """Write a cell for people; whole numbers with commas, times in UTC."""
        if cell is None:
            return "–"
        if isinstance(cell, Decimal):
            return f"${cell:,.2f}" if self.unit == "$" else f"{cell:,.1f}"
        if isinstance(cell, int):
            return f"{cell:,}"
        if isinstance(cell, datetime):
            return f"{cell.astimezone(UTC):%Y-%m-%d %H:%M}"
        return cell.isoformat() if isinstance(cell, date) else cell


@dataclass(frozen=True)
class Shown:
    """A cell as a page shows it."""

    text: str
    value: str
    """The number alone, for charts; empty for words."""


@dataclass(frozen=True)
class Table:
    """Rows under a title, with how they are counted."""

    name: str
    """Names it in addresses: letters and dashes."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    definition: str = ""
    """How its numbers are counted, in a sentence or two."""

    @property
    def is_drawn(self) -> bool:
        """Whether it has a chart beside its rows."""
        return bool(self.rows) and any(column.drawn for column in self.columns)

    @property
    def drawn(self) -> list[int]:
        """The places of the columns that a chart draws."""
        return [place for place, column in enumerate(self.columns) if column.drawn]

    @property
    def heads(self) -> list[tuple[Column, bool]]:
        """Each column, and whether it holds numbers, which stand to the right."""
        first = self.rows[0] if self.rows else [None] * len(self.columns)
        return [
            (column, isinstance(cell, int | Decimal))
            for column, cell in zip(self.columns, first, strict=True)
        ]

    @property
    def shown(self) -> list[list[Shown]]:
        """The cells of every row, as a page shows them."""
        return [
            [
                Shown(
                    column.text(cell),
                    str(cell) if isinstance(cell, int | Decimal) else "",
                )
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    def csv(self) -> str:
        """Write the rows as CSV with a line of headings; numbers plain, times in ISO 8601."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(_plain(column.label) for column in self.columns)
        writer.writerows([_plain(cell) for cell in row] for row in self.rows)
        return out.getvalue()


@dataclass(frozen=True)
class Fact:
    """One number that stands alone, with how it is counted."""

    label: str
    text: str
    definition: str = ""


def _plain(cell: Cell) -> str | int | Decimal | None:
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, str) and cell.startswith(FORMULA):
        return f"'{cell}"
    return cell
