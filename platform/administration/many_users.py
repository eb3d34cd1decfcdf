"""The bulk actions on Users (A-427 to A-433, A-495)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import QuerySet

from accounts import people
from accounts.models import User
from accounts.tags import add_tag, remove_tag
from administration.bulk import BulkDialog
from administration.dialogs import Written
from administration.user_forms import AllowanceForm, TagForm, had_tags, told_allowance
from billing.grants import set_allowance_of_many

AN_ADMIN = "is an admin: change that from their own row."


class ManyUsers(BulkDialog[User]):
    """A bulk action on Users: never on oneself or on who is deleted (A-426)."""

    noun = "User"

    def named(self, row: User) -> str:
        """Call a User by their email."""
        return str(row.email)

    def why_not(self, row: User, by: User) -> str:
        """Leave out the deleted, and oneself."""
        if row.deleted_at is not None:
            return "is deleted."
        return "is you." if row.id == by.id else ""


class Suspend(ManyUsers):
    """Suspend many, but no admin (A-431)."""

    label, verb, danger = "Suspend", "suspended", True

    def why_not(self, row: User, by: User) -> str:
        """Leave out admins and who is suspended."""
        if row.is_superuser:
            return AN_ADMIN
        return super().why_not(row, by) or ("is suspended already." if row.suspended_at else "")

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Suspend."""
        return people.suspend_many(user_ids=ids, by=by)


class Restore(ManyUsers):
    """Restore many."""

    label, verb = "Restore", "restored"

    def why_not(self, row: User, by: User) -> str:
        """Leave out who is not suspended (A-430)."""
        return super().why_not(row, by) or ("" if row.suspended_at else "is not suspended.")

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Restore."""
        return people.restore_many(user_ids=ids, by=by)


class AddTag(ManyUsers):
    """Give many a tag; who has it is left out once it is known which (A-430)."""

    label, verb = "Add tag", "given the tag"

    def form(self, rows: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask for the tag."""
        return TagForm

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Add."""
        return add_tag(user_ids=ids, name=written["tag"], by=by)

    def stayed(self, written: Written) -> str:
        """Say that they had it."""
        return f"has the tag {written['tag']} already."

    def details(self, written: Written) -> str:
        """Name the tag."""
        return str(written["tag"])


class RemoveTag(ManyUsers):
    """Take a tag off many; who does not have it is left out once it is known which."""

    label, verb = "Remove tag", "rid of the tag"

    def form(self, rows: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask which of their tags."""
        return had_tags(rows)

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Remove."""
        return remove_tag(user_ids=ids, name=written["tag"])

    def stayed(self, written: Written) -> str:
        """Say that they did not have it."""
        return f"does not have the tag {written['tag']}."

    def details(self, written: Written) -> str:
        """Name the tag."""
        return str(written["tag"])


class SetAllowance(ManyUsers):
    """Set the monthly allowance of many."""

    label, verb = "Set allowance", "given the monthly allowance"

    def form(self, rows: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask for the tokens."""
        return AllowanceForm

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Set."""
        set_allowance_of_many(user_ids=ids, tokens=written["tokens"])
        return list(ids)

    def details(self, written: Written) -> str:
        """Name the number."""
        return told_allowance(written["tokens"])


class Delete(ManyUsers):
    """Delete many, but no admin; the words have to be typed (A-432)."""

    label, verb, danger, typed = "Delete", "deleted", True, True

    def why_not(self, row: User, by: User) -> str:
        """Leave out admins."""
        return AN_ADMIN if row.is_superuser else super().why_not(row, by)

    def change(self, ids: Sequence[UUID], by: UUID, written: Written) -> list[UUID]:
        """Delete."""
        return people.delete_many(user_ids=ids, by=by)


ACTIONS: tuple[type[ManyUsers], ...] = (
    Suspend,
    Restore,
    AddTag,
    RemoveTag,
    SetAllowance,
    Delete,
)
"""The menu `Selected Users`, in its order (A-427)."""
