"""Dialogs of the admin: what changes, whom it leaves out, what is asked, and a button.

A dialog is a page that a GET shows and whose POST does the thing, once: each carries a number, and
a second press of the same dialog finds it used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from django import forms
from django.contrib import messages
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.models import User
from accounts.people import Refused
from administration.amounts import PasswordAgain
from administration.confirmation import confirm, is_sensitive, label, needs_confirmation
from administration.site import page_context

ONCE = "once"
ONCE_SECONDS = 86_400
SHOWN = 100
"""Names that a dialog lists of those it leaves out."""

Written = dict[str, Any]
"""The checked fields of a dialog's form; each dialog knows its own."""


class Blank(forms.Form):
    """A dialog that asks nothing."""


@dataclass(frozen=True)
class Dialog:
    """One dialog: its words, its form, and what its button does.

    `do` runs in one transaction; it returns what to say afterwards, and raises `Refused`. `typed`
    are words that must be typed. `action` is what the log calls it, which says whether the admin's
    own password is asked for again.
    """

    title: str
    action: str
    says: Sequence[str]
    button: str
    do: Callable[[Written], str]
    back: str
    form: Callable[[Mapping[str, Any] | None], forms.Form] = Blank
    left_out: Sequence[tuple[str, str]] = ()
    typed: str = ""
    danger: bool = False
    carried: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """What its form sends along unseen: the selection of a list."""
    works: bool = True
    """Whether there is anything to do."""


def show(request: HttpRequest, dialog: Dialog) -> HttpResponse:
    """Show a dialog, or do what it says when its own form was sent."""
    sent = request.method == "POST" and ONCE in request.POST
    form = _whole_form(request, dialog, request.POST if sent else None)
    if not sent or not dialog.works or not form.is_valid():
        return _page(request, dialog, form, 400 if sent else 200)
    if is_sensitive(dialog.action) and needs_confirmation(request):
        fault = confirm(request, form.cleaned_data["own_password"])
        if fault:
            form.add_error("own_password", fault)
            return _page(request, dialog, form, 400)
    number = request.POST[ONCE][:64]
    if not cache.add(f"dialog:{number}", 1, ONCE_SECONDS):
        messages.warning(request, "This was done already; it was not done again.")
        return HttpResponseRedirect(dialog.back)
    try:
        with transaction.atomic():
            said = dialog.do(form.cleaned_data)
    except Refused as refused:
        cache.delete(f"dialog:{number}")
        form.add_error(None, str(refused))
        return _page(request, dialog, form, 409)
    messages.success(request, said)
    return HttpResponseRedirect(dialog.back)


def tell(request: HttpRequest, dialog: Dialog, said: str) -> HttpResponse:
    """Show how a change of many went: what was done, and each that was left out (A-433)."""
    shown = {**page_context(request, dialog.title), "dialog": dialog, "said": said}
    shown["left_out"] = dialog.left_out[:SHOWN]
    shown["more"] = max(0, len(dialog.left_out) - SHOWN)
    return TemplateResponse(request, "administration/told.html", shown)


def _whole_form(request: HttpRequest, dialog: Dialog, data: Mapping[str, Any] | None) -> forms.Form:
    """Return the dialog's form with the typed words and the password where they are wanted."""
    form = dialog.form(data)
    if dialog.typed:
        form.fields["typed"] = Typed(dialog.typed)
    if is_sensitive(dialog.action) and needs_confirmation(request):
        assert isinstance(request.user, User)
        form.fields["own_password"] = PasswordAgain(label=label(request.user))
    return form


class Typed(forms.CharField):
    """Words that have to be typed as they are shown (A-432)."""

    def __init__(self, words: str) -> None:
        widget = UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "data-typed": words})
        super().__init__(label=f"Type {words}", widget=widget)
        self.words = words

    def clean(self, value: object) -> str:
        """Refuse another text."""
        text = str(super().clean(value))
        if text != self.words:
            raise forms.ValidationError(f"Type exactly: {self.words}")
        return text


def _page(
    request: HttpRequest, dialog: Dialog, form: forms.Form, status: int = 200
) -> HttpResponse:
    shown = {
        **page_context(request, dialog.title),
        "dialog": dialog,
        "form": form,
        "once": token_hex(16),
        "left_out": dialog.left_out[:SHOWN],
        "more": max(0, len(dialog.left_out) - SHOWN),
    }
    return TemplateResponse(request, "administration/dialog.html", shown, status=status)
