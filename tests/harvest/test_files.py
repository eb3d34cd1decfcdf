"""The files: layout version 2, statistics, projections, the cut, and what a failure leaves."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.harvest.folder import FolderSink
from inference.harvest.plan import SHARDS_IN_WINDOW, windows
from inference.harvest.request import HarvestInvalid, HarvestRequest, Projection
from inference.harvest.run import NotFinite, harvest
from inference.harvest.statistics import Moments
from tests.engine.harness import Bench
from tests.harvest.reading import Harvest, request_of, texts

Run = Callable[..., Harvest]
CPU = torch.device("cpu")


@pytest.mark.row("C-498", "C-501", "C-504", "C-505")
def test_the_manifest_describes_every_file(tiny: Bench, run: Run) -> None:
    prompts = texts(7)
    done = run(tiny.loaded, prompts, shard_size=3, layers=(0, 3), batch_size=8)
    names = {path.name for path in done.folder.iterdir()}
    assert names == {
        "manifest.json", "stats.safetensors",
        "shard_00000.safetensors", "shard_00001.safetensors", "shard_00002.safetensors",
    }  # fmt: skip
    manifest = done.manifest
    assert manifest["run_id"] == "5b6d1d3c-0000-4000-8000-000000000000"
    assert manifest["layout_version"] == 2
    assert (manifest["model_id"], manifest["model_identity"]) == ("tiny", "folder sha256:1")
    assert (manifest["dtype"], manifest["contents"]) == ("bfloat16", "activations")
    assert manifest["add_special_tokens"] is True
    assert manifest["layer_indices"] == [0, 3]
    assert manifest["prompts"] == prompts
    assert manifest["batch_size"] == 8
    assert "final norm" in manifest["residual_stream_convention"]
    assert "torch" in manifest["runtime"]
    assert len(manifest["mean_token_norm"]) == 2
    assert "projection" not in manifest
    assert [shard["file"] for shard in manifest["shards"]] == sorted(names)[1:4]
    total = 0
    for number, shard in enumerate(manifest["shards"]):
        assert shard["prompt_indices"] == list(range(3 * number, min(3 * number + 3, 7)))
        found = done.tensors(shard["file"])
        assert {t["name"]: t["shape"] for t in shard["tensors"]} == {
            name: list(tensor.shape) for name, tensor in found.items()
        }
        for index in shard["prompt_indices"]:
            rows, ids = found[f"prompt_{index}"], found[f"tokens_{index}"]
            assert ids.dtype == torch.int32
            assert ids[0] == 1, "the start token is the first"
            assert rows.shape == (2, len(ids), 64)
            total += len(ids)
    assert done.outcome.tokens == total
    assert done.outcome.n_shards == 3
    assert done.outcome.bytes_written == sum(p.stat().st_size for p in done.folder.iterdir())


@pytest.mark.row("C-461")
def test_start_tokens_are_left_out_or_added_once_more(tiny: Bench, run: Run) -> None:
    bare = run(tiny.loaded, ["<|start|>Paris"], add_special_tokens=False)
    twice = run(tiny.loaded, ["<|start|>Paris"])
    assert bare.prompt(0)[1] == twice.prompt(0)[1][1:]
    assert twice.prompt(0)[1][:2] == [1, 1]
    assert bare.manifest["add_special_tokens"] is False


@pytest.mark.row("C-506")
def test_statistics_leave_the_first_position_of_each_prompt_out(tiny: Bench, run: Run) -> None:
    prompts = texts(30)
    # The axes as directions: the projections are half of the stream, in float32.
    done = run(tiny.loaded, prompts, directions=np.eye(64, dtype=np.float32), batch_tokens=40)
    rows = np.concatenate([done.prompt(i)[0].numpy()[:, 1:] for i in range(30)], axis=1)
    exact = rows.astype(np.float64)
    found = done.statistics
    np.testing.assert_allclose(found["mean"], exact.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["std"], exact.std(1), rtol=1e-5)
    assert found["mean"].dtype == found["std"].dtype == np.float32
    assert found["layer_indices"].tolist() == [0, 1, 2, 3]
    norms = np.linalg.norm(exact, axis=-1).mean(-1)
    np.testing.assert_allclose(done.manifest["mean_token_norm"], norms, rtol=1e-6)
    assert done.manifest["stats_positions"] == rows.shape[1]
    plain = run(tiny.loaded, prompts, batch_tokens=4000)
    np.testing.assert_allclose(plain.statistics["mean"], found["mean"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain.statistics["std"], found["std"], rtol=1e-4)


def test_statistics_are_zeros_where_no_position_counts(tiny: Bench, run: Run) -> None:
    done = run(tiny.loaded, ["a", "b"], add_special_tokens=False)
    assert not done.statistics["mean"].any()
    assert not done.statistics["std"].any()
    assert done.manifest["stats_positions"] == 0
    assert done.manifest["mean_token_norm"] == [0.0] * 4


def test_statistics_keep_small_deviations_of_large_numbers() -> None:
    # Differences of 1e-3 around 20,000, in parts: naive sums in float32 would say 0 or worse.
    rows = np.random.default_rng(0).normal(20_000, 1e-3, (4000, 3))
    moments = Moments(3, CPU)
    for part in np.array_split(rows, 7):
        moments.add(torch.from_numpy(part))
    moments.add(torch.zeros(0, 3))
    np.testing.assert_allclose(moments.mean(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation(), rows.std(0), rtol=1e-6)


@pytest.mark.row("C-504", "C-505", "C-507")
def test_projections_are_onto_unit_directions(tiny: Bench, run: Run) -> None:
    generator = np.random.default_rng(1)
    directions = generator.normal(size=(5, 64)).astype(np.float32)
    directions[0] *= 1e30
    directions[1] *= 1e-30
    prompts = texts(4)
    axes = run(tiny.loaded, prompts, directions=np.eye(64, dtype=np.float32))
    done = run(tiny.loaded, prompts, directions=directions)
    exact = directions.astype(np.float64)
    unit = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    for index in range(4):
        rows, ids = done.prompt(index)
        stream = axes.prompt(index)[0].numpy().astype(np.float64)
        assert rows.dtype == torch.float32
        assert rows.shape == (4, len(ids), 5)
        np.testing.assert_allclose(rows.numpy(), stream @ unit.T, rtol=1e-5, atol=1e-4)
    manifest = done.manifest
    assert (manifest["dtype"], manifest["contents"]) == ("float32", "projections")
    assert manifest["projection"]["directions"] == 5
    assert done.statistics["mean"].shape == (4, 5)
    counted = np.concatenate([done.prompt(i)[0].numpy()[:, 1:] for i in range(4)], axis=1)
    np.testing.assert_allclose(done.statistics["std"], counted.std(1), rtol=1e-4)


@pytest.mark.row("C-503")
def test_a_long_prompt_keeps_its_first_tokens_and_the_manifest_says_so(
    tiny: Bench, run: Run
) -> None:
    prompts = ["Paris", "the house of wood " * 30, "wood"]
    whole = tiny.loaded.tokenizer.encode(prompts[1]).ids
    done = run(tiny.loaded, prompts, max_tokens=20)
    assert len(whole) > 20
    assert done.prompt(1)[1] == whole[:20]
    assert done.manifest["cut_prompts"] == [1]
    kept = done.prompt(1)[0]
    alone = run(tiny.loaded, [tiny.loaded.tokenizer.decode(whole[1:20])])
    assert torch.equal(alone.prompt(0)[0], kept)


def test_a_prompt_without_tokens_has_empty_tensors(tiny: Bench, run: Run) -> None:
    done = run(tiny.loaded, ["", "Paris", ""], add_special_tokens=False)
    assert done.prompt(0)[0].shape == (4, 0, 64)
    assert done.prompt(2)[1] == []
    assert len(done.prompt(1)[1]) > 0
    assert done.outcome.tokens == len(done.prompt(1)[1])


def test_a_queue_of_one_byte_gives_the_same_files(tiny: Bench, run: Run) -> None:
    prompts = texts(20)
    wide, narrow = run(tiny.loaded, prompts), run(tiny.loaded, prompts, queue_bytes=1)
    for number in range(wide.outcome.n_shards):
        left, right = wide.shard(number), narrow.shard(number)
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_progress_is_told_after_each_batch(tiny: Bench, run: Run) -> None:
    done = run(tiny.loaded, texts(20), batch_tokens=30, shard_size=5)
    read = [report.tokens_read for report in done.reports]
    assert read == sorted(set(read))
    assert len(read) > 5
    assert read[-1] == done.reports[0].tokens_total == done.outcome.tokens
    assert done.reports[0].shards_total == 4


def test_numbers_that_are_not_finite_fail_the_harvest(tiny_folder: Path, run: Run) -> None:
    loaded = Bench.load(tiny_folder).loaded
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[loaded.tokenizer.encode("wood").ids[-1]] = (
            torch.inf
        )
    with pytest.raises(NotFinite, match="Layer 0 has numbers that are not finite"):
        run(loaded, ["Paris", "wood"])


def test_a_sink_that_fails_ends_the_harvest(tiny: Bench, tmp_path: Path) -> None:
    class Full(FolderSink):
        def keep(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    sink = Full(tmp_path / "out")
    sink.prepare()
    with pytest.raises(OSError, match="No space left"):
        harvest(
            tiny.loaded,
            request_of(tiny.loaded, texts(40), shard_size=1),
            sink,
            check=lambda: None,
            report=lambda progress: None,
        )
    assert not (tmp_path / "out").exists()


def test_files_take_their_place_at_once_and_replace_nothing(tiny: Bench, run: Run) -> None:
    done = run(tiny.loaded, ["Paris"])
    with pytest.raises(FileExistsError):
        FolderSink(done.folder).prepare()
    leftover = FolderSink(done.folder.with_name("other"))
    leftover.folder.mkdir()
    (leftover.folder / "shard_00009.safetensors").write_bytes(b"of a run that was killed")
    leftover.prepare()
    assert os.listdir(leftover.folder) == []


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (np.zeros((0, 4)), "1 to 64 directions"),
        (np.ones(4), "needs the shape"),
        (np.ones((65, 4)), "1 to 64 directions"),
        (np.array([[1.0, np.inf]]), "has numbers that are not finite."),
        (np.array([[1.0, 2.0], [0.0, 0.0]]), "has a direction whose length is 0."),
    ],
)
def test_bad_directions_are_refused(directions: np.ndarray, message: str) -> None:
    with pytest.raises(HarvestInvalid, match=message):
        Projection.check(directions.astype(np.float32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": (0, 4)}, "tiny has layers 0 to 3: it has no layer 4."),
        ({"layers": (1, 0)}, "ascending"),
        ({"layers": ()}, "at least one"),
        ({"directions": np.ones((1, 63), dtype=np.float32)}, "63 numbers, but the hidden size"),
        ({"shard_size": 0}, "at least 1"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    tiny: Bench, fields: dict[str, object], message: str
) -> None:
    request: HarvestRequest = request_of(tiny.loaded, ["Paris"], **fields)
    with pytest.raises(HarvestInvalid, match=message):
        request.check(n_layers=4, hidden=64)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=400),
    shard_size=st.integers(1, 50),
    batch_tokens=st.integers(1, 100),
)
def test_every_prompt_runs_once_in_its_own_window(
    lengths: list[int], shard_size: int, batch_tokens: int
) -> None:
    found = list(windows(lengths, shard_size, batch_tokens))
    assert [i for window in found for i in window.prompts] == list(range(len(lengths)))
    assert [s for window in found for s in window.shards] == list(
        range(-(-len(lengths) // shard_size))
    )
    for window in found:
        assert len(window.shards) <= SHARDS_IN_WINDOW
        assert window.prompts[0] == window.shards[0] * shard_size
        run = [i for batch in window.batches for i in batch]
        assert sorted(run) == [i for i in window.prompts if lengths[i]]
        for batch in window.batches:
            sizes = [lengths[i] for i in batch]
            assert sizes == sorted(sizes)
            assert sum(sizes) <= batch_tokens or len(batch) == 1


def test_the_manifest_is_plain_json_of_any_text(tiny: Bench, run: Run) -> None:
    prompts = ['"quotes" and \\', "line\nbreak\t", "é\u2028🌶"]
    done = run(tiny.loaded, prompts)
    assert json.loads((done.folder / "manifest.json").read_bytes())["prompts"] == prompts
