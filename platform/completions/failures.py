"""The ways in which a request can be refused or fail, as the contract names it (section 3).

A `Failure` is raised anywhere, or kept by `completions.kept_failures`; `api.errors` is the one
place that writes it out.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from django.conf import settings

from accounts.keys import KeyState
from billing.allowance import BudgetExceeded, Short
from inference.engine.messages import Failed, FailureCode
from inference.failure_texts import UNREACHABLE_MESSAGE

NUL_MESSAGE = "A text cannot hold the character U+0000 (NUL)."
SURROGATE_MESSAGE = "A text cannot hold half of a surrogate pair."
RETRY_UPSTREAM_SECONDS = 30


class ErrorType(StrEnum):
    """`type` of an error (C-058)."""

    INVALID_REQUEST = "invalid_request_error"
    RATE_LIMIT = "rate_limit_error"
    UPSTREAM = "upstream_error"
    UNAVAILABLE = "service_unavailable"
    INTERNAL = "internal_error"


@dataclass(eq=False)
class Failure(Exception):
    """One error of the contract: its status, its object and its headers."""

    status: int
    message: str
    code: str | None = None
    type: ErrorType = ErrorType.INVALID_REQUEST
    param: str | None = None
    retryable: bool | None = None
    """None leaves the field out of the object (C-061)."""
    retry_after: int | None = None
    """Seconds, for `Retry-After` (C-654)."""
    upstream_status: int | None = None
    may_retry: bool = True
    """False sends `x-should-retry: false`."""
    allow: tuple[str, ...] = ()
    """Methods of a 405 (C-043)."""
    passed_on: tuple[tuple[str, str], ...] = ()
    """Headers of Inference that go out as they came (C-100, C-655)."""

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    def after_start(self) -> "Failure":
        """Return the failure as it is told once an answer has started: `retryable` set (C-061)."""
        if self.retryable is None:
            return replace(self, retryable=False)
        return self


def error_object(failure: Failure) -> dict[str, object]:
    """Return the inner object of an error, with the fields that apply (C-057, C-061 to C-063)."""
    fields: dict[str, object] = {
        "message": failure.message,
        "type": failure.type.value,
        "param": failure.param,
        "code": failure.code,
    }
    if failure.retryable is not None:
        fields["retryable"] = failure.retryable
        if failure.retryable and failure.retry_after is not None:
            fields["retry_after_seconds"] = failure.retry_after
    if failure.upstream_status is not None:
        fields["upstream_status"] = failure.upstream_status
    return fields


def unknown_key() -> Failure:
    """No key has this secret (C-004)."""
    return Failure(401, "Incorrect API key provided.", "invalid_api_key")


def check_key(key: KeyState) -> None:
    """Refuse a key that may not be used now (C-005 to C-008).

    Raises:
        Failure: 401 `key_revoked`, `account_suspended` or `key_disabled`.
    """
    if key.revoked:
        raise Failure(401, "This API key has been revoked.", "key_revoked")
    if key.suspended:
        raise Failure(401, suspension_message(), "account_suspended")
    if key.paused:
        raise Failure(
            401,
            "This API key is paused. Resume it on API Keys in the App to use it again.",
            "key_disabled",
        )


def suspension_message() -> str:
    """Return what a suspended User is told (C-007)."""
    env = settings.BASALT
    return (
        f"Your access to {env.site_name} is suspended. Write to {env.support_email} if you "
        "think this is a mistake."
    )


def key_was_revoked() -> Failure:
    """Background work whose key was revoked before it ran (C-613, U-15)."""
    return Failure(401, "The API key that made this request was revoked.", "invalid_api_key")


def user_was_suspended() -> Failure:
    """Background work whose User was suspended before it ran (C-614, U-15)."""
    return Failure(401, suspension_message(), "invalid_api_key")


class ClientLeft(OSError):
    """The client is gone or was cut: raised where something was to be sent to it."""


def invalid(param: str | None, message: str) -> Failure:
    """A bad body, field or path id (C-065)."""
    return Failure(400, message, "invalid_request", param=param)


def bad_json(why: str) -> Failure:
    """The body is not JSON (C-066)."""
    return Failure(400, f"The request body is not valid JSON: {why}.", "bad_json")


def model_not_found(name: str, served: list[str]) -> Failure:
    """An unserved model (C-067)."""
    return Failure(
        400,
        f"The model `{name}` does not exist. The API serves {', '.join(served)}.",
        "model_not_found",
        param="model",
    )


def context_exceeded(limit: int, prompt_tokens: int, output_tokens: int) -> Failure:
    """Prompt and `max_tokens` do not fit the model's context (C-097, C-312)."""
    return Failure(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, "
        f"for a total of {prompt_tokens + output_tokens} tokens. Please reduce the length of the "
        "input prompt or the number of requested output tokens. "
        f"(parameter=input_tokens, value={prompt_tokens})",
        "context_length_exceeded",
        param="prompt",
    )


