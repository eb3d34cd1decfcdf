"""Who calls: the key of a request, and the limits that stand before and behind it."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from django.conf import settings

from accounts.keys import KeyState, find_key
from api.limits import Bucket, bad_key_bucket, key_bucket
from completions.failures import Failure

Headers = Iterable[tuple[bytes, bytes]]

MISSING_MESSAGE = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)


def header(headers: Headers, name: bytes) -> str | None:
    """Return a header's value, or None when it is not there."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def authenticate(headers: Headers, address: str, bucket: Bucket) -> KeyState:
    """Return the state of the request's key, after the limits of its address and of the key.

    A look-up occupies a place of its address's bucket until the key turns out to be a real one
    (C-017 to C-019). It uses the database, so call it in a thread.

    Raises:
        Failure: the contract's 401, or `rate_limited`.
    """
    guard = bad_key_bucket(address)
    guard.take()
    key = find_key(_secret(headers))
    if key is None:
        raise _refused("invalid_api_key", "Incorrect API key provided.")
    if key.revoked:
        raise _refused("key_revoked", "This API key has been revoked.")
    guard.give_back()
    check_state(key)
    key_bucket(str(key.key_id), bucket).take()
    return key


def check_state(key: KeyState) -> None:
    """Refuse a key that may not be used now (C-005 to C-008).

    Raises:
        Failure: 401 `key_revoked`, `key_disabled` or `account_suspended`.
    """
    env = settings.BASALT
    if key.revoked:
        raise _refused("key_revoked", "This API key has been revoked.")
    if key.suspended:
        raise _refused(
            "account_suspended",
            f"Your access to {env.site_name} is suspended. Write to {env.support_email} if you "
            "think this is a mistake.",
        )
    if key.paused:
        raise _refused(
            "key_disabled",
            "This API key is paused. Resume it on API Keys in the App to use it again.",
        )


def _secret(headers: Headers) -> str:
    """Return the Bearer token; the scheme is read without regard to case (U-64)."""
    scheme, _, secret = (header(headers, b"authorization") or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise _refused("missing_authorization", MISSING_MESSAGE)
    return secret.strip()


def _refused(code: str, message: str) -> Failure:
    return Failure(401, message, code)


def client_address(peer: str | None, headers: Headers) -> str:
    """Return the address that calls, believing `X-Forwarded-For` only of trusted proxies."""
    address = peer or "local"
    for hop in reversed((header(headers, b"x-forwarded-for") or "").split(",")):
        if not hop.strip() or not _trusted(address):
            break
        address = hop.strip()
    return address


def _trusted(address: str) -> bool:
    try:
        there = ip_address(address)
    except ValueError:
        return False
    return any(there in ip_network(net, False) for net in settings.BASALT.trusted_proxies)
