"""Secrets derived from `SECRET_KEY`: the tokens of links, and what is stored encrypted.

A link's token is a keyed hash of its row's id. So the row needs to keep only a hash of the token,
nothing that is stored opens a link, and a mail that is tried again carries the same link (A-038).
"""

import base64
import hashlib
import hmac
from functools import cache
from uuid import UUID

from cryptography.fernet import Fernet
from django.conf import settings


def link_token(kind: str, row_id: UUID) -> str:
    """Return the token of a link: 43 letters, digits, dashes and underscores."""
    raw = hmac.digest(_key("link"), f"{kind}:{row_id}".encode(), "sha256")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def digest_of_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, by which its row is found."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def seal(text: str) -> str:
    """Return `text` encrypted and signed."""
    return _box().encrypt(text.encode()).decode()


def unseal(text: str) -> str:
    """Return what `seal` was given; raises `cryptography.fernet.InvalidToken`."""
    return _box().decrypt(text.encode()).decode()


@cache
def _box() -> Fernet:
    return Fernet(base64.urlsafe_b64encode(_key("two-factor")))


def _key(purpose: str) -> bytes:
    return hmac.digest(settings.SECRET_KEY.encode(), f"basalt:{purpose}".encode(), "sha256")
