"""What the dialogs about Users ask."""

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.db.models import QuerySet
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from accounts.models import Tag, User
from administration.amounts import Amount, TagField, Words

LONGEST_REMARK = 5_000
MOST_HARVESTS = 1_000_000


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
        max_value=MOST_HARVESTS,
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
        Tag.objects.filter(user_tags__user__in=users.order_by().values("pk"))
        .distinct()
        .order_by("name")
        .values_list("name", flat=True)
    )

    class ChooseTag(forms.Form):
        tag = forms.ChoiceField(
            label="Tag", choices=[(name, name) for name in names], widget=UnfoldAdminSelectWidget
        )

    return ChooseTag


def told_allowance(tokens: int | None) -> str:
    """Write a monthly allowance for people; None is the deployment's."""
    return "the default" if tokens is None else f"{tokens:,}"
