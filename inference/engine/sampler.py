"""How the next tokens are drawn, for all rows of a step.

The order is that of vLLM: tokens that may not come yet, penalties, temperature, `min_p`,
`top_k`, `top_p`, draw. A seeded choice draws as vLLM does (one exponential number for each token
of the vocabulary, from a generator of its own), so that a seed gives the same tokens in both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.engine.messages import Sampling

GREEDY_BELOW = 1e-5
"""A lower temperature takes the likeliest token."""

_SEED_SPACE = 1 << 64
_NUCLEUS = 512
_ROUNDING = 1e-5
"""More than sums of float32 probabilities differ by in another order."""


class Draw:
    """How one choice samples: its settings, its generator, and the tokens it has seen."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        choice: int,
        prompt: Sequence[int],
        banned: Sequence[int],
        min_tokens: int,
        device: torch.device,
    ) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.generator: torch.Generator | None = None
        if sampling.seed is not None and not self.greedy:
            self.generator = torch.Generator(device=device)
            self.generator.manual_seed((sampling.seed + choice) % _SEED_SPACE)
        self._banned = torch.tensor(list(banned), dtype=torch.int64, device=device)
        self._min_tokens = min_tokens
        self._generated = 0
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts_output = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        self._seen = dict.fromkeys(prompt) if self._repeats else {}
        self._output: dict[int, int] = {}

    def note(self, token: int) -> None:
        """Remember a token that this choice generated."""
        self._generated += 1
        if self._repeats:
            self._seen[token] = None
        if self._counts_output:
            self._output[token] = self._output.get(token, 0) + 1

    @property
    def adjusts(self) -> bool:
        """The scores are changed before the temperature."""
        banned = len(self._banned) > 0 and self._generated < self._min_tokens
        return banned or self._repeats or bool(self._output)

    def adjust(self, scores: Tensor) -> None:
        """Change one row of scores, float32 `[vocabulary]`, in place.

        `repetition_penalty` sees the prompt and the generated tokens, the other two what was
        generated alone (C-663).
        """
        if len(self._banned) and self._generated < self._min_tokens:
            scores[self._banned] = -torch.inf
        if self._seen:
            seen = torch.tensor(list(self._seen), dtype=torch.int64, device=scores.device)
            values = scores[seen]
            penalty = self.sampling.repetition_penalty
            scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
        if self._output:
            ids = torch.tensor(list(self._output), dtype=torch.int64, device=scores.device)
            counts = torch.tensor(
                list(self._output.values()), dtype=torch.float32, device=scores.device
            )
            scores[ids] = (
                scores[ids]
                - self.sampling.frequency_penalty * counts
                - self.sampling.presence_penalty
            )


class Sampler:
    """Draws one token for each row. Unseeded choices share one generator."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device=device)
        self._generator.seed()

    def sample(self, scores: Tensor, draws: Sequence[Draw]) -> list[int]:
        """Draw a token for each row of `scores` (float32 `[rows, vocabulary]`, kept as it is)."""
        if any(draw.adjusts for draw in draws):
            scores = scores.clone()
            for row, draw in enumerate(draws):
                if draw.adjusts:
                    draw.adjust(scores[row])
        tokens = scores.argmax(-1)
        drawn = [row for row, draw in enumerate(draws) if not draw.greedy]
        if drawn:
            everything = len(drawn) == len(draws)
            chosen = scores if everything else scores[drawn]
            tokens[drawn] = self._draw(chosen, [draws[row] for row in drawn])
        result: list[int] = tokens.tolist()
        return result

    def _draw(self, scores: Tensor, draws: Sequence[Draw]) -> Tensor:
        temperatures = [draw.sampling.temperature for draw in draws]
        divisor = torch.tensor(temperatures, dtype=torch.float32, device=scores.device)
        scores = scores / divisor[:, None]
        for row, draw in enumerate(draws):
            _keep(scores[row], draw.sampling)
        probabilities = scores.softmax(-1)
        tokens = torch.empty(len(draws), dtype=torch.int64, device=scores.device)
        free = [row for row, draw in enumerate(draws) if draw.generator is None]
        if free:
            tokens[free] = self._draw_free(probabilities[free])
        for row, draw in enumerate(draws):
            if draw.generator is not None:
                noise = torch.empty_like(probabilities[row]).exponential_(generator=draw.generator)
                tokens[row] = (probabilities[row] / noise).argmax()
        return tokens

    def _draw_free(self, probabilities: Tensor) -> Tensor:
        """Draw from each row by the inverse of its distribution: one uniform number a row."""
        sums = probabilities.cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(
            (len(sums), 1), dtype=torch.float64, device=sums.device, generator=self._generator
        )
        # The smallest index whose sum exceeds the point: never a token of probability 0.
        tokens = torch.searchsorted(sums, uniform * sums[:, -1:], right=True)
        last = probabilities.shape[-1] - 1 - probabilities.flip(-1).ne(0).int().argmax(-1)
        return torch.minimum(tokens[:, 0], last)


def _keep(scores: Tensor, sampling: Sampling) -> None:
    """Set the scores that a row's filters drop to minus infinity, in place (C-662)."""
    vocabulary = scores.shape[-1]
    if sampling.min_p > 0:
        probabilities = scores.softmax(-1)
        scores[probabilities < sampling.min_p * probabilities.max()] = -torch.inf
    limited = 0 < sampling.top_k < vocabulary
    if limited:
        least = scores.topk(sampling.top_k).values[-1]
        scores[scores < least] = -torch.inf
    if sampling.top_p < 1:
        _keep_nucleus(scores, sampling.top_p)


def _keep_nucleus(scores: Tensor, top_p: float) -> None:
    """Drop what `top_p` drops: the tail whose probabilities, from the least up, are within 1 - p.

    The likeliest tokens alone tell this, unless the edge of the nucleus is beyond them or so close
    to a token that only the rule's own order of additions decides.
    """
    likeliest, order = scores.softmax(-1).topk(min(_NUCLEUS, len(scores)))
    before = likeliest.cumsum(-1) - likeliest
    distance = before - top_p
    if distance[-1] > _ROUNDING and not bool((distance.abs() <= _ROUNDING).any()):
        kept = order[before < top_p]
        values = scores[kept]
        scores.fill_(-torch.inf)
        scores[kept] = values
        return
    ascending, order = scores.sort()
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    dropped[-1] = False
    scores[order[dropped]] = -torch.inf
