"""The one place that writes an error out (section 3 of the contract)."""

import json
from collections.abc import Sequence

from completions.failures import Failure, error_object

Headers = list[tuple[bytes, bytes]]


def error_body(failure: Failure, request_id: str) -> bytes:
    """Return the body of an error answer (C-024, C-056)."""
    return json.dumps({"error": error_object(failure), "request_id": request_id}).encode()


def late_error_body(failure: Failure, request_id: str) -> bytes:
    """Return the error object for an answer that has started: it has the id twice (C-025)."""
    inner = error_object(failure.after_start()) | {"request_id": request_id}
    return json.dumps({"error": inner, "request_id": request_id}).encode()


def error_headers(failure: Failure) -> Headers:
    """Return the headers that go with an error (C-043, C-100, C-111, C-654, C-655)."""
    headers: Headers = [(b"content-type", b"application/json")]
    if failure.retry_after is not None:
        headers.append((b"retry-after", str(failure.retry_after).encode()))
    headers.extend((name.encode(), value.encode()) for name, value in failure.passed_on)
    if not failure.may_retry:
        headers.append((b"x-should-retry", b"false"))
    if failure.allow:
        headers.append((b"allow", ", ".join(failure.allow).encode()))
    return headers


def no_route(path: str) -> Failure:
    """No route at this path (C-042)."""
    return Failure(404, f"There is nothing at {path}.")


def wrong_method(method: str, path: str, allowed: Sequence[str]) -> Failure:
    """A known path with another method (C-043)."""
    return Failure(
        405,
        f"{method} is not a method of {path}: it takes {', '.join(allowed)}.",
        allow=tuple(allowed),
    )


def too_large(most: int) -> Failure:
    """The body is over its cap (C-037, C-083)."""
    return Failure(
        413,
        f"The request body is larger than {most} bytes, the most that this route takes.",
        "request_too_large",
        may_retry=False,
    )
