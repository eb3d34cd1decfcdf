"""The shape of what an admin does to one User: its words, its form, its change and its line."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.actions import note
from accounts.models import User
from accounts.people import Refused
from administration.dialogs import Blank, Dialog, Written, show
from administration.facts import Facts


@dataclass(frozen=True)
class Change:
    """What a dialog did: what to say to the admin, and what the log says beside the action."""

    said: str
    details: str = ""


class UserDialog(ABC):
    """One thing that an admin does to one User."""

    name: ClassVar[str]
    """Names its address, and the method of the list that opens it."""
    path: ClassVar[str]
    """The last part of its address."""
    label: ClassVar[str]
    """What menus, its title and its button call it."""
    logged: ClassVar[str] = ""
    """What the log calls it, where that is not its label."""
    danger: ClassVar[bool] = False
    typed: ClassVar[str] = ""
    for_oneself: ClassVar[bool] = True
    """Whether an admin may do it to themselves (A-421)."""

    def suits(self, user: User, facts: Facts) -> bool:
        """Whether menus offer it for this User (U-16)."""
        return user.deleted_at is None

    def title(self, user: User) -> str:
        """Return the dialog's title."""
        return f"{self.label}: {user.email}"

    @abstractmethod
    def says(self, user: User) -> str:
        """Return what the dialog says before it is done."""

    def form(self, user: User) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Return what it asks."""
        return Blank

    @abstractmethod
    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Do it, in the dialog's transaction; raises `Refused`."""

    def show(self, request: HttpRequest, user: User) -> HttpResponse:
        """Show the dialog, or do what it says and write the line of the log (A-392)."""
        assert isinstance(request.user, User)
        by = request.user.id
        action = self.logged or self.label

        def do(written: Written) -> str:
            if user.deleted_at is not None:
                raise Refused("This User is deleted.")
            change = self.change(user, by, written)
            note(by=by, action=action, target=user, details=change.details)
            return change.said

        return show(
            request,
            Dialog(
                title=self.title(user),
                action=action,
                says=[self.says(user)],
                button=self.label,
                do=do,
                back=page_of(user.id),
                form=self.form(user),
                danger=self.danger,
                typed=self.typed,
            ),
        )


def page_of(user_id: UUID) -> str:
    """Return the address of a User's page."""
    return reverse("admin:accounts_user_change", args=[user_id])
