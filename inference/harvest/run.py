"""A harvest from its request to its files."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference.engine.loading import LoadedModel
from inference.harvest.forward import Forward
from inference.harvest.layout import MANIFEST, STATISTICS
from inference.harvest.manifest import write_manifest, write_statistics
from inference.harvest.outcome import Outcome, Progress
from inference.harvest.plan import windows
from inference.harvest.request import HarvestRequest
from inference.harvest.statistics import LayerStatistics
from inference.harvest.tokens import EncodedPrompts, encode
from inference.harvest.writer import LayerRows, ShardWriter, Sink


class NotFinite(ArithmeticError):
    """The model gave numbers that are not finite; the message names Layer and prompts."""


@dataclass(frozen=True, kw_only=True)
class HarvestLimits:
    """What a harvest may use."""

    batch_tokens: int = 1024
    """Tokens of one forward pass; a longer prompt is a pass of its own."""
    queue_bytes: int = 256 << 20
    """Bytes of rows that may wait for the disk."""


def harvest(
    loaded: LoadedModel,
    request: HarvestRequest,
    sink: Sink,
    *,
    check: Callable[[], None],
    report: Callable[[Progress], None],
    limits: HarvestLimits = HarvestLimits(),
) -> Outcome:
    """Read the prompts and give the files to the sink: shards in order, statistics, manifest last.

    `check` is called before every attention layer and between batches; what it raises ends the
    harvest at once, without a manifest. `report` is called after each batch.

    Raises HarvestInvalid for a request that does not fit the model, NotFinite for a model that
    gives no numbers, and OSError for a disk or a storage that fails.
    """
    request.check(n_layers=loaded.stream.layers, hidden=loaded.stream.hidden)
    prompts = encode(
        loaded.tokenizer,
        request.prompts,
        add_special_tokens=request.add_special_tokens,
        max_tokens=request.max_tokens,
        check=check,
    )
    reading = _Reading(loaded, request, prompts, sink, limits)
    try:
        forward_s = reading.run(check, report)
        reading.writer.finish()
    except BaseException:
        reading.writer.abandon()
        raise
    return _complete(loaded, request, prompts, reading, sink, forward_s)


def _complete(
    loaded: LoadedModel,
    request: HarvestRequest,
    prompts: EncodedPrompts,
    reading: "_Reading",
    sink: Sink,
    forward_s: float,
) -> Outcome:
    """Write what stands beside the shards."""
    begun = time.monotonic()
    statistics, manifest = sink.folder / STATISTICS, sink.folder / MANIFEST
    write_statistics(statistics, request.layers, reading.statistics)
    write_manifest(
        manifest,
        request,
        runtime=runtime_of(loaded),
        cut=prompts.cut,
        layouts=reading.writer.layouts,
        statistics=reading.statistics,
    )
    written = reading.writer.bytes_written + sum(_size(path) for path in (statistics, manifest))
    saved = time.monotonic()
    sink.keep(statistics)
    sink.keep(manifest)
    return Outcome(
        tokens=prompts.tokens,
        n_shards=len(reading.writer.layouts),
        bytes_written=written,
        stats_positions=reading.statistics[0].moments.count,
        forward_s=forward_s,
        save_s=reading.writer.save_s + saved - begun,
        upload_s=reading.writer.upload_s + time.monotonic() - saved,
    )


def _size(path: Path) -> int:
    return path.stat().st_size


def runtime_of(loaded: LoadedModel) -> str:
    """Return in one line what computed the numbers."""
    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    dtype = str(loaded.stream.dtype).removeprefix("torch.")
    return f"{dtype} on {loaded.stream.device.type}, {parts}, Python {platform.python_version()}"


class _Reading:
    """The pass over all prompts."""

    def __init__(
        self,
        loaded: LoadedModel,
        request: HarvestRequest,
        prompts: EncodedPrompts,
        sink: Sink,
        limits: HarvestLimits,
    ) -> None:
        device = loaded.stream.device
        self._loaded = loaded
        self._request = request
        self._prompts = prompts
        self._limits = limits
        self._places = {layer: place for place, layer in enumerate(request.layers)}
        self._directions: Tensor | None = None
        width = loaded.stream.hidden
        if request.projection is not None:
            unit = request.projection.unit()
            self._directions = torch.from_numpy(unit.T.copy()).to(device)
            width = len(unit)
        self.statistics = [LayerStatistics(width, device) for _ in request.layers]
        self.writer = ShardWriter(
            request, prompts.ids, width=width, sink=sink, queue_bytes=limits.queue_bytes
        )

    def run(self, check: Callable[[], None], report: Callable[[Progress], None]) -> float:
        """Run every batch; returns the seconds of the forward passes."""
        forward = Forward(self._loaded, self._request.layers, check)
        lengths = [len(ids) for ids in self._prompts.ids]
        total, read, seconds = self._prompts.tokens, 0, 0.0
        shards = -(-len(lengths) // self._request.shard_size)
        for window in windows(lengths, self._request.shard_size, self._limits.batch_tokens):
            self.writer.begin(window)
            for batch in window.batches:
                check()
                begun = time.monotonic()
                taken = _Batch.of(batch, lengths, self._loaded.stream.device)
                forward.run(
                    [self._prompts.ids[index] for index in batch], partial(self._take, taken)
                )
                seconds += time.monotonic() - begun
                read += sum(taken.lengths)
                report(Progress(read, total, len(self.writer.layouts), shards))
        return seconds

    def _take(self, batch: "_Batch", layer: int, rows: Tensor) -> None:
        """Keep what the files hold of one Layer, and count it."""
        if self._directions is None:
            contents, kept = rows, rows.to(torch.bfloat16, copy=True)
        else:
            contents = kept = rows.float() @ self._directions
        place = self._places[layer]
        if not self.statistics[place].add(rows, contents, batch.counted):
            raise NotFinite(
                f"Layer {layer} has numbers that are not finite for some of the prompts"
                f" {sorted(batch.prompts)}."
            )
        self.writer.put(LayerRows(batch.prompts, batch.lengths, place, kept.cpu()))


@dataclass(frozen=True)
class _Batch:
    """Prompts that run together."""

    prompts: Sequence[int]
    lengths: Sequence[int]
    counted: Tensor
    """int64: the rows that the statistics count, all but the first of each prompt."""

    @classmethod
    def of(cls, prompts: Sequence[int], lengths: Sequence[int], device: torch.device) -> "_Batch":
        """Find the rows that count."""
        own = np.array([lengths[index] for index in prompts])
        counted = np.delete(np.arange(own.sum()), np.cumsum(own) - own)
        return cls(prompts, own.tolist(), torch.from_numpy(counted).to(device))
