"""Which rows of a contract no test claims to prove."""

import argparse
import contextlib
import io
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROWS = Path(__file__).with_name("rows.toml")


@dataclass(frozen=True)
class Section:
    contract: str
    number: int
    title: str
    rows: tuple[str, ...]


class Claims:
    """A pytest plugin that notes the rows named by the tests that it sees."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        """A row's id, and one test that names it."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("row"):
                for row in mark.args:
                    self.rows.setdefault(row, item.nodeid)


def sections() -> list[Section]:
    """Every section of the three contracts."""
    tables = tomllib.loads(ROWS.read_text())["section"]
    return [
        Section(
            table["contract"],
            table["number"],
            table["title"],
            tuple(f"{table['prefix']}-{number:03}" for number in _numbers(table["rows"])),
        )
        for table in tables
    ]


def _numbers(spans: str) -> Iterator[int]:
    for span in spans.split():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def collect() -> dict[str, str]:
    """The rows that the tests name; raises `SystemExit` when the tests cannot be collected."""
    claims, output = Claims(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[claims])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{output.getvalue()}\nscript/contract: the tests cannot be collected")
    return claims.rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/contract")
    parser.add_argument("--contract", choices=("api", "app", "extensions"), default="api")
    parser.add_argument("--section", type=int)
    options = parser.parse_args()
    known, claimed = sections(), collect()
    proved = total = 0
    for section in known:
        if section.contract != options.contract:
            continue
        if options.section not in (None, section.number):
            continue
        missing = [row for row in section.rows if row not in claimed]
        total += len(section.rows)
        proved += len(section.rows) - len(missing)
        print(f"{section.number}. {section.title}: {len(missing)} of {len(section.rows)} unproved")
        if missing:
            print(f"   {' '.join(missing)}")
    print(f"{proved} of {total} rows have a test")
    unknown = sorted(claimed.keys() - {row for section in known for row in section.rows})
    for row in unknown:
        print(f"script/contract: no contract has the row {row}, named by {claimed[row]}")
    return 1 if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main())