def deadline_infeasible(max_tokens: int, most: int) -> Failure:
    """Too many tokens to wait for without a stream (C-070, C-298)."""
    return Failure(
        400,
        f"Without a stream, max_tokens is {most} at most, so that the answer comes in time: "
        f"{max_tokens} were asked for. Lower max_tokens, or set stream to true.",
        "deadline_infeasible",
        param="max_tokens",
        may_retry=False,
    )


def budget_exceeded(cause: BudgetExceeded, tokens: int) -> Failure:
    """The tokens left cannot hold the request; `tokens` is the Hold it names (C-357 to C-360)."""
    message = f"This request can use up to {tokens} tokens, more than "
    ask = f" Ask for more tokens at {settings.BASALT.app_address}/usage/request."
    if cause.short is Short.KEY_BUDGET:
        message += "this API key's token budget has left."
    elif cause.short is Short.BUDGET:
        message += f"your token budget has left.{ask}"
    else:
        refill = f"{cause.refills_on.day} {cause.refills_on:%B %Y}"
        message += (
            "your monthly allowance has left this month and more than your token budget has left. "
            f"The allowance refills on {refill} (UTC).{ask}"
        )
    return Failure(429, message, "budget_exceeded", may_retry=False)


def queue_full(running: int, waiting: int) -> Failure:
    """The key's line is full (C-086, C-372)."""
    return Failure(
        429,
        f"This API key has {running} Completions running and {waiting} waiting, the most that it "
        "may have. Try again when one has ended.",
        "queue_full",
        ErrorType.RATE_LIMIT,
        retry_after=5,
    )


def model_busy(model: str, most: int) -> Failure:
    """The model has its most requests in flight (C-095, C-375)."""
    return Failure(
        503,
        f"The model {model} has {most} requests in flight, the most that it takes. Nothing ran.",
        "circuit_open",
        ErrorType.UPSTREAM,
        retryable=True,
        retry_after=5,
    )


def circuit_open(model: str, seconds: int) -> Failure:
    """The breaker of the model is open (C-377)."""
    return Failure(
        503,
        f"Inference failed several times in a row for the model {model}. Nothing ran: try again "
        f"in {seconds} seconds.",
        "circuit_open",
        ErrorType.UPSTREAM,
        retryable=True,
        retry_after=seconds,
    )


def unreachable() -> Failure:
    """What lies between the API and Inference cannot be reached (C-101)."""
    return Failure(
        502,
        UNREACHABLE_MESSAGE,
        "upstream_unreachable",
        ErrorType.UPSTREAM,
        retryable=True,
        retry_after=RETRY_UPSTREAM_SECONDS,
    )


def not_prepared(model: str) -> Failure:
    """The model's files are not on this server."""
    return Failure(
        502,
        f"Could not reach Inference: the model {model} is not prepared on this server.",
        "upstream_unreachable",
        ErrorType.UPSTREAM,
        retryable=True,
        retry_after=RETRY_UPSTREAM_SECONDS,
    )


