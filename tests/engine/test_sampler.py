"""Draws follow the distribution that the filters leave, and seeds follow vLLM's rule."""

import pytest
import torch

from inference.engine.kernels import Kernels
from inference.engine.messages import Sampling
from inference.engine.reference import draw
from inference.engine.sampler import Draw, Sampler
from tests.engine.harness import house_kernels

CPU = torch.device("cpu")
DRAWS = 10_000

FILTERS = {
    "nothing": Sampling(),
    "temperature": Sampling(temperature=0.6),
    "top_p": Sampling(top_p=0.7),
    "top_k": Sampling(top_k=6),
    "min_p": Sampling(min_p=0.15),
    "top_k and top_p": Sampling(top_k=8, top_p=0.8),
    "all": Sampling(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
}


def _draw(sampling: Sampling, choice: int = 0, kernels: Kernels | None = None) -> Draw:
    return Draw(
        sampling, choice=choice, prompt=(), banned=(), min_tokens=0, device=CPU, kernels=kernels
    )


def sample(sampler: Sampler, scores: torch.Tensor, draws: list[Draw]) -> list[int]:
    return sampler.sample(scores, scores.argmax(-1), draws)


def _scores(size: int = 20) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3)) * 1.5


def _expected(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What is left of the distribution, from the contract's words (C-662)."""
    chances = (scores.double() / sampling.temperature).softmax(-1)
    kept = chances >= sampling.min_p * chances.max()
    chances = torch.where(kept, chances, 0.0)
    chances = chances / chances.sum()
    order = chances.argsort(descending=True)
    if sampling.top_k > 0:
        chances[order[sampling.top_k :]] = 0.0
        chances = chances / chances.sum()
    before = chances[order].cumsum(-1) - chances[order]
    chances[order[before >= sampling.top_p]] = 0.0
    return chances / chances.sum()


@pytest.mark.row("C-661", "C-662")
@pytest.mark.parametrize("name", FILTERS)
def test_unseeded_draws_follow_the_distribution(name: str) -> None:
    sampling, scores = FILTERS[name], _scores()
    sampler = Sampler(CPU)
    sampler._generator.manual_seed(11)
    tokens = sample(sampler, scores.expand(DRAWS, -1), [_draw(sampling)] * DRAWS)
    expected = _expected(scores, sampling) * DRAWS
    seen = torch.bincount(torch.tensor(tokens), minlength=len(scores)).double()
    possible = expected > 0
    assert seen[~possible].sum() == 0
    statistic = ((seen - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = int(possible.sum()) - 1
    # The 99.99 % point of chi-square, by Wilson and Hilferty.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("compiled", [True, False])
def test_seeded_draws_are_those_of_the_rule(name: str, compiled: bool) -> None:
    kernels = house_kernels() if compiled else None
    sampling = FILTERS[name]
    seeded = Sampling(**{f: getattr(sampling, f) for f in sampling.__struct_fields__} | {"seed": 9})
    scores = _scores(5000)
    own, generator = _draw(seeded, kernels=kernels), torch.Generator().manual_seed(9)
    sampler = Sampler(CPU, kernels)
    for _ in range(50):
        found = sample(sampler, scores[None], [own])[0]
        assert found == draw(scores, seeded, generator)


@pytest.mark.row("C-662")
def test_top_p_of_a_flat_distribution_needs_many_tokens() -> None:
    """The nucleus may be most of the vocabulary."""
    scores = torch.zeros(4000) + torch.linspace(0, 1e-3, 4000)
    sampling = Sampling(top_p=0.9, seed=4)
    own, generator = _draw(sampling), torch.Generator().manual_seed(4)
    found = [sample(Sampler(CPU), scores[None], [own])[0] for _ in range(20)]
    assert found == [draw(scores, sampling, generator) for _ in range(20)]
    assert min(found) >= 390


@pytest.mark.row("C-663")
@pytest.mark.case("E07")
def test_penalties_see_what_they_should() -> None:
    scores = torch.tensor([2.0, -1.0, 0.5, 3.0, 1.0])
    sampling = Sampling(
        temperature=0, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25
    )
    own = Draw(sampling, choice=0, prompt=(0, 1, 0), banned=(), min_tokens=0, device=CPU)
    first = scores.clone()
    own.adjust(first)
    assert torch.allclose(first, torch.tensor([2.0 / 1.5, -1.5, 0.5, 3.0, 1.0]))
    for token in (3, 3, 1):
        own.note(token)
    later = scores.clone()
    own.adjust(later)
    expected = [2.0 / 1.5, -1.5 - 0.5 - 0.25, 0.5, 3.0 / 1.5 - 1.0 - 0.25, 1.0]
    assert torch.allclose(later, torch.tensor(expected))


def test_end_tokens_wait_for_min_tokens() -> None:
    scores = torch.tensor([0.0, 9.0, 1.0, 8.0])
    own = Draw(
        Sampling(temperature=0), choice=0, prompt=(), banned=(1, 3), min_tokens=2, device=CPU
    )
    sampler, tokens = Sampler(CPU), []
    for _ in range(3):
        tokens += sample(sampler, scores[None], [own])
        own.note(tokens[-1])
    assert tokens == [2, 2, 1]


def test_scores_of_the_caller_stay_as_they_are() -> None:
    scores = _scores()[None].clone()
    before = scores.clone()
    own = _draw(Sampling(seed=1, top_k=3, repetition_penalty=2.0))
    own.note(4)
    sample(Sampler(CPU), scores, [own])
    assert torch.equal(scores, before)


@pytest.mark.case("E05")
def test_choices_of_one_seed_use_the_seeds_after_it() -> None:
    scores = _scores(5000)
    third = sample(Sampler(CPU), scores[None], [_draw(Sampling(seed=5), choice=2)])
    assert third == sample(Sampler(CPU), scores[None], [_draw(Sampling(seed=7))])


def test_unseeded_draws_follow_a_distribution_over_a_whole_vocabulary() -> None:
    """More tokens than a group of the draw holds; the last one may come, and nothing beyond."""
    size = 1000
    scores = torch.full((size,), -torch.inf)
    places = torch.tensor([0, 255, 256, 511, 700, size - 1])
    scores[places] = torch.tensor([0.1, 0.2, 0.3, 0.05, 0.15, 0.2]).log()
    sampler = Sampler(CPU)
    sampler._generator.manual_seed(12)
    tokens = sample(sampler, scores.expand(DRAWS, -1), [_draw(Sampling())] * DRAWS)
    seen = torch.bincount(torch.tensor(tokens), minlength=size)
    assert seen.sum() == seen[places].sum()
    expected = scores[places].exp() * DRAWS
    statistic = ((seen[places] - expected) ** 2 / expected).sum()
    assert statistic < 25.74  # The 99.99 % point for 5 degrees of freedom.


def test_a_draw_never_takes_a_token_of_probability_zero() -> None:
    scores = torch.full((1000, 50), -torch.inf)
    scores[:, 17] = 0.0
    scores[:, 30] = -2.0
    tokens = sample(Sampler(CPU), scores, [_draw(Sampling())] * 1000)
    assert set(tokens) <= {17, 30}
