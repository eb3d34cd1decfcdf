"""A failure in a column of JSON, as work that ended with it keeps it (C-434)."""

import msgspec

from completions.failures import ErrorType, Failure


class KeptFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure in a column: its status and object, without its headers (C-434)."""

    status: int
    message: str
    code: str | None = None
    type: ErrorType = ErrorType.INVALID_REQUEST
    param: str | None = None
    retryable: bool | None = None
    retry_after: int | None = None
    upstream_status: int | None = None
    may_retry: bool = True


def stored(failure: Failure) -> object:
    """Return a failure as a column of JSON keeps it; see `restored`."""
    kept = KeptFailure(
        status=failure.status,
        message=failure.message,
        code=failure.code,
        type=failure.type,
        param=failure.param,
        retryable=failure.retryable,
        retry_after=failure.retry_after,
        upstream_status=failure.upstream_status,
        may_retry=failure.may_retry,
    )
    return msgspec.to_builtins(kept)


def restored(kept: object) -> Failure:
    """Return the failure that `stored` wrote."""
    return Failure(**msgspec.structs.asdict(msgspec.convert(kept, KeptFailure)))