def spend_cap() -> Failure:
    """New GPU work is paused (C-091, C-619)."""
    return Failure(
        429,
        "New work on the GPUs is paused because of what they cost. Reads work as usual, and what "
        f"runs goes on. Try again later, or write to {settings.BASALT.support_email}.",
        "spend_cap",
        retry_after=3600,
        may_retry=False,
    )


def database_busy() -> Failure:
    """No database connection was free in time (C-094)."""
    return Failure(
        503,
        "The database was busy. Nothing ran and nothing is held.",
        "db_pool_exhausted",
        ErrorType.UNAVAILABLE,
        retry_after=1,
    )


def internal() -> Failure:
    """A fault of the API itself (C-092)."""
    return Failure(
        500,
        "The server had an error while processing your request.",
        "internal_error",
        ErrorType.INTERNAL,
        may_retry=False,
    )


def running_elsewhere() -> Failure:
    """A request with the same `Idempotency-Key` is under way (C-079, C-395)."""
    return Failure(
        409,
        "A request with this Idempotency-Key is under way. Try again in 1 second.",
        "running",
        retry_after=1,
    )


RETRIED = (FailureCode.OUT_OF_MEMORY, FailureCode.ENGINE_DEAD, FailureCode.UNREACHABLE)
PASSING_STATUSES = (502, 503, 504)
"""With these a server says that it may be back soon (C-104)."""


def of_engine(failed: Failed) -> Failure:
    """Return the failure that a backend's or the client's terminal event means.

    What an engine itself answers as its own fault counts as Inference's 500 (C-063, C-105).
    """
    code, message, status = failed.code, failed.message, failed.upstream_status
    if code is FailureCode.INVALID_REQUEST:
        return replace(invalid(failed.param, message), upstream_status=status)
    if code is FailureCode.CONTEXT_LENGTH:
        return Failure(
            400, message, "context_length_exceeded", param="prompt", upstream_status=status
        )
    if code is FailureCode.RATE_LIMITED:
        return _rate_limited(failed)
    if status is None and code in (FailureCode.OUT_OF_MEMORY, FailureCode.SERVER_ERROR):
        status = 500
    passes = code is FailureCode.SERVER_ERROR and status in PASSING_STATUSES
    if code in RETRIED or passes:
        return Failure(
            502,
            message,
            code.value,
            ErrorType.UPSTREAM,
            retryable=True,
            retry_after=RETRY_UPSTREAM_SECONDS,
            upstream_status=status,
        )
    told, name = _FINAL.get(code, (502, FailureCode.SERVER_ERROR.value))
    return Failure(
        told,
        message,
        name,
        ErrorType.UPSTREAM,
        retryable=False,
        upstream_status=status,
        may_retry=False,
    )


_FINAL = {
    FailureCode.DEADLINE: (504, "upstream_deadline"),
    FailureCode.AUTH: (502, "upstream_auth"),
    FailureCode.UPSTREAM_CONTEXT: (400, "vllm_context_length"),
    FailureCode.UPSTREAM_INVALID: (400, "vllm_invalid_request"),
}
"""Status and code of the failures that another try would not help (C-098, C-099, C-107, C-108)."""


def _rate_limited(failed: Failed) -> Failure:
    """Inference is busy: its own words and headers (C-100, C-655)."""
    sent = {"retry-after": failed.retry_after, "retry-after-ms": failed.retry_after_ms}
    return Failure(
        429,
        failed.message,
        "rate_limited",
        ErrorType.RATE_LIMIT,
        upstream_status=failed.upstream_status,
        passed_on=tuple(
            (name, value)
            for name, value in sent.items()
            if value is not None and value.isascii() and value.isprintable()
        ),
    )


def seconds_up(seconds: float) -> int:
    """Whole seconds to wait, at least one."""
    return max(1, math.ceil(seconds))
