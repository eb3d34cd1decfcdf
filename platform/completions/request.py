"""A Completion that was asked for: typed, in range, with nothing left to check but its sizes."""

from dataclasses import dataclass, field

from inference.engine.messages import Sampling, Steering

Prompts = tuple[str | tuple[int, ...], ...]
"""One prompt or more: texts, or token ids, never mixed."""


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
