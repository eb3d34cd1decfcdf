"""The compiled kernels compute what torch's operations do, on every shape that a step has."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from inference.engine import attention, compiling, kernels, lean
from inference.engine.attention import AttentionShape
from inference.engine.kernels import Kernels
from inference.engine.layout import BlockLayout, Span
from inference.engine.store import BlockStore, LayerShape
from tests.engine.harness import GREEDY, Bench, assert_rows, house_kernels
from tests.engine.tiny_models import llama_config, randomize

DTYPES = [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)]


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def compiled(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield house_kernels()
    torch.set_num_threads(before)


def _numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(found: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    assert found.shape == right.shape
    gap = (found.double() - right.double()).abs().max()
    return bool(gap <= tolerance * right.double().abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (1, 5, 33), (1, 700, 64), (3, 1)])
def test_rms_norm(compiled: Kernels, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float):
    rows, weight = _numbers(*shape, dtype=dtype), _numbers(shape[-1], dtype=torch.float32, seed=1)
    wide = rows.double()
    right = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    for exact in (True, False):
        assert _close(compiled.rms_norm(rows, weight, 1e-5, wide=exact), right, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (1, 5, 34), (1, 700, 128)])
def test_silu_mul(compiled: Kernels, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float):
    rows = _numbers(*shape, dtype=dtype) * 8
    gate, up = rows.double().chunk(2, -1)
    assert _close(compiled.silu_mul(rows), F.silu(gate) * up, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_that_are_not_finite_stay_so(compiled: Kernels, dtype: torch.dtype) -> None:
    """Whoever hides them answers with wrong numbers."""
    rows = torch.zeros(4, 64, dtype=dtype)
    rows[0, 3], rows[1, 40], rows[2, 33] = torch.nan, torch.nan, torch.inf
    gated = compiled.silu_mul(rows)
    assert gated[0, 3].isnan()
    assert gated[1, 8].isnan()
    assert not gated[2, 1].isfinite()
    assert (gated[3] == 0).all()
    normed = compiled.rms_norm(rows, torch.ones(64), 1e-5, wide=False)
    assert normed[:2].isnan().all()
    assert not normed[2].isfinite().all()
    assert (normed[3] == 0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("tokens", [1, 6, 300])
def test_rotate(compiled: Kernels, tokens: int, dtype: torch.dtype, tolerance: float) -> None:
    rows = _numbers(tokens, 5 * 16, dtype=dtype)
    cosines, sines = _numbers(2, tokens, 16, dtype=dtype, seed=1)
    heads = rows.view(tokens, 5, 16).double()
    turned = torch.cat([-heads[..., 8:], heads[..., :8]], -1)
    right = heads * cosines[:, None].double() + turned * sines[:, None].double()
    right[:, 3:] = heads[:, 3:]
    found = rows.clone()
    compiled.rotate(found, 3, cosines, sines)
    assert _close(found.view(tokens, 5, 16), right, tolerance)


SHAPES = {
    "plain": AttentionShape(0.3, None, None, None),
    "window": AttentionShape(0.3, 6, None, None),
    "softcap": AttentionShape(0.3, None, 2.0, None),
    "sinks": AttentionShape(0.3, None, None, torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "all": AttentionShape(0.3, 9, 3.0, torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


def _attend(
    kernels: Kernels | None,
    spans: Sequence[Span],
    dims: tuple[int, int],
    dtype: torch.dtype,
    shape: AttentionShape,
) -> tuple[torch.Tensor, BlockStore]:
    """One layer over a cache that is full of numbers; returns what came out, and the cache."""
    store = BlockStore(
        [LayerShape(2, *dims)],
        blocks=40,
        block_tokens=4,
        dtype=dtype,
        device=torch.device("cpu"),
        kernels=kernels,
    )
    store.keys[0][1:] = _numbers(40, 2, 4, dims[0], dtype=dtype, seed=1)
    store.values[0][1:] = _numbers(40, 2, 4, dims[1], dtype=dtype, seed=2)
    tokens = spans[-1].row + spans[-1].count
    query = _numbers(tokens, 4, dims[0], dtype=dtype, seed=3).transpose(0, 1)
    key = _numbers(2, tokens, dims[0], dtype=dtype, seed=4)
    value = _numbers(tokens, 2, dims[1], dtype=dtype, seed=5).transpose(0, 1)
    return BlockLayout(store, spans).attend(0, query, key, value, shape), store


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("dims", [(16, 16), (64, 64), (128, 128), (24, 40)])
def test_attention_over_blocks(
    compiled: Kernels,
    dims: tuple[int, int],
    dtype: torch.dtype,
    tolerance: float,
    name: str,
) -> None:
    spans = [
        Span(0, 0, 1, [7]),
        Span(1, 4, 1, [3, 9]),
        Span(2, 30, 1, [11, 2, 30, 31, 5, 6, 40, 1]),
        Span(3, 0, 6, [20, 21]),
        Span(9, 3, 5, [22, 23]),
    ]
    found, ours = _attend(compiled, spans, dims, dtype, SHAPES[name])
    right, plain = _attend(None, spans, dims, dtype, SHAPES[name])
    assert _close(found, right, 2 * tolerance)
    assert torch.equal(ours.keys[0], plain.keys[0])
    assert torch.equal(ours.values[0], plain.values[0])


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32 - 1, 2**53 - 1, 2**64 - 1])
def test_a_seed_draws_what_torch_draws(compiled: Kernels, seed: int) -> None:
    """Token for token, whatever the shape of the distribution is, over many draws."""
    generator, twister = torch.Generator().manual_seed(seed), compiled.twister(seed)
    other = compiled.twister(5)
    for step in range(40):
        size = (5, 311, 312, 313, 1000, 50_000)[step % 6]
        chances = (_numbers(size, dtype=torch.float32, seed=step) * (step % 5)).softmax(-1)
        chances[::7] = 0
        noise = torch.empty_like(chances).exponential_(generator=generator)
        both = compiled.race(torch.stack([chances, chances]), [twister, other])
        assert both[0] == (chances / noise).argmax()


@pytest.mark.parametrize("width", [1, 17, 1024, 1025, 49_152])
def test_the_highest_score_is_where_torch_finds_it(compiled: Kernels, width: int) -> None:
    scores = _numbers(40, width, dtype=torch.float32).round(decimals=1)
    scores[3], scores[4] = -torch.inf, 0
    scores[5, -1], scores[6, width // 2] = torch.inf, torch.nan
    scores[7, 0] = scores[7, -1] = torch.nan
    assert torch.equal(compiled.peaks(scores), scores.argmax(-1))


def test_the_plain_path_answers_the_same(tiny: Bench, tiny_folder: Path) -> None:
    """Where nothing was compiled, the same tokens come, and numbers within float32's rounding."""
    plain = Bench.load(tiny_folder, compiled=False)
    assert plain.loaded.kernels is None
    assert tiny.loaded.kernels is not None
    fields = {"max_tokens": 20, "read_layers": (0, 3), "logprobs": 3, "sampling": GREEDY}
    ours, theirs = (bench.ask("The capital of", **fields) for bench in (tiny, plain))
    assert ours.tokens == theirs.tokens
    assert_rows(ours.rows, theirs.rows, 1e-5)


