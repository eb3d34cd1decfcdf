"""One forward pass over a packed batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.layout import BlockLayout, Span
from inference.engine.loading import LoadedModel
from inference.engine.prefix import BlockCopy
from inference.engine.residual import Interventions, Participant
from inference.engine.scheduler import Chunk
from inference.engine.store import BlockStore


@dataclass(frozen=True)
class StepScores:
    """The raw scores of the rows that were asked for, float32 `[rows, vocabulary]`."""

    scores: Tensor
    best: Tensor
    """int64 `[rows]`: the token with the highest score; of a NaN where there is one."""
    prompt_rows: dict[int, slice]
    """By the number of a chunk: the rows of its prompt positions."""
    sample_rows: dict[int, int]
    """By the number of a chunk: the row of its next token."""


class Runner:
    """Runs chunks through the model and keeps their keys and values."""

    def __init__(self, loaded: LoadedModel, store: BlockStore) -> None:
        self._loaded = loaded
        self._store = store
        self._device = loaded.stream.device

    def run(self, chunks: Sequence[Chunk]) -> StepScores:
        """Run all chunks in one pass. Repeating a step writes the same places again.

        The rows of residual reads go to the requests' captures when the pass succeeds.
        """
        order = sorted(range(len(chunks)), key=lambda number: _place(chunks[number]))
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        participants: list[Participant] = []
        kept: list[int] = []
        prompt_rows: dict[int, slice] = {}
        sample_rows: dict[int, int] = {}
        for number in order:
            chunk = chunks[number]
            sequence, row = chunk.sequence, len(tokens)
            assert sequence.lease is not None
            spans.append(Span(row, chunk.start, chunk.count, sequence.lease.blocks))
            capture = sequence.job.capture
            if sequence.job.steering.steers or capture is not None:
                participants.append(
                    Participant(row, chunk.start, chunk.count, sequence.job.steering, capture)
                )
            tokens.extend(sequence.tokens(chunk.start, chunk.stop))
            positions.extend(range(chunk.start, chunk.stop))
            scored = scored_positions(chunk)
            if scored:
                prompt_rows[number] = slice(len(kept), len(kept) + len(scored))
                kept.extend(row + position - chunk.start for position in scored)
            if chunk.samples:
                sample_rows[number] = len(kept)
                kept.append(row + chunk.count - 1)
        interventions = Interventions(participants, self._loaded.stream)
        layout = BlockLayout(self._store, spans)
        with interventions.installed(self._loaded.blocks):
            scores = self._forward(tokens, positions, kept, layout)
        interventions.deliver()
        return StepScores(scores, self._best(scores), prompt_rows, sample_rows)

    def _best(self, scores: Tensor) -> Tensor:
        if self._loaded.kernels is not None:
            return self._loaded.kernels.peaks(scores)
        return scores.argmax(-1)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks of the cache."""
        for copy in copies:
            self._store.copy(copy.source, copy.target)

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks of a sequence that failed."""
        if blocks:
            self._store.clear(blocks)

    def _forward(
        self, tokens: list[int], positions: list[int], kept: list[int], layout: BlockLayout
    ) -> Tensor:
        """Run the model; the head only sees the rows in `kept`."""
        output = self._loaded.model(
            input_ids=torch.tensor([tokens], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(kept, dtype=torch.int64, device=self._device),
            layout=layout,
        )
        scores: Tensor = output.logits[0].float()
        return scores


def scored_positions(chunk: Chunk) -> range:
    """Return the positions of a chunk whose scores tell about a prompt token after them."""
    sequence = chunk.sequence
    if not sequence.leads or sequence.job.prompt_scores is None:
        return range(0)
    return range(chunk.start, min(chunk.stop, len(sequence.prompt.tokens) - 1))


def _place(chunk: Chunk) -> tuple[bool, int]:
    """Single tokens first, in order of length: see `BlockLayout`."""
    return chunk.count > 1, chunk.stop
