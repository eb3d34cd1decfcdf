"""The caps of one Completion (section 6) and its `max_tokens` (section 11): pure rules.

Each check raises the contract's refusal, so that the order of `admission` can be read there.
"""

from dataclasses import dataclass
from typing import Literal

from django.conf import settings

from completions.failures import context_exceeded, deadline_infeasible, invalid
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry

GREEDY_BELOW = 0.00001
"""Under this temperature every choice would be the same (C-165)."""


def check_choices(request: CompletionRequest) -> None:
    """Refuse too many choices (C-179) and several greedy ones (C-165)."""
    most = settings.BASALT.max_choices
    if request.n < 1:
        raise invalid("n", f"n must be at least 1, got {request.n}.")
    if request.choices > most:
        raise invalid(
            "n",
            f"At most {most} choices in all: {len(request.prompts)} prompts times "
            f"n = {request.n} is {request.choices}.",
        )
    if request.n > 1 and request.sampling.temperature < GREEDY_BELOW:
        raise invalid("n", f"n must be 1 when using greedy sampling, got {request.n}.")


def check_output(request: CompletionRequest) -> None:
    """Refuse a `max_tokens` that is missing, too small, or too large in all (C-148, C-180)."""
    asked = request.max_tokens
    if asked is None:
        if request.choices > 1:
            raise invalid(
                "max_tokens", "Set max_tokens: a request for several choices has no default."
            )
        return
    least = 0 if request.echo else 1
    if asked < least:
        raise invalid(
            "max_tokens",
            f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})",
        )
    most = settings.BASALT.max_output_tokens
    total = request.choices * max(asked, 1)
    if total > most:
        raise invalid(
            "max_tokens",
            f"At most {most} generated tokens in all: n = {request.n} times max_tokens = {asked} "
            f"for each of {len(request.prompts)} prompts is {total}.",
        )


def check_prompt_logprobs(
    request: CompletionRequest, model: ModelEntry, counts: tuple[int, ...]
) -> None:
    """Refuse more log probabilities of prompts than one answer may carry (C-183 to C-185)."""
    env, tokens = settings.BASALT, sum(counts) * request.n
    asked = request.prompt_logprobs
    if asked == -1:
        reads = request.read_layers is not None
        most = env.full_vocab_max_prompt_tokens_read if reads else env.full_vocab_max_prompt_tokens
        if tokens > most:
            raise invalid(
                "prompt_logprobs",
                f"prompt_logprobs -1 is for at most {most} prompt tokens in all"
                f"{' with output_residual_stream' if reads else ''}: this request has {tokens}.",
            )
    of_prompt = 0 if asked is None else (model.vocab_size if asked == -1 else asked + 1)
    of_echo = request.logprobs + 1 if request.echo and request.logprobs is not None else 0
    if asked != -1 and tokens * (of_prompt + of_echo) > env.max_capture_numbers:
        raise invalid(
            "prompt_logprobs" if of_prompt else "logprobs",
            f"At most {env.max_capture_numbers} log probabilities of the prompt in all: "
            f"{tokens} prompt tokens times {of_prompt + of_echo} is "
            f"{tokens * (of_prompt + of_echo)}.",
        )


Reason = Literal["budget", "deadline", "deadline+budget"]


@dataclass(frozen=True)
class Output:
    """How many tokens a choice may generate, and how that differs from what was asked for."""

    max_tokens: int
    requested: int
    by_deadline: bool = False
    by_budget: bool = False
    is_default: bool = False

    def lowered_to(self, tokens: int) -> "Output":
        """Return the output after a Budget lowered it (C-306)."""
        return Output(tokens, self.requested, self.by_deadline, True, self.is_default)

    @property
    def clamp_header(self) -> str | None:
        """The value of `X-Acs-Max-Tokens-Clamped`, or None when nothing was lowered (C-302)."""
        reasons = [
            name
            for name, applies in (("deadline", self.by_deadline), ("budget", self.by_budget))
            if applies
        ]
        if not reasons:
            return None
        header = f"requested={self.requested},applied={self.max_tokens},reason={'+'.join(reasons)}"
        if self.by_budget:
            header += f",source={'default' if self.is_default else 'client'}"
        return header


def asked_output(request: CompletionRequest, model: ModelEntry, counts: tuple[int, ...]) -> Output:
    """Return the `max_tokens` that was asked for, or the default (C-295 to C-300)."""
    env, asked = settings.BASALT, request.max_tokens
    if asked is not None:
        return Output(asked, asked)
    room = max(1, min(model.max_model_len - max(counts), env.max_output_tokens))
    cut = not request.stream and room > env.deadline_max_tokens
    return Output(min(room, env.deadline_max_tokens) if cut else room, room, cut, False, True)


def settle_output(
    request: CompletionRequest,
    model: ModelEntry,
    counts: tuple[int, ...],
    *,
    has_deadline: bool = True,
) -> Output:
    """Return the `max_tokens` of a Completion (C-295 to C-300, C-312).

    With `has_deadline` an answer without a stream must come in time (C-298).

    Raises:
        Failure: `deadline_infeasible`, or `context_length_exceeded`.
    """
    most, longest = settings.BASALT.deadline_max_tokens, max(counts)
    output = asked_output(request, model, counts)
    if has_deadline and not request.stream and output.max_tokens > most:
        raise deadline_infeasible(output.max_tokens, most)
    if longest + max(output.max_tokens, 1) > model.max_model_len:
        raise context_exceeded(model.max_model_len, longest, max(output.max_tokens, 1))
    return output


def tokens_to_hold(request: CompletionRequest, counts: tuple[int, ...], max_tokens: int) -> int:
    """Return the size of the Hold (C-327)."""
    return sum(counts) + request.choices * max(max_tokens, 1)
