"""Rows are those of a plain transformers forward, for every architecture, at their own address."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.engine.messages import Sampling
from inference.harvest import packed
from tests.engine.harness import Bench, assert_rows, house_kernels, reference
from tests.engine.test_architectures import MODELS, _make
from tests.engine.test_canary import canary
from tests.harvest.reading import Harvest, texts

__all__ = ["canary"]

Run = Callable[..., Harvest]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make(tmp_path_factory.mktemp(request.param), MODELS[request.param]())


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_rows_equal_plain_transformers(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    # The unit directions are the axes, so that the projections are the rows in float32.
    monkeypatch.setattr(packed, "QUERIES_AT_ONCE", 7)
    bench = Bench.load(folder, max_model_len=80, compiled=compiled)
    twin = reference(bench, folder)
    prompts = [*texts(9, most=20), "Paris", "wood", "the house of wood " * 12]
    done = run(bench.loaded, prompts, shard_size=4, directions=np.eye(32, dtype=np.float32))
    for index in range(len(prompts)):
        rows, ids = done.prompt(index)
        with torch.inference_mode():
            right = twin.forward(ids, ())[1].float().numpy()
        assert_rows(rows.numpy(), right)


def test_bfloat16_is_as_near_to_float32_as_transformers(folder: Path, run: Run) -> None:
    prompt = ["Once upon a time there was a little house at the edge of the wood."]
    axes = np.eye(32, dtype=np.float32)
    right = run(Bench.load(folder, max_model_len=80).loaded, prompt, directions=axes)
    rounded = Bench.load(folder, dtype="bfloat16", max_model_len=80)
    ours = run(rounded.loaded, prompt, directions=axes)
    rows, ids = right.prompt(0)
    with torch.inference_mode():
        theirs = reference(rounded, folder).forward(ids, ())[1].float()

    def error(found: torch.Tensor) -> float:
        return float(((found - rows).norm(dim=-1) / rows.norm(dim=-1)).median())

    assert error(ours.prompt(0)[0]) <= 1.5 * error(theirs) + 1e-6


@pytest.mark.row("C-500", "C-508")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_equal_a_completions_read_up_to_bfloat16(
    tiny_folder: Path, run: Run, dtype: str
) -> None:
    bench = Bench.load(tiny_folder, dtype=dtype)
    prompts = texts(5)
    done = run(bench.loaded, prompts, layers=(1, 3))
    for index, prompt in enumerate(prompts):
        rows, _ = done.prompt(index)
        assert rows.dtype == torch.bfloat16
        read = bench.ask(prompt, max_tokens=1, read_layers=(1, 3)).rows
        if house_kernels().multiplies(bench.loaded.stream.dtype):
            assert torch.equal(rows, torch.tensor(read).bfloat16())
        gaps = np.linalg.norm(rows.float().numpy() - read, axis=-1)
        assert (gaps / np.linalg.norm(read, axis=-1)).max() < 2**-7


@pytest.mark.row("C-499", "C-502")
def test_every_row_proves_its_address(canary: Bench, run: Run) -> None:
    # Column 0 is the Layer + 1, column 1 the token, column 2 the mean of the tokens so far.
    prompts = texts(41, most=15)
    done = run(canary.loaded, prompts, layers=(0, 2, 3), shard_size=3, batch_tokens=50)
    assert done.outcome.n_shards == 14
    for shard in range(14):
        tensors = done.shard(shard)
        indexes = range(3 * shard, min(3 * shard + 3, 41))
        assert set(tensors) == {f"{kind}_{i}" for kind in ("prompt", "tokens") for i in indexes}
        for index in indexes:
            ids = canary.loaded.tokenizer.encode(prompts[index]).ids
            assert tensors[f"tokens_{index}"].tolist() == ids
            rows = tensors[f"prompt_{index}"].float().numpy()
            means = np.cumsum(ids) / np.arange(1, len(ids) + 1)
            for row, layer in zip(rows, (0, 2, 3), strict=True):
                assert (row[:, 0] == layer + 1).all()
                np.testing.assert_allclose(row[:, 1], ids, rtol=2**-8)
                np.testing.assert_allclose(row[:, 2], means, rtol=2**-8)


def test_one_layer_is_read_without_running_those_above(tiny: Bench, run: Run) -> None:
    seen: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda module, args, number=number: seen.append(number))
        for number, block in enumerate(tiny.loaded.blocks)
    ]
    run(tiny.loaded, texts(2), layers=(1,))
    for handle in handles:
        handle.remove()
    assert set(seen) == {0, 1}


def test_a_harvest_that_stops_leaves_no_hook_and_no_folder(
    tiny: Bench, run: Run, tmp_path: Path
) -> None:
    class Cancelled(Exception):
        pass

    looks = iter(range(1000))

    def check() -> None:
        if next(looks) == 7:
            raise Cancelled

    with pytest.raises(Cancelled):
        run(tiny.loaded, texts(40), check=check)
    assert not any(block._forward_hooks for block in tiny.loaded.blocks)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    assert not list(tmp_path.glob("*/manifest.json"))
    again = tiny.ask("Paris", max_tokens=4, sampling=Sampling(seed=1))
    assert len(again.tokens) == 4
