"""Changes of many rows of a list at once, as one dialog (A-427 to A-433).

The dialog says how many change and whom it leaves out, with the reason. When its button is pressed
it looks again, and those who suit no more are told with theirs, while the others are changed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from django import forms
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from accounts.actions import note_many
from accounts.models import User
from administration.dialogs import Blank, Dialog, Written, show, tell

M = TypeVar("M", bound=Model)

SELECTION = ("action", "select_across", "index", "_selected_action")
"""Fields of a list's form that say which rows an action is for."""


class BulkDialog(ABC, Generic[M]):
    """One bulk action: whom it changes, whom it leaves out and why, and what it does."""

    label: ClassVar[str] = ""
    """The action in the list's menu, in the log, and on the button."""
    verb: ClassVar[str] = ""
    """What the dialog says that happens to those it changes."""
    noun: ClassVar[str] = "row"
    """What one row is called; `s` makes several."""
    danger: ClassVar[bool] = False
    typed: ClassVar[bool] = False
    """Whether the words that say what happens have to be typed (A-432)."""

    def form(self, rows: QuerySet[M]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Return what it asks."""
        return Blank

    def named(self, row: M) -> str:
        """Return what the dialog calls a row that it leaves out."""
        return str(row)

    @abstractmethod
    def why_not(self, row: M, by: User) -> str:
        """Return why a row is left out, or nothing."""

    @abstractmethod
    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Change the rows that still suit; returns which those were."""

    def stayed(self, written: Written) -> str:
        """Return why a row that suited when it was chosen was not changed."""
        return "was changed by somebody else meanwhile."

    def details(self, written: Written) -> str:
        """Return what the log says beside the action."""
        return ""

    def count(self, number: int) -> str:
        """Write a number of rows."""
        return f"{number:,} {self.noun}{'' if number == 1 else 's'}"


def change_many(request: HttpRequest, rows: QuerySet[M], what: BulkDialog[M]) -> HttpResponse:
    """Show a bulk dialog, or do it; `rows` are those chosen that the filters still show (A-429)."""
    assert isinstance(request.user, User)
    by = request.user
    chosen = list(rows)
    reasons = {row.pk: what.why_not(row, by) for row in chosen}
    suits = [row for row in chosen if not reasons[row.pk]]
    left_out = [(what.named(row), reasons[row.pk]) for row in chosen if reasons[row.pk]]
    done: list[M] = []

    def do(written: Written) -> str:
        details = what.details(written)
        changed = set(what.change([row.pk for row in suits], by.id, written))
        done.extend(row for row in suits if row.pk in changed)
        note_many(by=by.id, action=what.label, targets=done, details=details)
        why = what.stayed(written)
        left_out.extend((what.named(row), why) for row in suits if row.pk not in changed)
        were = "was" if len(done) == 1 else "were"
        return f"{what.count(len(done))} {were} {what.verb} {details}".strip() + "."

    are = "is" if len(left_out) == 1 else "are"
    dialog = Dialog(
        title=f"{what.label}: {what.count(len(chosen))} selected",
        action=what.label,
        says=[
            f"{what.count(len(suits))} will be {what.verb}. "
            f"{what.count(len(left_out))} {are} left out."
        ],
        button=what.label,
        do=do,
        back=request.get_full_path(),
        form=what.form(rows),
        left_out=left_out,
        typed=f"{what.label.lower()} {what.count(len(suits))}" if what.typed and suits else "",
        danger=what.danger,
        carried=[(name, value) for name in SELECTION for value in request.POST.getlist(name)],
        works=bool(suits),
    )
    answer = show(request, dialog)
    if answer.status_code == 302 and left_out and done:
        were = "was" if len(done) == 1 else "were"
        return tell(request, dialog, f"{what.count(len(done))} {were} changed.")
    return answer
