"""Tags of Users: their form, and adding and removing them (A-421 to A-424)."""

import re
from collections.abc import Iterable
from uuid import UUID

from django.db import transaction

from accounts.models import TAG_LENGTH, Tag, UserTag

_FORM = re.compile(rf"[a-z0-9-]{{1,{TAG_LENGTH}}}\Z")


class TagInvalid(ValueError):
    """A text that is no tag."""


def tag_form(written: str) -> str:
    """Return what was written in the form of a tag: `Hiring 2026 08` is `hiring-2026-08`.

    Raises `TagInvalid` where that is no tag.
    """
    tag = re.sub(r"[\s_]+", "-", written.strip().lower())
    if not _FORM.match(tag):
        raise TagInvalid(
            f"A tag has 1 to {TAG_LENGTH} lowercase letters, digits and dashes, not {written!r}."
        )
    return tag


def add_tag(*, user_ids: Iterable[UUID], name: str, by: UUID | None) -> list[UUID]:
    """Give Users a tag, in tag form; returns those who did not have it."""
    with transaction.atomic():
        tag, _ = Tag.objects.get_or_create(name=name)
        wanted = set(user_ids)
        have = set(
            UserTag.objects.filter(tag=tag, user__in=wanted).values_list("user_id", flat=True)
        )
        new = wanted - have
        UserTag.objects.bulk_create(
            [UserTag(user_id=user_id, tag=tag, added_by_id=by) for user_id in new],
            ignore_conflicts=True,
        )
    return sorted(new)


def remove_tag(*, user_ids: Iterable[UUID], name: str) -> list[UUID]:
    """Take a tag off Users; returns those who had it. A tag that nobody has goes away."""
    with transaction.atomic():
        rows = UserTag.objects.filter(tag__name=name, user__in=set(user_ids))
        had = sorted(rows.values_list("user_id", flat=True))
        rows.delete()
        Tag.objects.filter(name=name, user_tags=None).delete()
    return had
