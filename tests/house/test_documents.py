"""Documents that are made from the code, and what the project's text may say."""

import subprocess
from pathlib import Path

from config.management.commands.settings_table import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_settings_is_that_of_the_code() -> None:
    """`manage.py settings_table > docs/settings.md` writes it anew."""
    assert (ROOT / "docs" / "settings.md").read_text() == page()


LOCKED = sorted(
    str(path.relative_to(ROOT))
    for folder in (ROOT, ROOT / "tests" / "clients" / "requirements")
    for path in folder.glob("*.txt")
)
PAGE = "tests/clients/page/package-lock.json"


def test_the_lock_files_name_no_address() -> None:
    assert len(LOCKED) == 4
    for name in (*LOCKED, PAGE):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "--index-url" not in text


def test_every_requirement_has_an_exact_version() -> None:
    for name in LOCKED:
        lines = (ROOT / name).read_text().splitlines()
        wanted = [line for line in lines if line and not line.startswith((" ", "#", "-"))]
        assert wanted
        assert all("==" in line for line in wanted)
    assert "torch==2.13.0\n" in (ROOT / "requirements.txt").read_text()


def test_no_module_is_named_for_nothing() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    vague = {"utils", "helpers", "services", "selectors", "common", "misc"}
    assert [path for path in tracked if vague & {Path(path).stem, *Path(path).parts}] == []
