"""Who calls: the key of a request, and the limits that stand before and behind it."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from django.conf import settings
from django.db import DatabaseError

from accounts.keys import KeyState, find_key
from api.limits import Bucket, bad_key_bucket, key_bucket
from completions.failures import Failure, check_key, unknown_key

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
    try:
        key = find_key(_secret(headers))
    except DatabaseError:
        guard.give_back()
        raise
    if key is None:
        raise unknown_key()
    try:
        check_key(key)
    except Failure:
        if not key.revoked:
            guard.give_back()
        raise
    key_bucket(str(key.key_id), bucket).take(giving_back=guard)
    return key


def _secret(headers: Headers) -> str:
    """Return the Bearer token; the scheme is read without regard to case (U-64)."""
    scheme, _, secret = (header(headers, b"authorization") or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Failure(401, MISSING_MESSAGE, "missing_authorization")
    return secret.strip()


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
