"""What an admin does to one User, each a dialog (A-417 to A-421, A-438, A-442, A-586).

The row of the list and the page of the User offer the same dialogs; which of them suit a User is
decided here, once.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.conf import settings

from accounts.models import Remark, User, UserTag
from accounts.people import Refused
from accounts.tags import add_tag, remove_tag
from administration.dialogs import Written
from administration.facts import Facts, facts_of
from administration.user_dialog import Change, UserDialog
from administration.user_forms import (
    AllowanceForm,
    BudgetForm,
    QuotaForm,
    RemarkForm,
    TagForm,
    TokensForm,
    had_tags,
    told_allowance,
)
from administration.user_standing import (
    Delete,
    MakeAdmin,
    MakeStaff,
    RemoveRole,
    Restore,
    Suspend,
)
from billing.grants import grant, set_allowance, set_budget
from harvests.models import HarvestQuota


class _Tokens(UserDialog):
    """A dialog about tokens, which says how they stand."""

    asks: ClassVar[type[forms.Form]]

    def says(self, user: User) -> str:
        """Say what is left and what a month gives."""
        facts = facts_of([user])[user.id]
        return (
            f"The Budget has {facts.budget:,} tokens left, and the monthly allowance is "
            f"{facts.allowance:,}."
        )

    def form(self, user: User) -> type[forms.Form]:
        """Ask for tokens (A-418)."""
        return self.asks


class GrantTokens(_Tokens):
    """Add to the Budget (A-419)."""

    name, path, label, asks = "grant_tokens", "grant", "Grant tokens", TokensForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Grant."""
        tokens = int(written["tokens"])
        grant(user_id=user.id, tokens=tokens, by=by)
        return Change(f"{tokens:,} tokens were added to the Budget of {user.email}.", f"{tokens:,}")


class SetTheBudget(_Tokens):
    """Replace the Budget (A-419)."""

    name, path, label, asks = "set_the_budget", "budget", "Set the Budget", BudgetForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Set."""
        tokens = int(written["tokens"])
        set_budget(user_id=user.id, tokens=tokens, by=by)
        return Change(f"The Budget of {user.email} is {tokens:,} tokens.", f"{tokens:,}")


class SetTheAllowance(_Tokens):
    """Set the monthly allowance for this and later months (A-420)."""

    name, path, label = "set_allowance", "allowance", "Set the monthly allowance"
    asks = AllowanceForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Set."""
        set_allowance(user_id=user.id, tokens=written["tokens"])
        told = told_allowance(written["tokens"])
        return Change(f"The monthly allowance of {user.email} is {told}.", told)


class _Tags(UserDialog):
    """A dialog about tags, which says which there are."""

    def says(self, user: User) -> str:
        """Say the tags."""
        return f"Tags: {', '.join(tags_of(user)) or 'none'}."


class AddTag(_Tags):
    """Give the User a tag (A-424)."""

    name, path, label = "add_tag", "add-tag", "Add tag"

    def form(self, user: User) -> type[forms.Form]:
        """Ask for the tag."""
        return TagForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Add."""
        tag = str(written["tag"])
        if not add_tag(user_ids=[user.id], name=tag, by=by):
            raise Refused(f"{user.email} has the tag {tag} already.")
        return Change(f"{user.email} has the tag {tag}.", tag)


class RemoveTag(_Tags):
    """Take a tag off the User (A-424)."""

    name, path, label = "remove_tag", "remove-tag", "Remove tag"

    def suits(self, user: User, facts: Facts) -> bool:
        """Whether there is one."""
        return super().suits(user, facts) and bool(facts.tags)

    def form(self, user: User) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask which of the User's tags."""
        return had_tags(User.objects.filter(id=user.id))

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Remove."""
        tag = str(written["tag"])
        if not remove_tag(user_ids=[user.id], name=tag):
            raise Refused(f"{user.email} does not have the tag {tag}.")
        return Change(f"{user.email} does not have the tag {tag} any more.", tag)


class SetHarvests(UserDialog):
    """Set how many harvests a month the User's keys may start (A-442)."""

    name, path, label = "harvest_quota", "harvests", "Set the number of harvests"

    def says(self, user: User) -> str:
        """Say the default."""
        return f"The default is {settings.BASALT.harvests_per_month:,} a month for each API key."

    def form(self, user: User) -> type[forms.Form]:
        """Ask for the number."""
        return QuotaForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Set; an empty number is the default."""
        per_month = written["per_month"]
        if per_month is None:
            HarvestQuota.objects.filter(user=user).delete()
        else:
            HarvestQuota.objects.update_or_create(user=user, defaults={"per_month": per_month})
        told = "the default" if per_month is None else f"{per_month:,}"
        return Change(f"Harvests a month for {user.email}: {told}.", told)


class WriteRemark(UserDialog):
    """Write a remark that only people with a role read (A-586)."""

    name, path, label = "remark", "remark", "Write a remark"

    def says(self, user: User) -> str:
        """Say who reads it."""
        return "It is kept with your name and the time; the User never sees it."

    def form(self, user: User) -> type[forms.Form]:
        """Ask for the text."""
        return RemarkForm

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Keep it."""
        Remark.objects.create(user=user, by_id=by, text=written["text"])
        return Change("The remark is kept.")


ROW: tuple[UserDialog, ...] = (
    GrantTokens(),
    SetTheBudget(),
    SetTheAllowance(),
    AddTag(),
    RemoveTag(),
    Suspend(),
    Restore(),
    MakeAdmin(),
    MakeStaff(),
    RemoveRole(),
    Delete(),
)
"""The menu of a User's row, in its order (A-417)."""

ALL: tuple[UserDialog, ...] = (*ROW, SetHarvests(), WriteRemark())
"""Every dialog about one User."""


def offered(user: User, facts: Facts, by: UUID) -> list[str]:
    """Return the names of the row's dialogs that suit a User, for the admin `by` (U-16)."""
    return [
        dialog.name
        for dialog in ROW
        if dialog.suits(user, facts) and (dialog.for_oneself or user.id != by)
    ]


def tags_of(user: User) -> list[str]:
    """Return a User's tags."""
    return list(
        UserTag.objects.filter(user=user).order_by("tag__name").values_list("tag__name", flat=True)
    )
