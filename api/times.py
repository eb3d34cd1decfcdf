"""Moments as the API's answers write them."""

from datetime import UTC, datetime


def iso(moment: datetime) -> str:
    """Return a moment in UTC with milliseconds, such as `2026-11-03T09:30:00.123+00:00` (C-055)."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def iso_or_none(moment: datetime | None) -> str | None:
    """Return a moment as `iso` does, or None."""
    return None if moment is None else iso(moment)
