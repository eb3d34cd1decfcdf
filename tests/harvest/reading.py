"""Runs harvests and reads their files as a researcher would."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from inference.engine.loading import LoadedModel
from inference.harvest.folder import FolderSink
from inference.harvest.outcome import Outcome, Progress
from inference.harvest.request import HarvestRequest, Projection
from inference.harvest.run import HarvestLimits, harvest


@dataclass(frozen=True)
class Harvest:
    """The files of a harvest."""

    folder: Path
    outcome: Outcome
    reports: list[Progress]

    @property
    def manifest(self) -> dict:
        return json.loads((self.folder / "manifest.json").read_text())

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        with safe_open(self.folder / name, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    @property
    def statistics(self) -> dict[str, np.ndarray]:
        return {key: value.numpy() for key, value in self.tensors("stats.safetensors").items()}

    def shard(self, number: int) -> dict[str, torch.Tensor]:
        return self.tensors(f"shard_{number:05d}.safetensors")

    def prompt(self, index: int) -> tuple[torch.Tensor, list[int]]:
        """The rows and ids of a prompt, found through the manifest."""
        for shard in self.manifest["shards"]:
            if index in shard["prompt_indices"]:
                found = self.tensors(shard["file"])
                return found[f"prompt_{index}"], found[f"tokens_{index}"].tolist()
        raise AssertionError(f"no shard has prompt {index}")


def request_of(loaded: LoadedModel, prompts: list[str], **fields: object) -> HarvestRequest:
    """A harvest of every Layer, unless told otherwise; directions are float32 rows."""
    directions = fields.pop("directions", None)
    settings: dict[str, object] = {
        "run_id": "5b6d1d3c-0000-4000-8000-000000000000",
        "model_id": "tiny",
        "model_identity": "folder sha256:1",
        "layers": tuple(range(loaded.stream.layers)),
        "max_tokens": loaded.max_model_len - 1,
        "projection": None if directions is None else Projection.check(np.asarray(directions)),
    }
    return HarvestRequest(prompts=prompts, **(settings | fields))


def harvest_into(
    folder: Path,
    loaded: LoadedModel,
    prompts: list[str],
    *,
    batch_tokens: int = 64,
    queue_bytes: int = 1 << 20,
    check=lambda: None,
    **fields: object,
) -> Harvest:
    sink = FolderSink(folder)
    sink.prepare()
    reports: list[Progress] = []
    outcome = harvest(
        loaded,
        request_of(loaded, prompts, **fields),
        sink,
        check=check,
        report=reports.append,
        limits=HarvestLimits(batch_tokens=batch_tokens, queue_bytes=queue_bytes),
    )
    sink.commit()
    return Harvest(folder, outcome, reports)


def texts(count: int, seed: int = 0, most: int = 12) -> list[str]:
    """Texts of 1 to `most` words."""
    generator = np.random.default_rng(seed)
    words = ["Paris", "house", "東京", "the", "of", "🌶", "print", "was", "wood", "42"]
    return [
        " ".join(generator.choice(words, int(generator.integers(1, most + 1))))
        for _ in range(count)
    ]
