"""How the next tokens are drawn, for all rows of a step.

The order is that of vLLM: tokens that may not come yet, penalties, temperature, `min_p`,
`top_k`, `top_p`, draw. A seeded choice draws as vLLM does (one exponential number for each token
of the vocabulary, from a generator of its own), so that a seed gives the same tokens in both.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.kernels import Kernels, Twister
from inference.engine.messages import Sampling

GREEDY_BELOW = 1e-5
"""A lower temperature takes the likeliest token."""

_SEED_SPACE = 1 << 64
_NUCLEUS = 512
_GROUP = 256
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
        kernels: Kernels | None = None,
    ) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.generator: torch.Generator | Twister | None = None
        """None draws from the generator that unseeded choices share."""
        if sampling.seed is not None and not self.greedy:
            seed = (sampling.seed + choice) % _SEED_SPACE
            if kernels is None:
                self.generator = torch.Generator(device=device).manual_seed(seed)
            else:
                self.generator = kernels.twister(seed)
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

    @property
    def filters(self) -> bool:
        """Some tokens are dropped before the draw."""
        asked = self.sampling
        return asked.min_p > 0 or asked.top_k > 0 or asked.top_p < 1

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

    def __init__(self, device: torch.device, kernels: Kernels | None = None) -> None:
        self._kernels = kernels
        self._generator = torch.Generator(device=device)
        self._generator.seed()

    def sample(self, scores: Tensor, best: Tensor, draws: Sequence[Draw]) -> list[int]:
        """Draw a token for each row of `scores` (float32 `[rows, vocabulary]`, kept as it is).

        `best` is int64 `[rows]`: where each row is highest.
        """
        tokens = best.clone()
        adjusted = [row for row, draw in enumerate(draws) if draw.adjusts]
        if adjusted:
            scores = scores.clone()
            for row in adjusted:
                draws[row].adjust(scores[row])
            tokens[adjusted] = scores[adjusted].argmax(-1)
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
            if draw.filters:
                _keep(scores[row], draw.sampling)
        probabilities = scores.softmax(-1)
        tokens = torch.empty(len(draws), dtype=torch.int64, device=scores.device)
        free = [row for row, draw in enumerate(draws) if draw.generator is None]
        if free:
            tokens[free] = self._draw_free(probabilities[free])
        if len(free) < len(draws):
            seeded = [row for row, draw in enumerate(draws) if draw.generator is not None]
            tokens[seeded] = self._draw_seeded(
                probabilities[seeded], [draws[row].generator for row in seeded]
            )
        return tokens

    def _draw_seeded(
        self, probabilities: Tensor, generators: Sequence[torch.Generator | Twister | None]
    ) -> Tensor:
        """Draw from each row with its own generator: the largest probability over noise wins."""
        twisters = [generator for generator in generators if isinstance(generator, Twister)]
        if self._kernels is not None and len(twisters) == len(generators):
            return self._kernels.race(probabilities, twisters)
        noise = torch.empty_like(probabilities)
        for row, generator in zip(noise, generators, strict=True):
            assert isinstance(generator, torch.Generator)
            row.exponential_(generator=generator)
        return (probabilities / noise).argmax(-1)

    def _draw_free(self, probabilities: Tensor) -> Tensor:
        """Draw from each row by the inverse of its distribution: one uniform number a row.

        The number first falls into a group of tokens and then, within it, on a token.
        """
        padded = F.pad(probabilities, (0, -probabilities.shape[-1] % _GROUP))
        groups = padded.view(len(padded), -1, _GROUP)
        points = torch.rand(
            (len(groups), 1), dtype=torch.float64, device=groups.device, generator=self._generator
        )
        group, points = _fall(groups.sum(-1), points)
        own = groups[torch.arange(len(groups), device=groups.device), group[:, 0]]
        token, _ = _fall(own, points)
        return (group * _GROUP + token)[:, 0]


def _fall(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return on which weight of its row each point of [0, 1) falls, and where within it.

    `weights` is `[rows, size]`, `points` and both results are `[rows, 1]`.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    places = points * sums[:, -1:]
    # The smallest index whose sum exceeds the place: never a weight of 0.
    index = torch.searchsorted(sums, places, right=True)
    last = weights.shape[-1] - 1 - weights.flip(-1).ne(0).int().argmax(-1, keepdim=True)
    index = torch.minimum(index, last)
    weight = weights.gather(-1, index).double()
    within = (places - (sums.gather(-1, index) - weight)) / weight
    return index, within.clamp(0, 1 - 1e-9)


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
