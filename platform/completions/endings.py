"""Which ending a request that paid nothing counts under (`billing.endings`)."""

import asyncio

from billing.endings import endings
from billing.models import Ending, Source
from completions.failures import ClientLeft, Failure
from inference import catalogue

_BY_CODE = {
    "budget_exceeded": Ending.BUDGET,
    "spend_cap": Ending.SPEND_CAP,
    "upstream_deadline": Ending.TIMEOUT,
}


def ending_of(error: BaseException) -> Ending:
    """Return what an error counts as."""
    if isinstance(error, asyncio.CancelledError | ClientLeft | GeneratorExit):
        return Ending.LEFT
    if not isinstance(error, Failure):
        return Ending.SERVER_ERROR
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    if error.status == 429:
        return Ending.RATE_LIMITED
    return Ending.CLIENT_ERROR if error.status < 500 else Ending.SERVER_ERROR


def note_unpaid(source: Source, model: str | None, error: BaseException) -> None:
    """Count a request that ended in an error and paid nothing.

    `model` is what the request named, None for the default; a name that is not served counts under
    no model, so that nobody fills the table with names.
    """
    served = catalogue.current()
    entry = served.default if model is None else served.find(model)
    endings().note(source=source, model=entry.id if entry else "", ending=ending_of(error))
