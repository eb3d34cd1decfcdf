"""What stands beside the shards: the manifest and the statistics (layout version 2)."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from inference.harvest.layout import LAYOUT_VERSION, shard_name
from inference.harvest.request import HarvestRequest
from inference.harvest.shards import TYPES, ShardLayout
from inference.harvest.statistics import LayerStatistics

CONVENTION = (
    "Layer k is the output of decoder block k, counted from 0, after its residual connection and"
    " before the final norm; the last Layer too. It is hidden_states[k + 1] of transformers, except"
    " for the last Layer, which transformers gives after the final norm."
)
DTYPES = {"BF16": "bfloat16", "F32": "float32"}


def write_statistics(
    path: Path, layers: Sequence[int], statistics: Sequence[LayerStatistics]
) -> None:
    """Write `mean` and `std`, float32 `[layers, width]`, and `layer_indices` (C-506)."""
    mean = np.stack([layer.moments.mean() for layer in statistics])
    deviation = np.stack([layer.moments.deviation() for layer in statistics])
    tensors: dict[str, np.ndarray] = {
        "mean": mean.astype(np.float32),
        "std": deviation.astype(np.float32),
        "layer_indices": np.array(layers, dtype=np.int64),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def write_manifest(
    path: Path,
    request: HarvestRequest,
    *,
    runtime: str,
    cut: Sequence[int],
    layouts: Sequence[ShardLayout],
    statistics: Sequence[LayerStatistics],
) -> None:
    """Write the manifest (C-504); it is the last file of a harvest.

    `cut` has the indexes of the prompts that were longer than `max_tokens`.
    """
    kind, _ = TYPES[request.contents]
    manifest: dict[str, object] = {
        "run_id": request.run_id,
        "layout_version": LAYOUT_VERSION,
        "model_id": request.model_id,
        "model_identity": request.model_identity,
        "runtime": runtime,
        "dtype": DTYPES[kind],
        "contents": request.contents,
        "add_special_tokens": request.add_special_tokens,
        "batch_size": request.batch_size,
        "layer_indices": request.layers,
        "residual_stream_convention": CONVENTION,
        "max_tokens": request.max_tokens,
        "cut_prompts": cut,
        "prompts": list(request.prompts),
        "shards": [
            {
                "file": shard_name(number),
                "prompt_indices": list(layout.prompts),
                "tensors": [
                    {"name": place.name, "shape": place.shape}
                    for index in layout.prompts
                    for place in (layout.rows[index], layout.tokens[index])
                ],
            }
            for number, layout in enumerate(layouts)
        ],
        "stats_positions": statistics[0].moments.count,
        "mean_token_norm": [layer.mean_norm for layer in statistics],
    }
    if request.projection is not None:
        given = request.projection.directions.astype(np.float64)
        manifest["projection"] = {
            "directions": len(given),
            "hidden_size": given.shape[1],
            "scaled_to_length": 1,
            "given_lengths": np.linalg.norm(given, axis=1).tolist(),
        }
    path.write_text(json.dumps(manifest, ensure_ascii=False, allow_nan=False, indent=1))
