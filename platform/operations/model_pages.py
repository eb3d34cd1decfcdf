"""Models, as a page of the admin: floors, warm windows and what they cost (9.10)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from accounts.models import User
from administration.site import admins_only, page_context
from billing import spend_stop
from inference import catalogue, valkey
from inference.catalogue import ModelEntry
from inference.fleet import Fleet, ModelState
from operations import warm
from operations.models import WarmWindow
from operations.warm import LONGEST_HOURS, WindowRefused
from operations.windows import (
    WEEK_DAYS,
    cost,
    days_sum,
    hours_a_week,
    hours_between,
    is_time_zone,
    open_span,
    words_of,
)

WEEK = timedelta(days=7)
SLOW_START = 600
"""Seconds from which a start is so long that the page says when a window should begin (A-458)."""


@dataclass(frozen=True)
class ModelRow:
    """One model on the page."""

    model: ModelEntry
    state: ModelState
    floor: int
    """Containers kept without requests now; 0 while new work is paused (A-447, A-457)."""
    until: datetime | None
    """When the open windows end."""
    next_week: Decimal
    """US dollars of its windows in the next 7 days (A-447, A-456)."""

    @property
    def words(self) -> str:
        """Its state in words."""
        boot = self.state.boot.stage.label if self.state.boot else ""
        return ", ".join(filter(None, ("Warm" if self.state.warm else "Cold", boot)))

    @property
    def can_be_kept(self) -> bool:
        """Whether windows work on it."""
        return self.model.backend.kind == "worker"


@dataclass(frozen=True)
class WindowRow:
    """One warm window on the page."""

    window: WarmWindow
    when: str
    cost: str
    """What it costs a week, or in all."""
    is_open: bool


def model_rows(now: datetime) -> list[ModelRow]:
    """Return every served model, with what its windows cost."""
    fleet, windows = Fleet(valkey.connection()), warm.windows_by_model(now)
    is_paused = spend_stop.is_on()
    rows = []
    for model in catalogue.current().enabled:
        own = windows.get(model.id, [])
        span = None if is_paused else open_span(own, now)
        hours = hours_between(own, now, now + WEEK)
        rows.append(
            ModelRow(
                model=model,
                state=fleet.state(model),
                floor=int(span is not None),
                until=span.end if span else None,
                next_week=cost(hours, model.price_per_hour),
            )
        )
    return rows


def window_rows(now: datetime) -> list[WindowRow]:
    """Return the windows that may still open, by model."""
    return [
        window_row(window, now)
        for windows in warm.windows_by_model(now).values()
        for window in windows
    ]


def window_row(window: WarmWindow, now: datetime) -> WindowRow:
    """Return a window in words, with its cost at the catalogue's price."""
    entry = catalogue.current().entry(window.model)
    price = entry.price_per_hour if entry else Decimal(0)
    is_open = open_span([window], now) is not None
    if window.opens is not None and window.closes is not None:
        dollars = cost(hours_a_week(window.days, window.opens, window.closes), price)
        return WindowRow(window, words_of(window), f"${dollars:,.2f} a week", is_open)
    assert window.starts_at is not None
    assert window.ends_at is not None
    hours = Decimal((window.ends_at - window.starts_at).total_seconds()) / 3600
    return WindowRow(window, words_of(window), f"${cost(hours, price):,.2f}", is_open)


class WindowForm(forms.Form):
    """`Add a window` (A-449)."""

    days = forms.TypedMultipleChoiceField(
        label="Days of the week",
        coerce=int,
        choices=list(enumerate(WEEK_DAYS)),
        widget=forms.CheckboxSelectMultiple,
    )
    opens = forms.TimeField(label="From", widget=forms.TimeInput(attrs={"type": "time"}))
    closes = forms.TimeField(label="To", widget=forms.TimeInput(attrs={"type": "time"}))
    time_zone = forms.CharField(label="Time zone", initial="UTC", max_length=64)

    def clean_time_zone(self) -> str:
        """Take the name of a time zone."""
        name = str(self.cleaned_data["time_zone"]).strip()
        if not is_time_zone(name):
            raise forms.ValidationError("There is no such time zone. An example is Europe/Prague.")
        return name

    def hours(self) -> Decimal:
        """Return the hours of a week; the form must be valid."""
        given = self.cleaned_data
        return hours_a_week(days_sum(given["days"]), given["opens"], given["closes"])


