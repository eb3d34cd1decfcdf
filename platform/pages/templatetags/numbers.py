"""How pages write numbers and times: thousands commas, UTC."""

from datetime import UTC, date, datetime

from django import template
from django.utils import timezone

register = template.Library()


@register.filter
def number(value: int | None) -> str:
    """Write a whole number with thousands commas, and a dash where there is none (A-121)."""
    return "–" if value is None else f"{value:,}"


@register.filter
def short_time(moment: datetime | None) -> str:
    """Write a time of today as `05:02 UTC`, an earlier one as its date (A-117)."""
    if moment is None:
        return ""
    moment = moment.astimezone(UTC)
    is_today = moment.date() == timezone.now().astimezone(UTC).date()
    return moment.strftime("%H:%M UTC") if is_today else day(moment.date())


@register.filter
def full_time(moment: datetime | None) -> str:
    """Write a time with its day, in UTC, whatever the day (A-117)."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@register.filter
def day(value: date | None) -> str:
    """Write a date as `3 Nov 2026`."""
    return "" if value is None else f"{value.day} {value:%b %Y}"
