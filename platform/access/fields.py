"""Fields of forms that people fill in: texts without U+0000, and passwords.

Every text is stripped, keeps what was written when it is refused, and comes with LF line breaks.
"""

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, ProhibitNullCharactersValidator
from django.http import QueryDict

from accounts.links import MOST_PASSWORD, normal

NUL = "A text cannot hold the character U+0000 (NUL)."
MISSING = "Answer this question."
LEAST_PASSWORD = 8


class Text(forms.CharField):
    """A text of people."""

    def __init__(self, *, label: str, most: int, lines: int = 1, required: bool = True) -> None:
        widget = forms.Textarea(attrs={"rows": lines}) if lines > 1 else forms.TextInput()
        super().__init__(label=label, required=required, widget=widget)
        self.validators = [
            ProhibitNullCharactersValidator(message=NUL),
            MaxLengthValidator(most, message=f"Write {most:,} characters at most."),
        ]
        self.error_messages["required"] = MISSING
        self.widget.attrs["maxlength"] = str(most)

    def to_python(self, value: object) -> str:
        """Return the text with LF line breaks (A-572)."""
        return str(super().to_python(value)).replace("\r\n", "\n")


class Email(forms.EmailField):
    """An email address, in the form that is kept."""

    def __init__(self, *, label: str = "Email") -> None:
        super().__init__(
            label=label,
            max_length=254,
            widget=forms.EmailInput(attrs={"autocomplete": "email", "inputmode": "email"}),
        )
        self.error_messages["required"] = "Write your email address."
        self.error_messages["invalid"] = "Write an address such as you@example.org."

    def clean(self, value: object) -> str:
        """Return the address in lower case; U+0000 has its own words (A-010)."""
        if isinstance(value, str) and "\0" in value:
            raise ValidationError(NUL)
        return str(super().clean(value)).lower()


class Password(forms.CharField):
    """A password as it was typed, to be compared."""

    def __init__(self) -> None:
        widget = forms.PasswordInput(attrs={"autocomplete": "current-password"})
        super().__init__(label="Password", strip=False, widget=widget)
        self.validators = [
            ProhibitNullCharactersValidator(message=NUL),
            MaxLengthValidator(4 * MOST_PASSWORD, message="That is no password of ours."),
        ]
        self.error_messages["required"] = "Write your password."


class NewPassword(forms.CharField):
    """A password to be set: 8 characters at least, after NFKC (A-031, U-40)."""

    def __init__(self, *, label: str) -> None:
        widget = forms.PasswordInput(attrs={"autocomplete": "new-password", "minlength": 8})
        super().__init__(label=label, strip=False, widget=widget)
        self.validators = [ProhibitNullCharactersValidator(message=NUL)]
        self.error_messages["required"] = f"Use at least {LEAST_PASSWORD} characters."

    def clean(self, value: object) -> str:
        """Return the password as it is hashed."""
        password = normal(str(super().clean(value)))
        if len(password) < LEAST_PASSWORD:
            raise ValidationError(f"Use at least {LEAST_PASSWORD} characters.")
        if len(password) > MOST_PASSWORD:
            raise ValidationError(f"Use at most {MOST_PASSWORD:,} characters.")
        return password


class PlainForm(forms.Form):
    """A form whose fields show their fault below them and name it to a screen reader."""

    use_required_attribute = False

    def __init__(
        self, data: QueryDict | None = None, *, initial: dict[str, object] | None = None
    ) -> None:
        super().__init__(data, initial=initial, auto_id="id_%s", label_suffix="")
