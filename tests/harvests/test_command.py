"""`manage.py harvest_file`."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from safetensors.torch import load_file

from inference import harvesting
from inference.harvest.request import default_layers


@pytest.fixture(autouse=True)
def _stay(harvest_catalogue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own process keeps its priority."""
    monkeypatch.setattr(harvesting, "step_back", lambda: None)


def harvest_file(prompts: Path, out: Path, *options: str) -> str:
    output = StringIO()
    call_command("harvest_file", str(prompts), str(out), *options, stdout=output)
    return output.getvalue()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"Paris"\n\n{"prompt": "the house\\u2028"}\n"Größe"', encoding="utf-8")
    return path


def test_a_file_of_prompts_becomes_a_folder(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = harvest_file(prompts, out, "--layers", "3,0", "--shard-size", "2", "--batch-size", "9")
    assert "3 prompts in 2 shards" in said
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["prompts"] == ["Paris", "the house\u2028", "Größe"]
    assert manifest["layer_indices"] == [0, 3]
    assert manifest["batch_size"] == 9
    assert set(load_file(out / "shard_00001.safetensors")) == {"prompt_2", "tokens_2"}
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    with pytest.raises(CommandError, match="exists"):
        harvest_file(prompts, out)


def test_directions_of_a_file_are_projected_onto(prompts: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "probes.npy", np.eye(64)[:5])
    out = tmp_path / "out"
    harvest_file(
        prompts, out, "--project-onto", str(tmp_path / "probes.npy"), "--no-special-tokens"
    )
    rows = load_file(out / "shard_00000.safetensors")
    assert rows["prompt_0"].shape[::2] == (3, 5)
    assert rows["tokens_0"][0] != 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layers", "4"), "has layers 0 to 3: it has no layer 4"),
        (("--layers", "some"), '"all" or Layers as 3,7,11'),
        (("--model", "gpt-2"), "no model 'gpt-2'"),
        (("--shard-size", "0"), "at least 1"),
        (("--project-onto", "nothing.npy"), "not a NumPy file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    prompts: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        harvest_file(prompts, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "Paris\n", '"a"\n5\n', '{"text": "a"}\n'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(CommandError, match=r"prompts\.jsonl"):
        harvest_file(path, tmp_path / "out")


@pytest.mark.row("C-458")
def test_layers_that_are_left_out_lie_at_the_quarters() -> None:
    assert default_layers(32) == (8, 16, 24)
    assert default_layers(126) == (31, 63, 94)
    assert default_layers(60) == (15, 30, 45)
    assert default_layers(30) == (7, 15, 22)
    assert default_layers(1) == (0,)
