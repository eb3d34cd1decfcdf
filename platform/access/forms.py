"""The forms of access: apply, sign in, ask for a link, set a password."""

from collections.abc import Iterator

from django import forms
from django.conf import settings
from django.forms.boundfield import BoundField
from django.http import QueryDict

from access.fields import Email, NewPassword, Password, PlainForm, Text
from accounts.models import ANSWER_LENGTH

RULES = (
    "Access is personal: do not share your account or your API keys.",
    "No use that is illegal, harmful or plainly unethical.",
    "This is a preview: expect rough edges, and changes.",
    "If what you find with it is published, consider a link to {app}.",
)
"""The rules that an applicant agrees to (A-004)."""

AGREE = "I agree to these rules."


class ApplyForm(PlainForm):
    """An Application (A-002 to A-005); the optional questions come from the settings."""

    email = Email()
    name = Text(label="Name", most=150)
    organization = Text(label="Organization", most=200)
    planned_usage = Text(label="Planned usage", most=ANSWER_LENGTH, lines=5)
    agree = forms.BooleanField(label=AGREE)

    def __init__(self, data: QueryDict | None = None, *, email: str = "") -> None:
        """Make the form; with `email` it is an Invite's, whose address is fixed (A-015, U-02)."""
        super().__init__(data, initial={"email": email} if email else None)
        self.questions = settings.BASALT.apply_questions
        if email:
            self.fields["email"].disabled = True
        for index, question in enumerate(self.questions):
            self.fields[f"answer_{index}"] = Text(
                label=question, most=ANSWER_LENGTH, lines=2, required=False
            )
        self.fields["agree"].error_messages["required"] = "Tick the box to agree to the rules."
        self.fields["name"].widget.attrs["autocomplete"] = "name"
        self.fields["organization"].widget.attrs["autocomplete"] = "organization"

    def texts(self) -> Iterator[BoundField]:
        """Yield the fields in the order of the page, without the box."""
        for name in self.fields:
            if name != "agree":
                yield self[name]

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The optional questions with what was answered, empty or not (A-003)."""
        return [
            (question, str(self.cleaned_data[f"answer_{index}"]))
            for index, question in enumerate(self.questions)
        ]


class SignInForm(PlainForm):
    """Email and password."""

    email = Email()
    password = Password()
    next = forms.CharField(required=False, widget=forms.HiddenInput)


class AskForm(PlainForm):
    """Whom to mail a link."""

    email = Email()


class SetPasswordForm(PlainForm):
    """The first password (A-031)."""

    password = NewPassword(label="Password")


class NewPasswordForm(PlainForm):
    """Another password (A-079)."""

    password = NewPassword(label="New password")
