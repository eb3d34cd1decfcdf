"""A Completion that was asked for: typed, in range, with nothing left to check but its sizes."""

from dataclasses import dataclass, field

from inference.engine.messages import Sampling, Steering

Prompts = tuple[str | tuple[int, ...], ...]
"""One prompt or more: texts, or token ids, never mixed."""
LARGEST_TOP_K = 2**31 - 1
"""No vocabulary is as large: this and more filters nothing, and is read as this (C-152)."""
LAST_PRIORITY = 2**63 - 1
"""What no wire and no column holds is read as this: the last in line (C-160)."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """The fields of section 5 of the contract, defaults filled in."""

    model: str | None = None
    """An id or a served name; None is the default model."""
    prompts: Prompts
    max_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    echo: bool = False
    add_special_tokens: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    read_layers: tuple[int, ...] | None = None
    """None reads nothing, an empty tuple every Layer."""
    steering: tuple[Steering, ...] = ()
    user: str | None = None

    @property
    def choices(self) -> int:
        """Prompts times `n`."""
        return len(self.prompts) * self.n
