"""How a harvest is refused or fails, in the contract's words (C-472 to C-477, C-512)."""

from collections.abc import Sequence
from datetime import date

from django.conf import settings

from completions.failures import ErrorType, Failure, invalid
from inference.catalogue import ModelEntry

RETRY_SECONDS = 30


def harvest_unsupported(model: ModelEntry, harvested: Sequence[str]) -> Failure:
    """The model is served without harvests (C-069)."""
    others = f" Harvests run on {', '.join(harvested)}." if harvested else ""
    return Failure(
        400,
        f"The model {model.id} is served without harvests.{others}",
        "harvest_unsupported",
        param="model",
    )


def no_layer(model: ModelEntry, layer: int) -> Failure:
    """A Layer that the model lacks (C-457)."""
    return invalid(
        "layers",
        f"{model.served_name} has layers 0 to {model.n_layers - 1}: it has no layer {layer}.",
    )


def wrong_width(model: ModelEntry, directions: int, width: int) -> Failure:
    """Directions of another hidden size (C-463)."""
    return invalid(
        "project_onto",
        f"project_onto.shape is {directions} × {width}, but the hidden size of"
        f" {model.served_name} is {model.hidden_size}.",
    )


def quota_exceeded(most: int, begins: date) -> Failure:
    """The key's harvests of the month (C-088, C-472)."""
    return Failure(
        429,
        f"This API key has made {most} harvests this month, the most that it may. The count starts"
        f" over on {begins.day} {begins:%B %Y} (UTC).",
        "harvest_quota_exceeded",
        may_retry=False,
    )


def too_many_small(most: int) -> Failure:
    """A User's harvests on small models (C-474)."""
    return _concurrency(
        f"You have {most} {_harvests(most)} on small models queued or running, your most. Submit"
        " another when one ends, or cancel one."
    )


def too_many_large(most: int) -> Failure:
    """A User's harvests on large models (C-475)."""
    return _concurrency(
        f"You have {most} {_harvests(most)} on large models queued or running, your most. Submit"
        f" another when {'it' if most == 1 else 'one'} ends, or cancel"
        f" {'it' if most == 1 else 'one'}."
    )


def capacity_exceeded(most: int) -> Failure:
    """All harvests on large models (C-090, C-476)."""
    return Failure(
        429,
        f"All users together have {most} {_harvests(most)} on large models queued or running, the"
        " most there may be. Submit yours when one ends.",
        "harvest_capacity_exceeded",
        retry_after=RETRY_SECONDS,
    )


def harvest_not_found() -> Failure:
    """No harvest of the User has the id (C-073)."""
    return Failure(404, "You have no harvest with this id.", "harvest_job_not_found")


def not_cancellable(state: str) -> Failure:
    """The harvest has ended (C-077)."""
    return Failure(
        409,
        f"This harvest is {state}: only one that is pending or running can be cancelled.",
        "harvest_not_cancellable",
        may_retry=False,
    )


def not_started(seconds: float) -> Failure:
    """No harvest worker took the run (C-512)."""
    return _failed(
        "not_started",
        f"Inference did not start this harvest within {seconds / 60:g} minutes. It cost nothing:"
        " submit it again.",
    )


def timed_out(minutes: int) -> Failure:
    """The run was past its limit (C-513)."""
    return _failed(
        "timed_out",
        f"This harvest timed out: its run may take {minutes} minutes. It cost nothing: submit it in"
        " smaller parts.",
    )


def result_lost() -> Failure:
    """The workers of the run died (C-512)."""
    return _failed(
        "result_lost",
        "The result of this harvest's run was lost. It cost nothing: submit it again.",
    )


def weights_not_confirmed() -> Failure:
    """The worker's weights are others (C-512)."""
    return _failed(
        "weights_not_confirmed",
        "The weights could not be confirmed as the model's pinned revision, so nothing ran. It"
        f" cost nothing: write to {settings.BASALT.support_email}.",
    )


def refused_value(why: str) -> Failure:
    """The worker could not run what was asked (C-512)."""
    return _failed("invalid_request", f"Inference refused this harvest: {why} It cost nothing.")


def run_failed(why: str) -> Failure:
    """Anything else (C-512)."""
    return _failed("run_failed", f"This harvest failed: {why} It cost nothing.")


def _failed(code: str, text: str) -> Failure:
    """A failure that ends a harvest: its text is what its User reads (C-481, U-14)."""
    return Failure(500, text, code, ErrorType.INTERNAL, may_retry=False)


def _concurrency(message: str) -> Failure:
    return Failure(429, message, "harvest_concurrency_exceeded", retry_after=RETRY_SECONDS)


def _harvests(count: int) -> str:
    return "harvest" if count == 1 else "harvests"
