"""Keeps models warm: windows are made and removed here, and turned into floors of the launcher.

The clock has `keep_warm` called every few seconds; whoever changes a window, or begins or clears a
spend stop, calls it at once as well. A floor ends by itself when nobody repeats it.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from uuid import UUID

import structlog
from django.db import transaction
from django.utils import timezone

from accounts.actions import note
from billing import spend_stop
from inference import catalogue, valkey
from inference.catalogue import ModelEntry
from inference.client import LOST
from inference.fleet import Fleet
from operations.models import WarmWindow
from operations.windows import Span, days_sum, is_time_zone, open_span, words_of

log = structlog.get_logger()

LONGEST_HOURS = 24
"""Hours of "Warm now" at most (A-452)."""


class WindowRefused(Exception):
    """A window cannot be made; the message says why."""


def check_model(model_id: str) -> ModelEntry:
    """Return a model that can be kept warm from here.

    Raises:
        WindowRefused: for one that is not served, or that runs on a server of the operator's.
    """
    model = catalogue.current().find(model_id)
    if model is None:
        served = ", ".join(entry.id for entry in catalogue.current().enabled)
        raise WindowRefused(f"The model {model_id} is not served. The served models: {served}.")
    if model.backend.kind != "worker":
        raise WindowRefused(
            f"{model.id} runs on a server that is not started from here, so no window changes it."
        )
    return model


def add_window(
    *,
    model_id: str,
    days: Sequence[int],
    opens: time,
    closes: time,
    time_zone: str,
    by: UUID | None,
) -> WarmWindow:
    """Keep a model warm every week on `days` (0 for Monday to 6) between two times of the clock.

    Raises:
        WindowRefused: for a model, days or a time zone that there is not.
    """
    model = check_model(model_id)
    if not days or not set(days) <= set(range(7)):
        raise WindowRefused("Choose at least one day of the week.")
    if not is_time_zone(time_zone):
        raise WindowRefused(f"There is no time zone {time_zone}. An example is Europe/Prague.")
    window = WarmWindow(
        model=model.id,
        days=days_sum(days),
        opens=opens,
        closes=closes,
        time_zone=time_zone,
        made_at=timezone.now(),
        made_by_id=by,
    )
    return _made(window, "Add a window")


def warm_now(*, model_id: str, hours: int, by: UUID | None) -> WarmWindow:
    """Keep a model warm from now on, for 1 to 24 hours (C-627).

    Raises:
        WindowRefused: for another number of hours, or a model that there is not.
    """
    model = check_model(model_id)
    if not 1 <= hours <= LONGEST_HOURS:
        raise WindowRefused(f"Hours is a whole number from 1 to {LONGEST_HOURS}.")
    now = timezone.now()
    window = WarmWindow(
        model=model.id,
        starts_at=now,
        ends_at=now + timedelta(hours=hours),
        made_at=now,
        made_by_id=by,
    )
    return _made(window, "Warm now")


def _made(window: WarmWindow, action: str) -> WarmWindow:
    """Keep a window, with its line in the log (A-392), and set the floors at once."""
    with transaction.atomic():
        window.save(force_insert=True)
        details = f"{window.model}: {words_of(window)}"
        note(by=window.made_by_id, action=action, target=window, details=details)
        transaction.on_commit(keep_warm_now)
    return window


def remove_window(*, window_id: int, by: UUID | None) -> bool:
    """End a window, with a line in the log; False when it was removed before, or there is none."""
    with transaction.atomic():
        window = WarmWindow.objects.kept().select_for_update().filter(id=window_id).first()
        if window is None:
            return False
        window.removed_at, window.removed_by_id = timezone.now(), by
        window.save(update_fields=["removed_at", "removed_by"])
        details = f"{window.model}: {words_of(window)}"
        note(by=by, action="Remove the window", target=window, details=details)
        transaction.on_commit(keep_warm_now)
    return True


def windows_by_model(now: datetime) -> dict[str, list[WarmWindow]]:
    """Return the windows that may still open, by their model, in the order in which they began."""
    found: dict[str, list[WarmWindow]] = defaultdict(list)
    for window in WarmWindow.objects.kept().exclude(ends_at__lte=now).order_by("id"):
        found[window.model].append(window)
    return found


def open_spans(now: datetime) -> dict[str, Span]:
    """Return until when windows keep models warm now; none while new work is paused (C-623)."""
    if spend_stop.is_on():
        return {}
    spans = {model: open_span(windows, now) for model, windows in windows_by_model(now).items()}
    return {model: span for model, span in spans.items() if span is not None}


def keep_warm(fleet: Fleet, now: datetime) -> list[str]:
    """Set the floor of every model by its windows; return the models that have one.

    Raises:
        redis.RedisError: while Valkey is away.
    """
    spans = open_spans(now)
    for model in catalogue.current().enabled:
        span = spans.get(model.id)
        if span is None or model.backend.kind != "worker":
            fleet.let_cool(model.id)
        else:
            # Since when a container is missing, where one is: what `boot` counts its age from.
            since = fleet.floor(model.id)
            if since is None or fleet.workers(model.id):
                since = now.timestamp()
            fleet.keep_warm(model.id, since, (span.end - now).total_seconds())
    return [model.id for model in catalogue.current().enabled if model.id in spans]


def keep_warm_now() -> None:
    """Do it at once after a change; while Valkey is away the clock does it later."""
    try:
        keep_warm(Fleet(valkey.connection()), timezone.now())
    except LOST as lost:
        log.warning("floors are set later: Valkey cannot be reached", cause=str(lost))
