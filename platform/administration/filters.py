"""Filters of the admin's lists (A-415, U-15)."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.models import Role, Standing, Tag, User
from administration.facts import Engagement, with_engagement

MOST_TAGS = 200
"""Tags that the filter lists; others are found on the page of tags."""


class TagFilter(admin.SimpleListFilter):
    """Users who have a tag."""

    title = "Tag"
    parameter_name = "tag"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the tags."""
        return [(name, name) for name in Tag.objects.values_list("name", flat=True)[:MOST_TAGS]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        """Keep who has it."""
        return queryset.filter(user_tags__tag__name=self.value()) if self.value() else queryset


class EngagementFilter(admin.SimpleListFilter):
    """Users by their newest Completion."""

    title = "Engagement"
    parameter_name = "engagement"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the four kinds."""
        return [(kind.name.lower(), kind.value) for kind in Engagement]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        """Keep those of one kind."""
        wanted = (self.value() or "").upper()
        if wanted not in Engagement.__members__:
            return queryset
        return with_engagement(queryset, Engagement[wanted])


class StandingFilter(admin.SimpleListFilter):
    """Active, suspended or deleted Users."""

    title = "Standing"
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the three."""
        return [(kind.value, str(kind.label)) for kind in Standing]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        """Keep those of one standing."""
        match self.value():
            case Standing.ACTIVE:
                return queryset.filter(suspended_at=None, deleted_at=None)
            case Standing.SUSPENDED:
                return queryset.filter(suspended_at__isnull=False, deleted_at=None)
            case Standing.DELETED:
                return queryset.filter(deleted_at__isnull=False)
        return queryset


class RoleFilter(admin.SimpleListFilter):
    """Users, staff or admins."""

    title = "Role"
    parameter_name = "role"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the three."""
        return [(kind.value, str(kind.label)) for kind in Role]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        """Keep those of one role."""
        match self.value():
            case Role.ADMIN:
                return queryset.filter(is_superuser=True)
            case Role.STAFF:
                return queryset.filter(is_superuser=False, is_staff=True)
            case Role.USER:
                return queryset.filter(is_staff=False)
        return queryset
