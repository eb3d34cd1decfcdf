"""What an admin does to one User or to many, as dialogs (A-417 to A-421, A-427 to A-433)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from accounts import people
from accounts.actions import note, note_many
from accounts.models import Remark, Role, Tag, User, UserTag
from accounts.tags import add_tag, remove_tag
from administration.amounts import Amount, TagField, Words
from administration.dialogs import Dialog, Written, show, tell
from billing.grants import grant, set_allowance, set_allowance_of_many, set_budget
from harvests.models import HarvestQuota

USERS = "admin:accounts_user_changelist"
LONGEST_REMARK = 5_000


class TokensForm(forms.Form):
    """An amount above 0."""

    tokens = Amount(label="Tokens")


class BudgetForm(forms.Form):
    """What the Budget is to have left."""

    tokens = Amount(label="Tokens", zero=True)


class AllowanceForm(forms.Form):
    """A monthly allowance; an empty one is the deployment's."""

    tokens = Amount(
        label="Tokens a month",
        zero=True,
        required=False,
        help_text="Such as 2.5M; 0 is none; empty is the default of this deployment.",
    )


class TagForm(forms.Form):
    """A tag to add."""

    tag = TagField()


class QuotaForm(forms.Form):
    """Harvests a month; an empty one is the deployment's number."""

    per_month = forms.IntegerField(
        label="Harvests a month",
        min_value=0,
        max_value=1_000_000,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "numeric"}),
        help_text="Empty is the default of this deployment.",
    )


class RemarkForm(forms.Form):
    """A remark about a User."""

    text = Words(label="Remark", most=LONGEST_REMARK, lines=5)


