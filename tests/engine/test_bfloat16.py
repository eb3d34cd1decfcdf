"""In bfloat16 the engine is no further from float32 than transformers' own bfloat16 is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.engine.limits import EngineLimits
from inference.engine.reference import Reference
from tests.engine.harness import Bench

TEXTS = (
    "The capital of France is Paris, and the capital of Japan is",
    "Once upon a time there was a little house at the edge of the wood, and in it",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
)


def errors(rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Median, 99th percentile and maximum of each Layer's relative row errors: `[layers, 3]`."""
    gaps = np.linalg.norm(rows - right, axis=-1) / np.linalg.norm(right, axis=-1)
    return np.stack([np.median(gaps, 1), np.percentile(gaps, 99, axis=1), gaps.max(1)], 1)


def compare(exact: Bench, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The errors of the engine and of transformers, both in bfloat16."""
    limits = EngineLimits(cache_bytes=64 << 20, max_sequences=8)
    ours = Bench.load(folder, dtype="bfloat16", max_model_len=200, limits=limits)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    plain = Reference(model, model.model.layers, ours.core._intake._alphabet, ())
    layers = tuple(range(ours.loaded.stream.layers))
    fields = {"max_tokens": 1, "read_layers": layers}
    right, found, theirs = [], [], []
    for text in TEXTS:
        right.append(exact.ask(text, **fields).rows)
        found.append(ours.ask(text, **fields).rows)
        with torch.inference_mode():
            theirs.append(plain.forward(exact.encode(text), ())[1].float().numpy())
    truth = np.concatenate(right, 1)
    return errors(np.concatenate(found, 1), truth), errors(np.concatenate(theirs, 1), truth)


@pytest.mark.case("A04")
def test_no_layer_is_further_from_float32_than_transformers(
    smollm2: Bench, smollm2_folder: Path
) -> None:
    ours, theirs = compare(smollm2, smollm2_folder)
    # The rounding errors of two orders of additions are two draws from one distribution.
    assert (ours[:, 0] <= 1.25 * theirs[:, 0]).all()
    assert (ours[:, 1:] <= 1.6 * theirs[:, 1:]).all()
    assert ours[:, 0].mean() <= 1.1 * theirs[:, 0].mean()
