"""How a Job is refused or fails, in the contract's words (C-087, C-093, C-434 to C-437)."""

from django.conf import settings

from completions.failures import ErrorType, Failure


def job_failed() -> Failure:
    """The API could not run background work, or could not keep its result (C-093, C-437, C-656)."""
    return Failure(
        500,
        "The server had an error while running this work. Nothing was paid. Submit it again.",
        "job_failed",
        ErrorType.INTERNAL,
        may_retry=False,
    )


def job_not_found() -> Failure:
    """No Job of the User has this id (C-072)."""
    return Failure(404, "There is no Job with this id.", "job_not_found")


def job_cancelled() -> Failure:
    """A cancelled Job has no result (C-081, C-435)."""
    return Failure(409, "This Job was cancelled.", "job_cancelled", may_retry=False)


def job_result_expired() -> Failure:
    """The result was erased after its time (C-082, C-436)."""
    days = settings.BASALT.job_result_seconds / 86_400
    return Failure(
        410,
        f"The result of this Job was kept for {days:g} days after its end and is gone.",
        "job_result_expired",
    )


def job_capacity(most: int, what: str) -> Failure:
    """A cap on Jobs is full (C-087, C-415, C-416)."""
    return Failure(
        429,
        f"There are {most} {what}, the most that there may be. Nothing was submitted.",
        "job_capacity",
        may_retry=False,
    )
