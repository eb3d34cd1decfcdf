"""What the page of a User tells beside the details: the person whole (A-434 to A-446)."""

from dataclasses import dataclass
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.db.models import QuerySet
from django.http import QueryDict

from access.models import Application
from access.providers import NAMES
from accounts.models import AdminAction, ApiKey, Remark, User
from accounts.two_factor import has_two_factor
from administration.facts import Facts, facts_of
from billing import report
from billing.models import Entry, Hold, KeyBudget, TokenRequest
from billing.report import LISTED, Splits
from billing.standing import Standing, standing_of
from feedback.models import Note
from harvests.models import Harvest, HarvestQuota
from pages.usage import Choice, choose, ranked, used_models

NEWEST = 50
"""Rows of each list on the page."""


@dataclass(frozen=True)
class KeyRow:
    """An API key, with what its own Budget has left if it has one."""

    key: ApiKey
    left: int | None


@dataclass(frozen=True)
class Person:
    """A User with everything that the page shows; lists are bounded."""

    user: User
    facts: Facts
    standing: Standing
    choice: Choice
    counted: Splits
    models: list[str]
    keys: list[KeyRow]
    applications: list[Application]
    requests: "QuerySet[TokenRequest]"
    changes: "QuerySet[Entry]"
    completions: "QuerySet[Hold]"
    harvests: "QuerySet[Harvest]"
    quota: int | None
    notes: "QuerySet[Note]"
    remarks: "QuerySet[Remark]"
    actions: "QuerySet[AdminAction]"
    providers: list[str]
    two_factor: bool

    @property
    def by_model(self) -> list[tuple[str, Any]]:
        """Tokens by model, the most used first."""
        return ranked(self.counted)


def person(user: User, query: QueryDict) -> Person:
    """Read a User whole; days and model of `Budget and usage` come from the address (A-437)."""
    choice = choose(user, query)
    counted = report.splits(choice.scope)
    left = dict(KeyBudget.objects.filter(key__user=user).values_list("key", "left"))
    keys = ApiKey.objects.filter(user=user).order_by("-created_at")[:NEWEST]
    quota = HarvestQuota.objects.filter(user=user).values_list("per_month", flat=True).first()
    linked = SocialAccount.objects.filter(user=user).values_list("provider", flat=True)
    return Person(
        user=user,
        facts=facts_of([user])[user.id],
        standing=standing_of(user.id),
        choice=choice,
        counted=counted,
        models=used_models(choice, counted),
        keys=[KeyRow(key, left.get(key.id)) for key in keys],
        applications=list(
            Application.objects.filter(user=user)
            .select_related("reviewed_by")
            .order_by("-submitted_at")[:NEWEST]
        ),
        requests=TokenRequest.objects.filter(user=user).order_by("-sent_at")[:NEWEST],
        changes=report.budget_history(user.id),
        completions=report.listed(choice.scope)[:LISTED],
        harvests=Harvest.objects.filter(key__user=user).order_by("-created_at")[:NEWEST],
        quota=quota,
        notes=Note.objects.filter(user=user).order_by("-sent_at")[:NEWEST],
        remarks=Remark.objects.filter(user=user).select_related("by")[:NEWEST],
        actions=AdminAction.objects.filter(kind="accounts.user", target_id=str(user.id))
        .select_related("by")
        .order_by("-id")[:NEWEST],
        providers=[NAMES.get(provider, provider) for provider in linked],
        two_factor=has_two_factor(user),
    )
