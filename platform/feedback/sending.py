"""Takes a note in: checked whole, stored whole (A-379 to A-385)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction

from accounts.models import ANSWER_LENGTH, User
from feedback.images import Encoded, ImageRefused, check_image
from feedback.models import Kind, Note, Screenshot
from feedback.tracker import ring

NUL = "A text cannot hold the character U+0000 (NUL)."
MOST_ERRORS = 20
ERROR_LENGTH, PAGE_LENGTH, BROWSER_LENGTH = 500, 500, 300


class NoteRefused(ValueError):
    """What was sent cannot be taken; the message says why, `about` names the field."""

    def __init__(self, message: str, about: str) -> None:
        super().__init__(message)
        self.about = about


@dataclass(frozen=True)
class Written:
    """A checked note."""

    kind: Kind
    text: str
    page: str
    images: Sequence[Encoded] = ()
    browser: str = ""
    errors: Sequence[Sequence[str]] = field(default_factory=tuple)


def check_note(
    *,
    kind: str,
    text: str,
    page: str,
    images: Sequence[tuple[str, bytes]],
    browser: str,
    errors: str,
    anonymous: bool,
) -> Written:
    """Check what a page sent; raises `NoteRefused`.

    `images` are names with the bytes, `errors` is the page's JSON. For an anonymous note the
    browser's name and the errors are not even looked at.
    """
    if kind not in Kind.values:
        raise NoteRefused("Choose what it is about.", "kind")
    text = text.replace("\r\n", "\n").strip()
    if "\0" in text or "\0" in page:
        raise NoteRefused(NUL, "text")
    if not text:
        raise NoteRefused("Write a note.", "text")
    if len(text) > ANSWER_LENGTH:
        raise NoteRefused(f"A note has {ANSWER_LENGTH:,} characters at most.", "text")
    return Written(
        kind=Kind(kind),
        text=text,
        page=(_nameless(page) if anonymous else page)[:PAGE_LENGTH],
        images=_images(images),
        browser="" if anonymous else browser.replace("\0", "")[:BROWSER_LENGTH],
        errors=() if anonymous else _errors(errors),
    )


def store(*, written: Written, user: User | None) -> Note:
    """Store a note with its screenshots; `user` is None for an anonymous one (A-385)."""
    with transaction.atomic():
        note = Note.objects.create(
            kind=written.kind,
            text=written.text,
            page=written.page,
            user=user,
            browser=written.browser if user else "",
            errors=[list(error) for error in written.errors] if user else [],
        )
        for place, image in enumerate(written.images):
            screenshot = Screenshot(
                note=note,
                place=place,
                format=image.format,
                width=image.width,
                height=image.height,
            )
            name = f"{screenshot.id}.{image.suffix}"
            screenshot.file.save(name, ContentFile(image.data), save=False)
            screenshot.save(force_insert=True)
        transaction.on_commit(ring, robust=True)
    return note


def _nameless(page: str) -> str:
    """Return a page's address without the ids in it, which lead to a User (A-385)."""
    path = page.partition("?")[0].partition("#")[0]
    return re.sub(r"/[^/]*\d[^/]*", "/…", path)


def _images(sent: Sequence[tuple[str, bytes]]) -> list[Encoded]:
    env = settings.BASALT
    if len(sent) > env.feedback_images:
        raise NoteRefused(f"Add {env.feedback_images} images at most.", "images")
    try:
        return [
            check_image(data, most_bytes=env.feedback_image_bytes, name=name[:100] or "The image")
            for name, data in sent
        ]
    except ImageRefused as refused:
        raise NoteRefused(str(refused), "images") from None


def _errors(text: str) -> list[list[str]]:
    """Return `[when, what, request id]` of each error; what is not of that form is left out."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    rows = [error for error in found if isinstance(error, dict)][-MOST_ERRORS:]
    return [
        [
            str(error.get(name) or "").replace("\0", "")[:ERROR_LENGTH]
            for name in ("when", "what", "requestId")
        ]
        for error in rows
    ]
