"""Which sequences run in the next step, and how many tokens of each.

Prefill and decode are one idea: a chunk is the next so many tokens of a sequence. No tensors
here.
"""

from bisect import insort
from dataclasses import dataclass

from inference.engine.limits import EngineLimits
from inference.engine.prefix import BlockCopy, PrefixCache
from inference.engine.sequence import Job, Sequence


@dataclass(frozen=True)
class Chunk:
    """Tokens `start .. start + count - 1` of a sequence run in this step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Its last row gives the scores of the sequence's next token."""
        return self.stop == self.sequence.length


class Scheduler:
    """Sequences wait in order of priority and arrival, and run until they end.

    What is admitted has room for its whole future, so nothing that runs is ever put back.
    """

    def __init__(self, cache: PrefixCache, limits: EngineLimits) -> None:
        self._cache = cache
        self._limits = limits
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._result_bytes = 0

    @property
    def busy(self) -> bool:
        """There is something to run."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        insort(self.waiting, sequence, key=lambda other: other.order)

    def next_step(self) -> list[Chunk]:
        """Choose the chunks of the next step: one for each running sequence that fits.

        Sequences that generate come first, then prompts in order; at most `step_tokens` in all.
        """
        budget = self._limits.step_tokens
        chunks: list[Chunk] = []
        prompts: list[Sequence] = []
        for sequence in self.running:
            if sequence.length - sequence.computed == 1:
                chunks.append(Chunk(sequence, sequence.computed, 1))
                budget -= 1
            else:
                prompts.append(sequence)
        for sequence in sorted(prompts, key=lambda sequence: sequence.order):
            budget = self._give(sequence, budget, chunks)
        while budget > 0:
            admitted = self._admit()
            if admitted is None:
                break
            budget = self._give(admitted, budget, chunks)
        for chunk in chunks:
            lease = chunk.sequence.lease
            assert lease is not None
            self._cache.grow(lease, chunk.stop)
        return chunks

    def fork(self, leader: Sequence) -> list[tuple[Sequence, BlockCopy | None]]:
        """Start the other choices of a prompt that was just computed, as many as find room.

        The rest stay in line, and find the prompt in the prefix cache when their turn comes.
        """
        started: list[tuple[Sequence, BlockCopy | None]] = []
        shared = len(leader.prompt.tokens)
        assert leader.lease is not None
        for sequence in [other for other in self.waiting if other.prompt is leader.prompt]:
            if len(self.running) >= self._limits.max_sequences:
                break
            granted = self._cache.fork(leader.lease, shared, sequence.future)
            if granted is None:
                break
            sequence.lease, copy = granted
            sequence.computed = shared
            self.waiting.remove(sequence)
            self.running.append(sequence)
            started.append((sequence, copy))
        return started

    def remove(self, sequence: Sequence) -> list[int]:
        """Take a sequence out, wherever it is; returns the blocks that became free."""
        if sequence.lease is None:
            self.waiting.remove(sequence)
            return []
        self.running.remove(sequence)
        lease, sequence.lease = sequence.lease, None
        return self._cache.release(lease)

    def end(self, job: Job) -> None:
        """Give back what a request's results took."""
        self._result_bytes -= job.held_bytes
        job.held_bytes = 0

    def _give(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        count = min(budget, sequence.length - sequence.computed)
        if count > 0:
            chunks.append(Chunk(sequence, sequence.computed, count))
        return budget - count

    def _admit(self) -> Sequence | None:
        """Start the first in line, if there is room for it; nobody overtakes it."""
        if len(self.running) >= self._limits.max_sequences:
            return None
        for sequence in self.waiting:
            if sequence.leads or sequence.prompt.computed:
                may_start = not self._is_being_computed(sequence)
                return sequence if may_start and self._start(sequence) else None
        return None

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether a prompt that is under way will leave more of this one in the cache.

        Requests that come together, as the Nodes of a Branch do, then compute what they share
        once. It costs nothing: a prompt that came before has the whole step up to its last chunk.
        """
        if _computes_anew(sequence):
            return False
        key, tokens = sequence.job.key, sequence.prompt.tokens
        under_way = [
            other.prompt.tokens
            for other in self.running
            if other.leads
            and not other.prompt.computed
            and other.job.key == key
            and other.order < sequence.order
        ]
        if not under_way:
            return False
        more = self._cache.known(key, tokens) + self._cache.block_tokens
        # The last token has to run, so a block that ends with it is of no use.
        return more < len(tokens) and any(other[:more] == tokens[:more] for other in under_way)

    def _start(self, sequence: Sequence) -> bool:
        job = sequence.job
        unheld = 0 if job.held_bytes else job.result_bytes
        if self._result_bytes + unheld > self._limits.result_bytes:
            return False
        tokens = sequence.tokens(0, sequence.length)
        reads = not _computes_anew(sequence)
        lease = self._cache.acquire(job.key, tokens, sequence.future, read=reads)
        if lease is None:
            return False
        job.held_bytes = job.result_bytes
        self._result_bytes += unheld
        sequence.lease = lease
        sequence.computed = lease.cached_tokens
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True


def _computes_anew(sequence: Sequence) -> bool:
    """Whether the whole prompt has to run, because something of each of its tokens is wanted."""
    job = sequence.job
    return sequence.leads and (job.capture is not None or job.prompt_scores is not None)
