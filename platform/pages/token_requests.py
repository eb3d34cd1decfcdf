"""The page Request more tokens: a form, and what became of earlier requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from billing.amounts import AmountUnreadable, read_tokens
from billing.models import Decision, TokenRequest
from billing.token_requests import ANSWER_LENGTH, Answers, RequestWaits, send_request
from completions.failures import NUL_MESSAGE
from inference import catalogue
from pages.shell import AppRequest, signed_in

LISTED = 100
TEXTS = {
    "project": ("Project", True),
    "planned_usage": ("Planned usage", True),
    "reckoning": ("How you got the number", False),
    "results": ("Results", False),
    "links": ("Links", False),
    "needed_when": ("When you need them", False),
}
"""The questions that are answered in words: label, and whether they must be answered."""


@dataclass
class Form:
    """The form as it was filled in, with what to fix (A-211)."""

    tokens: str = ""
    models: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def questions(self) -> list[tuple[str, str, bool, str, str]]:
        """Name, label, whether required, answer and fault of each question in words."""
        return [
            (name, label, required, self.texts.get(name, ""), self.faults.get(name, ""))
            for name, (label, required) in TEXTS.items()
        ]


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def page(request: AppRequest) -> HttpResponse:
    """Show the form, or store what was sent (A-207 to A-216)."""
    form, status = Form(), 200
    if request.method == "POST":
        form = read_form(request.POST)
        answers = check_form(form)
        if answers is not None:
            try:
                send_request(user=request.user, answers=answers)
            except RequestWaits:
                form.faults[""] = "A request of yours waits for a decision."
            else:
                messages.success(request, "Request sent.")
                return redirect("token-request")
        status = 400
    requests = list(TokenRequest.objects.filter(user=request.user)[:LISTED])
    context = {
        "form": form,
        "served": catalogue.current().enabled,
        "requests": requests,
        "waits": any(each.status == Decision.WAITING for each in requests),
        "length": ANSWER_LENGTH,
    }
    return render(request, "app/token_request.html", context, status=status)


def read_form(sent: QueryDict) -> Form:
    """Take what was written, with LF line breaks (A-572)."""
    texts = {name: sent.get(name, "").replace("\r\n", "\n") for name in TEXTS}
    return Form(sent.get("tokens", ""), tuple(sent.getlist("models")), texts)


def check_form(form: Form) -> Answers | None:
    """Return the answers, or None after noting in `form.faults` what to fix."""
    tokens = 0
    try:
        tokens = read_tokens(form.tokens)
    except AmountUnreadable as unreadable:
        form.faults["tokens"] = str(unreadable)
    served = {entry.id for entry in catalogue.current().enabled}
    if not form.models or not served.issuperset(form.models):
        form.faults["models"] = "Choose one model or more."
    for name, (_, required) in TEXTS.items():
        text = form.texts[name]
        if "\0" in text:
            form.faults[name] = NUL_MESSAGE
        elif required and not text.strip():
            form.faults[name] = "Please answer this."
        elif len(text) > ANSWER_LENGTH:
            form.faults[name] = f"An answer has at most {ANSWER_LENGTH:,} characters."
    if form.faults:
        return None
    return Answers(
        tokens=tokens, models=form.models, **{n: t.strip() for n, t in form.texts.items()}
    )
