"""A harvest beside a plain transformers forward, in one run: a part of script/bench harvest.

Both read the same prompts of mixed length through all Layers of the default model, in float32 and
bfloat16, taking turns. The plain forward pads its batches, keeps nothing and has no LM head; of its
batch sizes the best one counts. The harvest writes its files. The ratios are of wall time and of
the process's CPU time, since neighbours on the machine disturb the first.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from inference.catalogue import load_catalogue
from inference.engine import compiling, kernels, loading
from inference.engine.loading import LoadedModel
from inference.harvest.folder import FolderSink
from inference.harvest.request import HarvestRequest, Projection
from inference.harvest.run import HarvestLimits, harvest
from inference.preparation import prepare

ROOT = Path(__file__).resolve().parents[3]
MODELS = {
    "float32": "smollm2-135m-instruct-q4",
    "bfloat16": "smollm2-135m-instruct-q4-bf16",
}


@dataclass
class Rival:
    """One way to read the prompts, and what its rounds took."""

    name: str
    run: Callable[[], None]
    tokens: int
    wall: list[float]
    cpu: list[float]

    def go(self) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        self.run()
        self.wall.append(time.monotonic() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def speed(self) -> float:
        return self.tokens / statistics.median(self.wall)

    @property
    def cpu_speed(self) -> float:
        return self.tokens / statistics.median(self.cpu)


def prompts_of(loaded: LoadedModel, count: int, mixed: bool) -> list[str]:
    """Texts of words: of 20 to 250 tokens, or of about 128."""
    generator = np.random.default_rng(7)
    words = ["river", "stone", "seven", "of", "the", "light", "a", "under", "and", "slowly"]
    lengths = generator.integers(20, 250, count) if mixed else np.full(count, 128)
    return [" ".join(generator.choice(words, length)) for length in lengths]


def plain(model: torch.nn.Module, ids: list[list[int]], batch: int) -> Callable[[], None]:
    """transformers' own forward of the decoder, padded on the right, sorted by length."""
    ordered = sorted(ids, key=len)

    @torch.inference_mode()
    def run() -> None:
        for start in range(0, len(ordered), batch):
            some = ordered[start : start + batch]
            width = max(map(len, some))
            tokens = torch.tensor([one + [0] * (width - len(one)) for one in some])
            mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in some])
            model(input_ids=tokens, attention_mask=mask, use_cache=False)

    return run


def harvesting(
    loaded: LoadedModel, texts: list[str], folder: Path, batch_tokens: int, **fields: object
) -> Callable[[], None]:
    """A whole harvest, from texts to files."""
    request = HarvestRequest(
        run_id="bench",
        model_id="bench",
        model_identity="bench",
        prompts=texts,
        max_tokens=8191,
        **{"layers": tuple(range(loaded.stream.layers)), **fields},
    )

    def run() -> None:
        sink = FolderSink(folder / "out")
        sink.prepare()
        outcome = harvest(
            loaded,
            request,
            sink,
            check=lambda: None,
            report=lambda progress: None,
            limits=HarvestLimits(batch_tokens=batch_tokens),
        )
        sink.commit()
        run.outcome = outcome
        shutil.rmtree(sink.target)

    return run


def compare(
    dtype: str, *, mixed: bool, count: int, rounds: int, batches: list[int], sizes: list[int]
) -> None:
    catalogue = load_catalogue(ROOT / "deploy" / "catalogue.toml")
    models = Path(os.environ.get("MODELS_DIR", ROOT / "var" / "models"))
    folder = prepare(catalogue.entry(MODELS[dtype]), models, lambda progress: None).folder
    loaded = loading.load(
        folder,
        dtype=dtype,
        device="cpu",
        max_model_len=8192,
        report=lambda stage: None,
        kernels=kernels.find(folder.parent / compiling.FOLDER),
    )
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    texts = prompts_of(loaded, count, mixed)
    ids = [one.ids for one in loaded.tokenizer.encode_batch(texts)]
    tokens = sum(map(len, ids))
    directions = np.random.default_rng(1).normal(size=(64, loaded.stream.hidden))
    projection = Projection.check(directions.astype(np.float32))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        rivals = (
            [
                Rival(
                    f"plain forward, batch {size}",
                    plain(whole.base_model, ids, size),
                    tokens,
                    [],
                    [],
                )
                for size in sizes
            ]
            + [
                Rival(
                    f"harvest, {size} tokens",
                    harvesting(loaded, texts, place, size),
                    tokens,
                    [],
                    [],
                )
                for size in batches
            ]
            + [
                Rival(
                    "harvest, 64 directions",
                    harvesting(loaded, texts, place, batches[0], projection=projection),
                    tokens,
                    [],
                    [],
                ),
                Rival(
                    "harvest, Layers 7, 15, 22",
                    harvesting(loaded, texts, place, batches[0], layers=(7, 15, 22)),
                    tokens,
                    [],
                    [],
                ),
            ]
        )
        for _ in range(rounds):
            for rival in rivals:
                rival.go()
    best = max((r for r in rivals if r.name.startswith("plain")), key=lambda r: r.speed)
    best_cpu = max((r for r in rivals if r.name.startswith("plain")), key=lambda r: r.cpu_speed)
    print(f"\n{dtype}, {count} prompts of {'20 to 250' if mixed else '128'} words, {tokens} tokens")
    for rival in rivals:
        print(
            f"  {rival.name:28} {rival.speed:7.0f} tokens/s  {rival.speed / best.speed:5.2f}x"
            f"   CPU {rival.cpu_speed:7.0f}  {rival.cpu_speed / best_cpu.cpu_speed:5.2f}x"
        )
    print(rivals[len(sizes)].run.outcome)
