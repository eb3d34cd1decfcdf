"""`manage.py settings_table`: the table of `docs/settings.md`."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from pydantic_core import PydanticUndefined

from config.environment import ROOT, Environment
from config.work import WorkSettings

OF_WORK = WorkSettings.model_fields
HEAD = """# Settings

Every setting is an environment variable, or a line of the file `up.env` in `VAR_DIR`. They are
checked when a process starts; a wrong one ends it with a line that names it. The numbers of the
contract are settings with the contract's values; the row is named where there is one.

| setting | default | what it is |
|---|---|---|
"""


class Command(BaseCommand):
    """Prints the table of settings as Markdown."""

    help = "Print the table of settings, as docs/settings.md has it."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the page."""
        self.stdout.write(page(), ending="")


def page() -> str:
    """Return the page `docs/settings.md`: the deployment first, then what may be asked of it."""
    fields = sorted(Environment.model_fields.items(), key=lambda item: item[0] in OF_WORK)
    rows = [
        f"| `{name.upper()}` | {_default(field.default)} | {field.description} |"
        for name, field in fields
    ]
    return HEAD + "\n".join(rows) + "\n"


def _default(value: object) -> str:
    if value is PydanticUndefined or value is None or value in ("", (), {}):
        return ""
    if isinstance(value, Path):
        value = value.relative_to(ROOT)
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value}`"
