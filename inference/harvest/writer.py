"""The thread that writes shards while the next batch runs.

What waits to be written is bounded in bytes: a slow disk or storage holds the forward pass up, and
memory does not grow with the number of Layers, prompts or shards.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from inference.harvest.layout import shard_name
from inference.harvest.plan import Window, shard_prompts
from inference.harvest.request import HarvestRequest
from inference.harvest.shards import ShardFile, ShardLayout


class Sink(Protocol):
    """Where whole files go."""

    @property
    def folder(self) -> Path:
        """An existing folder in which files are made."""

    def keep(self, path: Path) -> None:
        """Take over a whole file of the folder; it may be gone from there afterwards."""


@dataclass(frozen=True)
class LayerRows:
    """What one Layer gave for one batch."""

    batch: Sequence[int]
    """Indexes of the prompts, in the order of the rows."""
    lengths: Sequence[int]
    layer: int
    """Along the Layer axis."""
    rows: Tensor
    """Contiguous `[tokens, width]`, on the CPU."""


class ShardWriter:
    """Writes the rows of windows into shards, and hands whole shards to the sink."""

    def __init__(
        self,
        request: HarvestRequest,
        tokens: Sequence[np.ndarray],
        *,
        width: int,
        sink: Sink,
        queue_bytes: int,
    ) -> None:
        self._request = request
        self._tokens = tokens
        self._lengths = [len(ids) for ids in tokens]
        self._width = width
        self._sink = sink
        self._room = queue_bytes
        self._waiting: deque[LayerRows | Window | None] = deque()
        self._changed = threading.Condition()
        self._bytes = 0
        self._error: BaseException | None = None
        self._open: dict[int, ShardFile] = {}
        self._thread = threading.Thread(target=self._run, name="harvest-writer", daemon=True)
        self._thread.start()
        self.layouts: list[ShardLayout] = []
        """Of the shards that are whole, in order."""
        self.bytes_written = 0
        self.save_s = 0.0
        self.upload_s = 0.0

    def put(self, rows: LayerRows) -> None:
        """Take rows, waiting while too many bytes wait; raises what the thread met."""
        with self._changed:
            while self._waiting and self._bytes > self._room and self._error is None:
                self._changed.wait()
            self._check()
            self._bytes += rows.rows.nbytes
            self._waiting.append(rows)
            self._changed.notify_all()

    def begin(self, window: Window) -> None:
        """Take the rows that follow into the shards of this window; those before are whole then."""
        self._append(window)

    def finish(self) -> None:
        """Wait until every shard is with the sink; raises what the thread met."""
        self._append(None)
        self._thread.join()
        self._check()

    def abandon(self) -> None:
        """End the thread, whatever waits; for a harvest that ends early."""
        with self._changed:
            self._waiting.clear()
            self._error = self._error or RuntimeError("the harvest ended early")
            self._changed.notify_all()
        self._thread.join()

    def _append(self, item: Window | None) -> None:
        with self._changed:
            self._check()
            self._waiting.append(item)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, Window):
                    self._close_shards()
                    self._open_shards(item)
                else:
                    self._write(item)
            self._close_shards()
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            for file in {id(file): file for file in self._open.values()}.values():
                file.close()

    def _next(self) -> LayerRows | Window | None:
        with self._changed:
            while not self._waiting and self._error is None:
                self._changed.wait()
            self._check()
            item = self._waiting.popleft()
            if isinstance(item, LayerRows):
                self._bytes -= item.rows.nbytes
            self._changed.notify_all()
            return item

    def _open_shards(self, window: Window) -> None:
        begun = time.monotonic()
        for shard in window.shards:
            prompts = shard_prompts(shard, self._request.shard_size, len(self._lengths))
            layout = ShardLayout.of(
                prompts,
                self._lengths,
                layers=len(self._request.layers),
                width=self._width,
                contents=self._request.contents,
            )
            path = self._sink.folder / shard_name(shard)
            file = ShardFile(path, layout, self._tokens)
            self._open.update(dict.fromkeys(prompts, file))
        self.save_s += time.monotonic() - begun

    def _write(self, item: LayerRows) -> None:
        begun = time.monotonic()
        first = 0
        for prompt, length in zip(item.batch, item.lengths, strict=True):
            self._open[prompt].put(prompt, item.layer, item.rows[first : first + length])
            first += length
        self.save_s += time.monotonic() - begun

    def _close_shards(self) -> None:
        """Hand the shards of the window over, in order."""
        files = {id(file): file for file in self._open.values()}
        self._open = {}
        for file in files.values():
            file.close()
        for file in files.values():
            begun = time.monotonic()
            self._sink.keep(file.path)
            self.upload_s += time.monotonic() - begun
            self.bytes_written += file.layout.size
            self.layouts.append(file.layout)
