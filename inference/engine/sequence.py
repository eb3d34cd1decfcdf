"""One choice of one request, as the scheduler and the runner see it."""

import time
from dataclasses import dataclass, field
from uuid import uuid4

from inference.engine.messages import EngineRequest, Given, PackedLogprobs
from inference.engine.prefix import Lease, PrefixKey
from inference.engine.residual import Capture, SteeringPlan
from inference.engine.sampler import Draw
from inference.engine.text import Detokenizer, StopWatch


def _given() -> Given:
    return Given(id=f"cmpl-{uuid4().hex}", created=int(time.time()))


@dataclass(eq=False)
class Job:
    """A request inside the engine, with what its choices have in common."""

    request: EngineRequest
    arrival: int
    key: PrefixKey
    steering: SteeringPlan
    sequences: "list[Sequence]" = field(default_factory=list)
    open_choices: int = 0
    events: int = 0
    """How many events went out; the next one's number."""
    generated: int = 0
    given: Given = field(default_factory=_given)
    capture: Capture | None = None
    result_bytes: int = 0
    """Most bytes that its residual rows and prompt log probabilities take."""
    held_bytes: int = 0
    """What the scheduler counted for them."""

    @property
    def prompt_scores(self) -> int | None:
        """How many likeliest tokens each prompt position reports; None for no report."""
        asked = self.request
        wanted = [asked.prompt_logprobs, asked.logprobs if asked.echo else None]
        counts = [count for count in wanted if count is not None]
        if not counts:
            return None
        return -1 if -1 in counts else max(counts)

    def next_event(self) -> int:
        """Return the number of the next event."""
        self.events += 1
        return self.events - 1


@dataclass(eq=False)
class Prompt:
    """One prompt of a request, computed once for all its choices."""

    tokens: tuple[int, ...]
    computed: bool = False
    scores: PackedLogprobs | None = None
    score_parts: list[PackedLogprobs] = field(default_factory=list)


@dataclass(eq=False)
class Sequence:
    """One choice: its tokens, its place in the cache, and how it samples and reads."""

    job: Job
    prompt: Prompt
    index: int
    leads: bool
    """Its chunks compute the prompt; the prompt's other choices wait for it."""
    draw: Draw
    detokenizer: Detokenizer
    stops: StopWatch
    generated: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens whose keys and values stand in the cache."""
    lease: Lease | None = None
    answered: bool = False
    """Its first event went out."""

    @property
    def length(self) -> int:
        """Tokens known so far."""
        return len(self.prompt.tokens) + len(self.generated)

    @property
    def limit(self) -> int:
        """Most tokens that it generates (C-240: at least one)."""
        return max(1, self.job.request.max_tokens)

    @property
    def future(self) -> int:
        """Tokens that the cache must hold for it; the last generated one never runs."""
        return len(self.prompt.tokens) + self.limit - 1

    @property
    def order(self) -> tuple[int, int, int]:
        """Who comes first: priority, then arrival (C-660)."""
        return self.job.request.priority, self.job.arrival, self.index

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return the tokens at these positions."""
        size = len(self.prompt.tokens)
        if start >= size:
            return self.generated[start - size : stop - size]
        return [*self.prompt.tokens[start:stop], *self.generated[: max(0, stop - size)]]