def had_tags(users: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
    """Return the form that chooses one of the tags that these Users have."""
    names = list(
        Tag.objects.filter(user_tags__user__in=users.values("pk"))
        .distinct()
        .order_by("name")
        .values_list("name", flat=True)
    )

    class ChooseTag(forms.Form):
        tag = forms.ChoiceField(
            label="Tag", choices=[(name, name) for name in names], widget=UnfoldAdminSelectWidget
        )

    return ChooseTag


def page_of(user_id: UUID) -> str:
    """Return the address of a User's page."""
    return reverse("admin:accounts_user_change", args=[user_id])


def one(
    request: HttpRequest,
    user: User,
    *,
    title: str,
    says: Sequence[str],
    button: str,
    do: Callable[[UUID, Written], str],
    form: Callable[[Mapping[str, Any] | None], forms.Form] = forms.Form,
    danger: bool = False,
    guarded: bool = False,
    typed: str = "",
) -> HttpResponse:
    """Show a dialog about one User; `do` gets the admin's id and what was written."""
    assert isinstance(request.user, User)
    by = request.user.id
    return show(
        request,
        Dialog(
            title=title,
            says=says,
            button=button,
            do=lambda written: do(by, written),
            back=page_of(user.id),
            form=form,
            danger=danger,
            guarded=guarded,
            typed=typed,
        ),
    )


def grant_one(user: User, by: UUID, written: Written) -> str:
    """Add tokens to the Budget (A-419)."""
    tokens = int(written["tokens"])
    grant(user_id=user.id, tokens=tokens, by=by)
    note(by=by, action="Grant tokens", target=user, details=f"{tokens:,}")
    return f"{tokens:,} tokens were added to the Budget of {user.email}."


def set_budget_one(user: User, by: UUID, written: Written) -> str:
    """Replace the Budget (A-419)."""
    tokens = int(written["tokens"])
    set_budget(user_id=user.id, tokens=tokens, by=by)
    note(by=by, action="Set the Budget", target=user, details=f"{tokens:,}")
    return f"The Budget of {user.email} is {tokens:,} tokens."


def set_allowance_one(user: User, by: UUID, written: Written) -> str:
    """Set the monthly allowance for this and later months (A-420)."""
    tokens = written["tokens"]
    set_allowance(user_id=user.id, tokens=tokens)
    told = "the default" if tokens is None else f"{tokens:,}"
    note(by=by, action="Set the monthly allowance", target=user, details=told)
    return f"The monthly allowance of {user.email} is {told}."


def add_tag_one(user: User, by: UUID, written: Written) -> str:
    """Give the User a tag."""
    if not add_tag(user_ids=[user.id], name=written["tag"], by=by):
        raise people.Refused(f"{user.email} has the tag {written['tag']} already.")
    note(by=by, action="Add tag", target=user, details=written["tag"])
    return f"{user.email} has the tag {written['tag']}."


def remove_tag_one(user: User, by: UUID, written: Written) -> str:
    """Take a tag off the User."""
    if not remove_tag(user_ids=[user.id], name=written["tag"]):
        raise people.Refused(f"{user.email} does not have the tag {written['tag']}.")
    note(by=by, action="Remove tag", target=user, details=written["tag"])
    return f"{user.email} does not have the tag {written['tag']} any more."


def suspend_one(user: User, by: UUID, written: Written) -> str:
    """Suspend the User."""
    people.suspend(user_id=user.id, by=by)
    note(by=by, action="Suspend", target=user)
    return f"{user.email} is suspended."


def restore_one(user: User, by: UUID, written: Written) -> str:
    """Restore the User."""
    people.restore(user_id=user.id, by=by)
    note(by=by, action="Restore", target=user)
    return f"{user.email} may sign in again, and their API keys work."


def role_one(user: User, role: Role) -> Callable[[UUID, Written], str]:
    """Return what gives the User a role."""

    def do(by: UUID, written: Written) -> str:
        people.set_role(user_id=user.id, role=role, by=by)
        note(by=by, action="Set the role", target=user, details=role.label)
        return f"{user.email} is {role.label.lower()} now."

    return do


def delete_one(user: User, by: UUID, written: Written) -> str:
    """Delete the User."""
    note(by=by, action="Delete", target=user)
    people.delete(user_id=user.id, by=by)
    return f"{user.email} is deleted."


def set_quota_one(user: User, by: UUID, written: Written) -> str:
    """Set the number of harvests a month; an empty one is the default."""
    per_month = written["per_month"]
    if per_month is None:
        HarvestQuota.objects.filter(user=user).delete()
    else:
        HarvestQuota.objects.update_or_create(user=user, defaults={"per_month": per_month})
    told = "the default" if per_month is None else f"{per_month:,}"
    note(by=by, action="Set the number of harvests", target=user, details=told)
    return f"Harvests a month for {user.email}: {told}."


def remark_one(user: User, by: UUID, written: Written) -> str:
    """Keep a remark."""
    Remark.objects.create(user=user, by_id=by, text=written["text"])
    note(by=by, action="Write a remark", target=user)
    return "The remark is kept."


class Many:
    """One bulk action: whom it changes, whom it leaves out and why, and what it does."""

    label = ""
    verb = ""
    """What the dialog says that happens to those it changes."""
    danger = False
    guarded = False
    needs_words = False

    def form(self, users: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Return what it asks."""
        return forms.Form

    def why_not(self, user: User, by: User) -> str:
        """Return why a User is left out, or nothing."""
        if user.deleted_at is not None:
            return "is deleted."
        return "is you." if user.id == by.id else ""

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Change the Users; returns whom it did change."""
        raise NotImplementedError

    def details(self, written: Written) -> str:
        """Return what the log says beside the action."""
        return ""


class Suspend(Many):
    """Suspend many, but no admin (A-431)."""

    label, verb, danger = "Suspend", "suspended", True

    def why_not(self, user: User, by: User) -> str:
        """Leave out admins and who is suspended."""
        if user.is_superuser:
            return "is an admin: change that from their own row."
        return super().why_not(user, by) or ("is suspended already." if user.suspended_at else "")

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Suspend."""
        return people.suspend_many(user_ids=ids, by=by)


class Restore(Many):
    """Restore many."""

    label, verb = "Restore", "restored"

    def why_not(self, user: User, by: User) -> str:
        """Leave out who is not suspended (A-430)."""
        return super().why_not(user, by) or ("" if user.suspended_at else "is not suspended.")

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Restore."""
        return people.restore_many(user_ids=ids, by=by)


class AddTag(Many):
    """Give many a tag; who has it is left out when it is known which."""

    label, verb = "Add tag", "given the tag"

    def form(self, users: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask for the tag."""
        return TagForm

    def why_not(self, user: User, by: User) -> str:
        """Leave out the deleted; a tag of one's own is no danger."""
        return "is deleted." if user.deleted_at is not None else ""

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Add."""
        return add_tag(user_ids=ids, name=written["tag"], by=by)

    def details(self, written: Written) -> str:
        """Name the tag."""
        return str(written["tag"])


class RemoveTag(AddTag):
    """Take a tag off many."""

    label, verb = "Remove tag", "rid of the tag"

    def form(self, users: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask which of their tags."""
        return had_tags(users)

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Remove."""
        return remove_tag(user_ids=ids, name=written["tag"])


class SetAllowance(Many):
    """Set the monthly allowance of many."""

    label, verb = "Set allowance", "given the monthly allowance"

    def form(self, users: QuerySet[User]) -> Callable[[Mapping[str, Any] | None], forms.Form]:
        """Ask for the tokens."""
        return AllowanceForm

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Set."""
        set_allowance_of_many(user_ids=ids, tokens=written["tokens"])
        return ids

    def details(self, written: Written) -> str:
        """Name the number."""
        tokens = written["tokens"]
        return "the default" if tokens is None else f"{tokens:,}"


class Delete(Many):
    """Delete many, but no admin; the words have to be typed (A-432)."""

    label, verb, danger, guarded, needs_words = "Delete", "deleted", True, True, True

    def why_not(self, user: User, by: User) -> str:
        """Leave out admins."""
        if user.is_superuser:
            return "is an admin: change that from their own row."
        return super().why_not(user, by)

    def change(self, ids: list[UUID], by: UUID, written: Written) -> list[UUID]:
        """Delete."""
        return people.delete_many(user_ids=ids, by=by)


def many(request: HttpRequest, users: QuerySet[User], what: Many) -> HttpResponse:
    """Show the dialog of a bulk action, or do it: `users` are those that the filters still show."""
    assert isinstance(request.user, User)
    by = request.user
    chosen = list(users.order_by("email"))
    reasons = {user.id: what.why_not(user, by) for user in chosen}
    suits = [user for user in chosen if not reasons[user.id]]
    left_out = [(user.email, reasons[user.id]) for user in chosen if reasons[user.id]]
    done: list[User] = []

    def do(written: Written) -> str:
        details = what.details(written)
        changed = set(what.change([user.id for user in suits], by.id, written))
        done.extend(user for user in suits if user.id in changed)
        note_many(by=by.id, action=what.label, targets=done, details=details)
        kept = [user for user in suits if user.id not in changed]
        left_out.extend((user.email, "was left as it is: it suits no more.") for user in kept)
        return f"{_users(len(done))} {_were(len(done))} {what.verb} {details}".strip() + "."

    dialog = Dialog(
        title=f"{what.label}: {_users(len(chosen))} selected",
        says=[
            f"{_users(len(suits))} will be {what.verb}. "
            f"{_users(len(left_out))} {_are(len(left_out))} left out."
        ],
        button=what.label,
        do=do,
        back=request.get_full_path(),
        form=what.form(users),
        left_out=left_out,
        typed=f"delete {_users(len(suits))}" if what.needs_words and suits else "",
        danger=what.danger,
        guarded=what.guarded,
        carried=[
            (name, value)
            for name in ("action", "select_across", "index", "_selected_action")
            for value in request.POST.getlist(name)
        ],
        works=bool(suits),
    )
    answer = show(request, dialog)
    if answer.status_code == 302 and left_out and done:
        return tell(request, dialog, f"{_users(len(done))} {_were(len(done))} changed.")
    return answer


def tags_of(user: User) -> list[str]:
    """Return a User's tags."""
    return list(
        UserTag.objects.filter(user=user).order_by("tag__name").values_list("tag__name", flat=True)
    )


def _users(count: int) -> str:
    return f"{count:,} User{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
