"""Decisions on Applications: one each, whoever presses at once (A-024 to A-029, A-398)."""

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from access.models import Application, ApplicationStatus
from accounts.links import lifetime, make_link
from accounts.mail import Button, Words, post
from accounts.models import LinkPurpose, MailKind, User
from accounts.people import Refused
from billing.grants import grant, set_allowance


@dataclass(frozen=True)
class Terms:
    """What an approval gives: `allowance` None is the deployment's; `tokens` go to the Budget."""

    allowance: int | None = None
    tokens: int = 0


def apply(
    *,
    email: str,
    name: str,
    organization: str,
    planned_usage: str,
    answers: list[tuple[str, str]],
) -> Application | None:
    """Store an Application, unless one is open or a User has the address (A-007, A-008, U-37).

    The caller has checked the texts and that the rules were agreed to, and answers alike whatever
    is returned.
    """
    if User.objects.filter(email=email).exists():
        return None
    now = timezone.now()
    try:
        with transaction.atomic():
            return Application.objects.create(
                email=email,
                name=name,
                organization=organization,
                planned_usage=planned_usage,
                answers=[list(pair) for pair in answers],
                rules_agreed_at=now,
                submitted_at=now,
            )
    except IntegrityError:
        return None


def approve(*, application_id: int, terms: Terms, by: UUID | None) -> User:
    """Approve an open Application: the User, their tokens, and the mail with the link (A-024).

    Raises `Refused` when it is decided already, and says by whom, or when a User has the address.
    """
    with transaction.atomic():
        application = _open_one(application_id)
        user = make_user(application, terms, by)
        decide(application, ApplicationStatus.APPROVED, by=by, user=user)
        _mail_approval(user)
    return user


def reject(*, application_id: int, by: UUID | None) -> None:
    """Reject an open Application; its sender may apply again (A-027). Raises `Refused`."""
    with transaction.atomic():
        application = _open_one(application_id)
        decide(application, ApplicationStatus.REJECTED, by=by, user=None)
        site = settings.BASALT.site_name
        post(
            kind=MailKind.REJECTION,
            to=application.email,
            by_name=application.name,
            words=Words(
                subject=f"Your {site} application",
                paragraphs=[
                    f"We read your application for {site} and cannot give you access now.",
                    "You can apply again when something has changed, or when you can tell more "
                    "about what you plan.",
                ],
                button=Button("Apply again", "/apply"),
            ),
        )


def send_again(*, application_id: int) -> None:
    """Send the approval mail again; its new link ends the older one (A-029).

    Raises `Refused` where nothing was approved or the User may not sign in.
    """
    with transaction.atomic():
        application = Application.objects.select_for_update().get(id=application_id)
        user = application.user
        if application.status != ApplicationStatus.APPROVED or user is None:
            raise Refused("Only the email of an approved Application can be sent again.")
        if not user.is_active:
            raise Refused(f"{user.email} is {user.standing.label.lower()}.")
        _mail_approval(user)


def make_user(application: Application, terms: Terms, by: UUID | None) -> User:
    """Make the User of an Application, with their tokens; in the decision's transaction.

    Raises `Refused` when a User has the address.
    """
    if User.objects.filter(email=application.email).exists():
        raise Refused(f"{application.email} has a User already.")
    user = User.objects.create_user(application.email, name=application.name)
    set_allowance(user_id=user.id, tokens=terms.allowance)
    if terms.tokens:
        grant(user_id=user.id, tokens=terms.tokens, by=by)
    return user


def decide(
    application: Application, status: ApplicationStatus, *, by: UUID | None, user: User | None
) -> None:
    """Write a decision on an Application that is locked."""
    application.status = status
    application.reviewed_at = timezone.now()
    application.reviewed_by_id = by
    application.user = user
    application.save()


def _open_one(application_id: int) -> Application:
    # Who decided is read after the lock: a join would show whom the row named before it.
    application = Application.objects.select_for_update(of=("self",)).get(id=application_id)
    if application.status != ApplicationStatus.OPEN:
        who = application.reviewed_by.email if application.reviewed_by else "a command"
        raise Refused(f"{application.email} was {application.status} already, by {who}.")
    return application


def _mail_approval(user: User) -> None:
    site = settings.BASALT.site_name
    days = settings.BASALT.approval_link_days
    post(
        kind=MailKind.APPROVAL,
        to=user.email,
        by_name=user.name,
        words=Words(
            subject=f"Your {site} application is approved",
            paragraphs=[
                f"Welcome to {site}. Choose a password, and then sign in.",
                f"The link works once, for {days:g} days. After that, ask for a new one with "
                "“Forgot password?” on the sign-in page.",
            ],
            button=Button(
                "Choose your password", make_link(user=user, purpose=LinkPurpose.APPROVAL)
            ),
        ),
        lasts=lifetime(LinkPurpose.APPROVAL),
    )
