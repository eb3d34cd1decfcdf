"""The recorded answers, and their requests as the engine's own."""

import base64
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from inference.engine.messages import EngineRequest, Sampling, Steering, Stopping
from tests.engine.harness import Bench

FOLDER = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Recording:
    """One request of the peer and its answer."""

    name: str
    status: int
    request: dict[str, Any]
    answer: dict[str, Any]


@cache
def uses() -> dict[str, dict[str, str]]:
    """How each recording is used, by name."""
    return tomllib.loads((FOLDER / "uses.toml").read_text())


@cache
def recordings() -> dict[str, Recording]:
    """All recordings that are compared at the engine's own level."""
    found = {}
    for file in ("answers.jsonl", "lens.jsonl"):
        for line in (FOLDER / file).read_text().splitlines():
            entry = json.loads(line)
            name, status, request = entry.pop("name"), entry.pop("status"), entry.pop("request")
            found[name] = Recording(name, status, request, entry)
    return found


@cache
def rows() -> dict[str, np.ndarray]:
    """Residual rows by recording."""
    found: dict[str, np.ndarray] = {}
    for file in ("rows_1.npz", "rows_2.npz"):
        with np.load(FOLDER / file) as stored:
            found |= {name: stored[name] for name in stored.files}
    return found


def engine_request(bench: Bench, recording: Recording) -> EngineRequest:
    """The recorded request in the engine's terms."""
    asked = recording.request
    prompts = asked["prompt"]
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    keep = asked.get("truncate_prompt_tokens", 0)
    ids = [bench.encode(p) if isinstance(p, str) else tuple(p) for p in prompts]
    stop = asked.get("stop") or ()
    lens = asked.get("vllm_xargs", {})
    read = lens.get("output_residual_stream", ())
    layers = bench.loaded.stream.layers
    return bench.request(
        *(prompt[-keep:] if keep else prompt for prompt in ids),
        request_id=recording.name,
        cache_scope=recording.name,
        max_tokens=int(asked.get("max_tokens", 16)),
        n=asked.get("n", 1),
        sampling=Sampling(
            **{
                name: asked[name]
                for name in (
                    "temperature",
                    "top_p",
                    "top_k",
                    "min_p",
                    "presence_penalty",
                    "frequency_penalty",
                    "repetition_penalty",
                    "seed",
                )
                if name in asked
            }
        ),
        stopping=Stopping(
            texts=(stop,) if isinstance(stop, str) else tuple(stop),
            token_ids=tuple(asked.get("stop_token_ids", ())),
            include_text=asked.get("include_stop_str_in_output", False),
            min_tokens=asked.get("min_tokens", 0),
            ignore_end=asked.get("ignore_eos", False),
        ),
        echo=asked.get("echo", False),
        logprobs=int(asked["logprobs"]) if "logprobs" in asked else None,
        prompt_logprobs=asked.get("prompt_logprobs"),
        priority=int(asked.get("priority", 0)),
        read_layers=tuple(range(layers)) if read in (True, "true") else tuple(sorted(set(read))),
        steering=tuple(_steering(v) for v in json.loads(lens.get("apply_steering_vectors", "[]"))),
    )


def _steering(vector: dict[str, Any]) -> Steering:
    encoded = vector["activations"]
    data = base64.b64decode(encoded["data"])
    if encoded.get("compression") == "zstd":
        data = zstandard.ZstdDecompressor().decompress(data)
    positions = vector.get("position_indices")
    spread = len(encoded["shape"]) == 3
    return Steering(
        layers=tuple(vector["layer_indices"]),
        data=data,
        dtype="float32",
        shape=tuple(encoded["shape"]),
        scale=vector.get("scale", 1.0),
        norm_match=vector.get("norm_match", False),
        # The peer ignores positions where each Layer has one vector; the engine does not.
        positions=tuple(positions) if spread and positions is not None else None,
    )
