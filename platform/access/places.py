"""Addresses inside the App that a sign-in may lead to (A-046 to A-048)."""

from urllib.parse import urlsplit

from django.conf import settings
from django.utils.http import url_has_allowed_host_and_scheme

from accounts.models import ApiKey, User

NOT_AGAIN = ("/sign-in", "/sign-out", "/first-page", "/set-password", "/reset-password", "/v1")


def is_inside(address: str) -> bool:
    """Whether an address is a page of the App: a path alone, on this host, and no sign-in."""
    if not address.startswith("/") or not url_has_allowed_host_and_scheme(address, None):
        return False
    path = urlsplit(address).path
    return not any(path == each or path.startswith(f"{each}/") for each in NOT_AGAIN)


def first_page(user: User) -> str:
    """Return where a User starts: `API Keys` without a live key, else `Playground` (U-04)."""
    has_key = ApiKey.objects.filter(user=user, revoked_at=None).exists()
    return "/playground" if has_key else "/api-keys"


def wanted(address: str) -> str | None:
    """Return the page that was asked for before the sign-in, if it may be gone to."""
    return address if address and is_inside(address) else None


def sign_in_address() -> str:
    """Return where the sign-in is."""
    return str(settings.LOGIN_URL)