class WarmForm(forms.Form):
    """`Warm now` (A-452)."""

    hours = forms.IntegerField(label="Hours", min_value=1, max_value=LONGEST_HOURS, initial=1)


@require_safe
def models(request: HttpRequest) -> HttpResponse:
    """Show the models and their windows."""
    now = timezone.now()
    rows = model_rows(now)
    slow = [row.model for row in rows if row.model.start_seconds >= SLOW_START]
    minutes = sorted(round(model.start_seconds / 60) for model in slow)
    context = page_context(request, "Models") | {
        "rows": rows,
        "windows": window_rows(now),
        "stop": spend_stop.current(),
        "is_admin": _is_admin(request),
        "slow": [model.id for model in slow],
        "fastest": minutes[0] - 4 if minutes else 0,
        "slowest": minutes[-1] + 4 if minutes else 0,
    }
    return render(request, "admin/reports/models.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@admins_only
def add_window(request: HttpRequest, model_id: str) -> HttpResponse:
    """Ask for a window, with its cost a week, and make it."""
    model = _model(model_id)
    form = WindowForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        warm.add_window(
            model_id=model.id,
            days=given["days"],
            opens=given["opens"],
            closes=given["closes"],
            time_zone=given["time_zone"],
            by=_admin(request).id,
        )
        messages.success(request, f"{model.id} is kept warm at these times.")
        return HttpResponseRedirect(reverse("admin:models"))
    price = _weekly_cost(form, model) if form.is_bound and form.is_valid() else ""
    return _form(request, "Add a window", model, form, price, "Save the window")


@require_http_methods(["GET", "HEAD", "POST"])
@admins_only
def warm_now(request: HttpRequest, model_id: str) -> HttpResponse:
    """Ask for hours, with their cost, and keep the model warm from now on."""
    model = _model(model_id)
    form = WarmForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        hours = form.cleaned_data["hours"]
        warm.warm_now(model_id=model.id, hours=hours, by=_admin(request).id)
        messages.success(request, f"{model.id} starts, and is kept warm for {hours} hours.")
        return HttpResponseRedirect(reverse("admin:models"))
    return _form(request, "Warm now", model, form, _hourly_cost(model, 1), "Warm now")


@require_safe
@admins_only
def preview(request: HttpRequest, model_id: str) -> HttpResponse:
    """Answer what the fields of a form would cost, as they are now (A-451)."""
    model = _model(model_id)
    if "hours" in request.GET:
        warm_form = WarmForm(request.GET)
        words = _hourly_cost(model, warm_form.cleaned_data["hours"]) if warm_form.is_valid() else ""
        return JsonResponse({"cost": words})
    form = WindowForm(request.GET)
    return JsonResponse({"cost": _weekly_cost(form, model) if form.is_valid() else ""})


@require_http_methods(["GET", "HEAD", "POST"])
@admins_only
def remove(request: HttpRequest, window_id: int) -> HttpResponse:
    """Ask whether a window shall go, with its cost, and remove it (A-454)."""
    window = WarmWindow.objects.kept().filter(id=window_id).first()
    if window is None:
        raise Http404("There is no such window.")
    row = window_row(window, timezone.now())
    if request.method == "POST":
        warm.remove_window(window_id=window.id, by=_admin(request).id)
        messages.success(request, "The window is removed.")
        return HttpResponseRedirect(reverse("admin:models"))
    context = page_context(request, "Remove a window") | {"row": row}
    return render(request, "admin/reports/remove.html", context)


def _form(
    request: HttpRequest, title: str, model: ModelEntry, form: forms.Form, price: str, button: str
) -> HttpResponse:
    context = page_context(request, title) | {
        "model": model,
        "form": form,
        "cost": price,
        "button": button,
        "stop": spend_stop.current(),
    }
    status = 400 if form.is_bound and not form.is_valid() else 200
    return render(request, "admin/reports/window.html", context, status=status)


def _weekly_cost(form: WindowForm, model: ModelEntry) -> str:
    hours = form.hours()
    return f"${cost(hours, model.price_per_hour):,.2f} a week, for {hours.normalize():f} hours"


def _hourly_cost(model: ModelEntry, hours: int) -> str:
    return f"${cost(Decimal(hours), model.price_per_hour):,.2f}, and it ends by itself"


def _model(model_id: str) -> ModelEntry:
    """Return a model that windows work on; raises `Http404` for another."""
    try:
        return warm.check_model(model_id)
    except WindowRefused as refused:
        raise Http404(str(refused)) from None


def _is_admin(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_admin", False))


def _admin(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
