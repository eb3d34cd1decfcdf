"""Fields of the admin's forms: amounts of tokens, tags, addresses, and texts, in its look."""

from collections.abc import Sequence

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from access.fields import NUL
from access.invites import MOST_AT_ONCE
from accounts.tags import TagInvalid, tag_form
from billing.amounts import AmountUnreadable, read_tokens


class Amount(forms.CharField):
    """Tokens as people write them: `50K`, `2500000` (A-418). An empty one is None."""

    def __init__(
        self, *, label: str, zero: bool = False, help_text: str = "", **more: bool
    ) -> None:
        """`zero` takes 0 as well."""
        super().__init__(
            label=label,
            help_text=help_text or "Such as 50K, 2.5M or 2500000.",
            widget=UnfoldAdminTextInputWidget(
                attrs={"inputmode": "decimal", "autocomplete": "off"}
            ),
            required=more.get("required", True),
        )
        self.zero = zero

    def clean(self, value: object) -> int | None:
        """Return whole tokens, or None for nothing written."""
        text = str(super().clean(value)).strip()
        if not text:
            return None
        if self.zero and text == "0":
            return 0
        try:
            return read_tokens(text)
        except AmountUnreadable as unreadable:
            raise ValidationError(str(unreadable)) from None


class TagField(forms.CharField):
    """A tag, brought to its form (A-401, A-423)."""

    def __init__(self, *, required: bool = True) -> None:
        widget = UnfoldAdminTextInputWidget(attrs={"data-tag": "", "autocomplete": "off"})
        super().__init__(
            label="Tag", required=required, widget=widget, help_text="Such as hiring-2026-08."
        )

    def clean(self, value: object) -> str:
        """Return the tag, or nothing for nothing written."""
        text = str(super().clean(value))
        if not text:
            return ""
        try:
            return tag_form(text)
        except TagInvalid as invalid:
            raise ValidationError(str(invalid)) from None


class Addresses(forms.CharField):
    """Email addresses, one a line (U-02)."""

    def __init__(self) -> None:
        super().__init__(
            label="Emails",
            widget=UnfoldAdminTextareaWidget(attrs={"rows": 6}),
            help_text="One a line. Each gets its own link.",
        )

    def clean(self, value: object) -> Sequence[str]:
        """Return the addresses in kept form; names every line that is none."""
        lines = [line.strip().lower() for line in str(super().clean(value)).splitlines()]
        emails = list(dict.fromkeys(filter(None, lines)))
        wrong = [email for email in emails if not _is_email(email)]
        if wrong:
            raise ValidationError(f"Not an email address: {', '.join(wrong[:5])}.")
        if len(emails) > MOST_AT_ONCE:
            raise ValidationError(f"Write {MOST_AT_ONCE} addresses at most at once.")
        return emails


class Words(forms.CharField):
    """A text of an admin."""

    def __init__(
        self, *, label: str, most: int, lines: int = 1, required: bool = True, help_text: str = ""
    ) -> None:
        widget = (
            UnfoldAdminTextareaWidget(attrs={"rows": lines})
            if lines > 1
            else UnfoldAdminTextInputWidget()
        )
        super().__init__(
            label=label, max_length=most, widget=widget, required=required, help_text=help_text
        )

    def clean(self, value: object) -> str:
        """Return the text with LF line breaks; refuse U+0000 (A-126)."""
        if "\0" in str(value or ""):
            raise ValidationError(NUL)
        return str(super().clean(value)).replace("\r\n", "\n")


class PasswordAgain(forms.CharField):
    """One's own password, or a code of one's app, before something that is guarded."""

    def __init__(self, *, label: str) -> None:
        super().__init__(
            label=label,
            strip=False,
            widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "current-password"}),
        )


def _is_email(text: str) -> bool:
    try:
        validate_email(text)
    except ValidationError:
        return False
    return "\0" not in text