def test_compiling_happens_once_and_a_worker_only_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.find(tmp_path) is None
    made = compiling.build(tmp_path / "kernels")
    assert [path.name for path in made.parent.iterdir()] == [compiling.file_name()]
    monkeypatch.setattr(subprocess, "run", None)
    assert compiling.build(made.parent) == made
    assert isinstance(kernels.find(made.parent), Kernels)


def test_a_file_for_another_processor_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = compiling.file_name()
    monkeypatch.setattr(compiling, "processor", lambda: "another")
    assert compiling.file_name() != ours


def test_a_broken_file_means_the_plain_path(tmp_path: Path) -> None:
    (tmp_path / compiling.file_name()).write_bytes(b"not a library")
    assert kernels.find(tmp_path) is None


def test_without_a_compiler_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compiling.NotCompiled, match="no C\\+\\+ compiler"):
        compiling.build(tmp_path / "kernels")
    failing = tmp_path / "g++"
    failing.write_text("#!/bin/sh\necho 'it is broken' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(compiling.NotCompiled, match="it is broken"):
        compiling.build(tmp_path / "kernels")
    assert list((tmp_path / "kernels").iterdir()) == []


def test_loaded_models_say_which_path_they_run(tiny: Bench) -> None:
    names = {type(part).__name__ for part in tiny.loaded.model.modules()}
    assert {"RmsNorm", "GatedMlp", "RotaryAttention"} <= names
    assert "LlamaMLP" not in names
    assert replace(tiny.loaded, kernels=None).kernels is None


def _kinds_of_blocks(change: Callable[[torch.nn.Module], None]) -> set[str]:
    """What the blocks of a random Llama are, changed first, once lean parts took their places."""
    attention.register()
    model = LlamaForCausalLM._from_config(
        llama_config(), attn_implementation=attention.IMPLEMENTATION
    ).eval()
    randomize(model, seed=3)
    for block in model.model.layers:
        change(block)
    lean.install(model.requires_grad_(False), house_kernels())
    return {type(block).__name__ for block in model.model.layers}


def test_a_block_of_lean_parts_alone_runs_as_one() -> None:
    if not house_kernels().multiplies(torch.float32):
        pytest.skip("products are torch's on this processor")

    def scaled(block: torch.nn.Module) -> None:
        plain = block.forward
        block.forward = lambda hidden, **named: plain(hidden * 1.5, **named)

    def with_more(block: torch.nn.Module) -> None:
        block.extra = torch.nn.Identity()

    assert _kinds_of_blocks(lambda block: None) == {"DecoderBlock"}
    assert _kinds_of_blocks(scaled) == {"LlamaDecoderLayer"}
    assert _kinds_of_blocks(with_more) == {"LlamaDecoderLayer"}
