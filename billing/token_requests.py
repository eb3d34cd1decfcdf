"""Requests for more tokens: one waits at a time, and an admin decides it (A-207 to A-219)."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.mail import Button, Words, post, post_to_team
from accounts.models import MailKind, User
from billing.grants import grant
from billing.models import Decision, TokenRequest

ANSWER_LENGTH = 5_000
"""Characters of one answer at most."""


class RequestWaits(Exception):
    """The User has a request that nobody decided yet (A-213)."""


class AlreadyDecided(Exception):
    """The request was approved or rejected before."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a User writes in the form, checked; the last four may be empty."""

    tokens: int
    models: Sequence[str]
    project: str
    planned_usage: str
    reckoning: str = ""
    results: str = ""
    links: str = ""
    needed_when: str = ""


def send_request(*, user: User, answers: Answers) -> TokenRequest:
    """Store a request (A-212). Raises `RequestWaits` while an earlier one is undecided."""
    try:
        with transaction.atomic():
            request = TokenRequest.objects.create(
                user=user,
                tokens=answers.tokens,
                model_ids=list(answers.models),
                project=answers.project,
                planned_usage=answers.planned_usage,
                reckoning=answers.reckoning,
                results=answers.results,
                links=answers.links,
                needed_when=answers.needed_when,
                sent_at=timezone.now(),
            )
            _tell_team(request)
    except IntegrityError:
        raise RequestWaits("a request of this User waits for a decision") from None
    return request


def approve(*, request_id: UUID, tokens: int, by: User, note: str = "") -> TokenRequest:
    """Grant `tokens`, at least 1, to the Budget of who asked, at once usable (A-217, A-218).

    Raises `AlreadyDecided`.
    """
    with transaction.atomic():
        request = _waiting(request_id)
        request.status, request.granted = Decision.APPROVED, tokens
        _decide(request, by, note)
        grant(user_id=request.user_id, tokens=tokens, by=by.id)
    return request


def reject(*, request_id: UUID, by: User, note: str = "") -> TokenRequest:
    """Decide against a request, with a note for the User (A-216). Raises `AlreadyDecided`."""
    with transaction.atomic():
        request = _waiting(request_id)
        request.status = Decision.REJECTED
        _decide(request, by, note)
    return request


def _waiting(request_id: UUID) -> TokenRequest:
    request = TokenRequest.objects.select_for_update().get(id=request_id)
    if request.status != Decision.WAITING:
        raise AlreadyDecided(f"the request is {request.status} already")
    return request


def _decide(request: TokenRequest, by: User, note: str) -> None:
    request.note, request.decided_by, request.decided_at = note, by, timezone.now()
    request.save(update_fields=["status", "granted", "note", "decided_by", "decided_at"])
    _tell_user(request)


def _tell_team(request: TokenRequest) -> None:
    """Mail the answers to the team (A-214, A-544)."""
    facts = [
        ("Tokens", f"{request.tokens:,}"),
        ("Models", ", ".join(request.model_ids)),
        ("Project", request.project),
        ("Planned usage", request.planned_usage),
        ("How you got the number", request.reckoning),
        ("Results", request.results),
        ("Links", request.links),
        ("When you need them", request.needed_when),
    ]
    words = Words(
        subject=f"Token request from {request.user.email}",
        paragraphs=[f"{request.user.get_full_name()} asks for {request.tokens:,} tokens."],
        button=Button("Token requests", "/admin/billing/tokenrequest/"),
        facts=[(question, answer) for question, answer in facts if answer],
    )
    post_to_team(kind=MailKind.TOKEN_REQUEST, words=words)


def _tell_user(request: TokenRequest) -> None:
    """Mail the decision to who asked (A-593)."""
    if request.status == Decision.APPROVED:
        told = f"{request.granted:,} tokens are in your Budget, and you can use them now."
    else:
        told = f"Your request for {request.tokens:,} tokens was not approved."
    words = Words(
        subject=f"Your token request: {Decision(request.status).label.lower()}",
        paragraphs=[told, *([request.note] if request.note else [])],
        button=Button("Your requests", "/usage/request"),
    )
    post(
        kind=MailKind.TOKEN_DECISION,
        to=request.user.email,
        words=words,
        by_name=request.user.get_short_name(),
    )
