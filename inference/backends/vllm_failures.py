"""What an error of a vLLM server means (section 3 of the contract)."""

import re
from collections.abc import Mapping

import msgspec

from inference.engine.messages import Failed, FailureCode
from inference.failure_texts import CUT_MESSAGE, DEADLINE_MESSAGE, UNREACHABLE_MESSAGE

_CONTEXT = re.compile(
    r"maximum context length|maximum model length|prompt is too long|prompt \(length \d+\)", re.I
)
_MEMORY = re.compile(r"out of memory|OutOfMemoryError", re.I)
_DEAD = re.compile(
    r"EngineCore encountered an issue|EngineDeadError|EngineCore died|engine (core )?is dead", re.I
)
_BAD = re.compile(
    r"bad request|BadRequestError|validation errors?\b|out of range|out of vocabulary|invalid "
    r"(request|value|parameter|argument)",
    re.I,
)
MISFIT = "Inference's answer does not fit the request: "


class ErrorObject(msgspec.Struct, frozen=True):
    """The inner object of an error of vLLM."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of an error, or an event of a stream."""

    error: ErrorObject


class Broken(Exception):
    """A request of a vLLM server failed; the fields are those of `Failed`."""

    def __init__(
        self,
        code: FailureCode,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        retry_after: str | None = None,
        retry_after_ms: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status = status
        self.retry_after = retry_after
        self.retry_after_ms = retry_after_ms

    def event(self, request_id: str, seq: int) -> Failed:
        """Return the terminal event."""
        return Failed(
            request_id=request_id,
            seq=seq,
            code=self.code,
            message=self.message,
            param=self.param,
            upstream_status=self.status,
            retry_after=self.retry_after,
            retry_after_ms=self.retry_after_ms,
        )


def unreachable() -> Broken:
    """No connection, or one that ended before an answer (C-101)."""
    return Broken(FailureCode.UNREACHABLE, UNREACHABLE_MESSAGE)


def too_late() -> Broken:
    """The answer, or its next part, did not come in time (C-108)."""
    return Broken(FailureCode.DEADLINE, DEADLINE_MESSAGE)


def cut() -> Broken:
    """The answer ended before it was whole (C-113)."""
    return Broken(FailureCode.INCOMPLETE, CUT_MESSAGE)


def misfit(why: str) -> Broken:
    """The answer is not one to the request (C-106)."""
    return Broken(FailureCode.INCOMPLETE, f"{MISFIT}{why}.")


def not_http(why: str) -> Broken:
    """The answer is not HTTP: a status that does not exist, for one (C-109, U-04)."""
    return Broken(FailureCode.INCOMPLETE, f"Inference's answer cannot be read: {why}.")


def of_answer(status: int, body: bytes, headers: Mapping[str, str]) -> Broken:
    """Return the failure that an answer with another status than 200 is."""
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = ErrorObject()
    return of_error(status, error, headers)


def of_event(error: ErrorObject) -> Broken:
    """Return the failure that an error inside of a stream is; its `code` is a status."""
    status = error.code if isinstance(error.code, int) else 500
    return of_error(status, error, {})


def of_error(status: int, error: ErrorObject, headers: Mapping[str, str]) -> Broken:
    """Return the failure of a status and an error object (C-096 to C-109, U-04)."""
    if not 100 <= status <= 599:
        return not_http(f"it has the status {status}")
    message = error.message or f"Inference answered with the status {status}."
    if status == 400:
        if _CONTEXT.search(message):
            return Broken(FailureCode.CONTEXT_LENGTH, message, status=status)
        return Broken(FailureCode.INVALID_REQUEST, message, param=error.param, status=status)
    if status == 429:
        return Broken(
            FailureCode.RATE_LIMITED,
            message,
            status=status,
            retry_after=headers.get("retry-after"),
            retry_after_ms=headers.get("retry-after-ms"),
        )
    if 300 <= status < 400:
        return Broken(FailureCode.AUTH, "Inference sent the API to another address.", status=status)
    if status in (401, 403):
        # What the server says of the API's credentials is nothing for a User.
        return Broken(
            FailureCode.AUTH, "Inference refused the API's own credentials.", status=status
        )
    if status >= 500:
        return Broken(_code_of_fault(f"{error.type or ''} {message}"), message, status=status)
    return Broken(FailureCode.SERVER_ERROR, message, status=status)


def _code_of_fault(told: str) -> FailureCode:
    for pattern, code in (
        (_MEMORY, FailureCode.OUT_OF_MEMORY),
        (_DEAD, FailureCode.ENGINE_DEAD),
        (_CONTEXT, FailureCode.UPSTREAM_CONTEXT),
        (_BAD, FailureCode.UPSTREAM_INVALID),
    ):
        if pattern.search(told):
            return code
    return FailureCode.SERVER_ERROR
