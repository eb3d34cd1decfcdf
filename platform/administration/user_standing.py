"""Dialogs about whether a User may sign in, what they may do in the admin, and their delete."""

from typing import ClassVar
from uuid import UUID

from accounts import people
from accounts.models import Role, User
from administration.dialogs import Written
from administration.facts import Facts
from administration.user_dialog import Change, UserDialog


class Suspend(UserDialog):
    """End the User's access until a restore."""

    name, path, label, danger = "suspend", "suspend", "Suspend", True
    for_oneself = False

    def suits(self, user: User, facts: Facts) -> bool:
        """Whether the User may sign in."""
        return user.is_active

    def says(self, user: User) -> str:
        """Say what ends."""
        return (
            "Every session ends, every API key is refused, and work that waits fails. "
            "No email goes out. A restore brings the sign-in and the keys back."
        )

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Suspend."""
        people.suspend(user_id=user.id, by=by)
        return Change(f"{user.email} is suspended.")


class Restore(UserDialog):
    """Give a suspended User the access back."""

    name, path, label = "restore", "restore", "Restore"

    def suits(self, user: User, facts: Facts) -> bool:
        """Whether the User is suspended."""
        return super().suits(user, facts) and user.suspended_at is not None

    def says(self, user: User) -> str:
        """Say what comes back."""
        return "The sign-in and the API keys work again. Work that failed does not run again."

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Restore."""
        people.restore(user_id=user.id, by=by)
        return Change(f"{user.email} may sign in again, and their API keys work.")


class _GiveRole(UserDialog):
    """Make the User an admin, staff, or neither."""

    logged, for_oneself = "Set the role", False
    role: ClassVar[Role]
    told: ClassVar[str]

    def suits(self, user: User, facts: Facts) -> bool:
        """Whether the User may have a role and has another one."""
        return user.role != self.role and (user.is_active or self.role == Role.USER)

    def says(self, user: User) -> str:
        """Say what the role lets do."""
        return f"{user.email} {self.told}."

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Set the role (A-421)."""
        people.set_role(user_id=user.id, role=self.role, by=by)
        return Change(f"{user.email} is {self.role.label.lower()} now.", str(self.role.label))


class MakeAdmin(_GiveRole):
    """Let the User change everything here."""

    name, path, label, role = "make_admin", "make-admin", "Make admin", Role.ADMIN
    told = "may change everything in the admin"


class MakeStaff(_GiveRole):
    """Let the User decide and read."""

    name, path, label, role = "make_staff", "make-staff", "Make staff", Role.STAFF
    told = "may decide Applications and token requests, and read the rest of the admin"


class RemoveRole(_GiveRole):
    """Take the role away."""

    name, path, label, role, danger = (
        "remove_role",
        "remove-role",
        "Remove admin",
        Role.USER,
        True,
    )
    told = "may not open the admin any more"


class Delete(UserDialog):
    """Delete the User (A-495, U-35)."""

    name, path, label, danger = "delete_user", "delete-user", "Delete", True
    typed, for_oneself = "delete 1 User", False

    def says(self, user: User) -> str:
        """Say what ends, and what stays."""
        return (
            "Sign-in, sessions, API keys, linked providers, tags and the name end now. What "
            "the User wrote is erased later; rows that count tokens stay. The address can "
            "apply again. This cannot be undone."
        )

    def change(self, user: User, by: UUID, written: Written) -> Change:
        """Delete."""
        people.delete(user_id=user.id, by=by)
        return Change(f"{user.email} is deleted.")
