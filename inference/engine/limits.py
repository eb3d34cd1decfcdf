"""What an engine may use, and what it reports about its load."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The bounds of one engine. They are fixed for its life."""

    cache_bytes: int = 2 << 30
    """Memory of the key and value cache, in bytes."""
    block_tokens: int = 16
    """Tokens in one block of the cache."""
    max_sequences: int = 64
    """Choices that run at the same time."""
    step_tokens: int = 256
    """Tokens that one forward pass takes at most; longer prompts are cut into chunks."""
    max_requests: int = 1024
    """Requests that the engine holds, running and waiting."""
    result_bytes: int = 2 << 30
    """Residual rows and prompt log probabilities that running requests may hold, in bytes."""
    threads: int | None = None
    """Threads of the processor that a step uses; None leaves torch's own choice."""

    def __post_init__(self) -> None:
        """Raise ValueError for bounds under which no request could ever run."""
        if self.block_tokens < 1 or self.max_requests < 1 or self.max_sequences < 1:
            raise ValueError("block_tokens, max_requests and max_sequences must be at least 1.")
        if self.step_tokens < self.max_sequences:
            raise ValueError(
                f"step_tokens is {self.step_tokens}: it must be at least max_sequences"
                f" ({self.max_sequences}), so that every running choice gains a token in each step."
            )


@dataclass(frozen=True)
class LoadFigures:
    """A snapshot of an engine, taken after a step."""

    running: int = 0
    """Choices that hold a place in the cache."""
    waiting: int = 0
    """Choices that wait for one."""
    blocks_total: int = 0
    blocks_free: int = 0
    """Blocks that a new request could have, cached prefixes without a user among them."""
    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens that ran through the model; those found in the prefix cache do not count."""
    generated_tokens: int = 0
