"""Reads of the residual stream and vectors added to it, at the output of decoder blocks.

Position `p` of Layer `i` is the output of block `i` for the token at position `p`, before the
final norm (C-249). Vectors are added before the row is read (C-286). Interventions belong to a
request: a hook stands on a block for one step, and only when a request of that step needs it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from inference.engine.messages import Residuals, Steering

NORM_FLOOR = 1e-6
"""Added to a vector's norm before the stream's norm is divided by it."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class InterventionError(ValueError):
    """An intervention that cannot be applied. The message says why, `param` which field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Stream:
    """The residual stream of a model: how many Layers, how wide, of what kind."""

    layers: int
    hidden: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Steer:
    """Vectors for one Layer."""

    layer: int
    vectors: Tensor
    """float32 `[1, hidden]`, or one row for each of `positions`."""
    added: Tensor
    """`scale * vectors` in the stream's dtype: what is added without `norm_match`."""
    scale: float
    norm_match: bool
    positions: np.ndarray | None
    """int64; None steers every position with the one vector."""

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, Tensor, Tensor]:
        """Return which positions of `start..stop-1` are steered, and `vectors`, `added` of each."""
        if self.positions is None:
            places = np.arange(start, stop)
        else:
            chosen = np.flatnonzero((self.positions >= start) & (self.positions < stop))
            places = self.positions[chosen]
            if len(self.vectors) > 1:
                index = torch.from_numpy(chosen).to(self.vectors.device)
                return places, self.vectors[index], self.added[index]
        return places, self.vectors.expand(len(places), -1), self.added.expand(len(places), -1)


@dataclass(frozen=True)
class SteeringPlan:
    """All vectors of a request, checked against the model."""

    digest: str = ""
    """Empty without vectors; equal digests steer alike."""
    steers: tuple[Steer, ...] = ()

    @classmethod
    def check(cls, vectors: Sequence[Steering], stream: Stream, reach: int) -> "SteeringPlan":
        """Read the vectors of a request whose passes reach position `reach` at most.

        Raises InterventionError for a Layer or a width that the model does not have, data that
        does not fill its shape, numbers that are not finite, and positions out of reach.
        """
        if not vectors:
            return cls()
        digest = hashlib.sha256()
        steers: list[Steer] = []
        for vector in vectors:
            steers.extend(_read_vector(vector, stream, reach))
            described = repr(
                (
                    vector.layers,
                    vector.dtype,
                    vector.shape,
                    vector.scale,
                    vector.norm_match,
                    vector.positions,
                )
            )
            digest.update(described.encode())
            digest.update(vector.data)
        return cls(digest.hexdigest(), tuple(steers))


def check_layers(layers: Sequence[int], stream: Stream) -> None:
    """Raise InterventionError for a Layer to read that the model does not have (C-251)."""
    for layer in layers:
        if not 0 <= layer < stream.layers:
            raise InterventionError(_no_layer(layer, stream), "output_residual_stream")


class Capture:
    """The rows that one request reads, gathered step by step."""

    def __init__(self, layers: Sequence[int], stream: Stream) -> None:
        self.layers = tuple(layers)
        self._stream = stream
        self._parts: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}

    def add(self, layer: int, rows: Tensor) -> None:
        """Keep `rows` `[tokens, hidden]`, the next positions of this Layer."""
        self._parts[layer].append(rows)

    def result(self) -> Residuals:
        """Return the rows of all steps, Layers ascending, positions in order."""
        layers = [torch.cat(self._parts.pop(layer)) for layer in self.layers]
        rows = torch.stack(layers).cpu()
        shape = (rows.shape[0], rows.shape[1], rows.shape[2])
        if rows.dtype == torch.bfloat16:
            return Residuals(
                shape=shape, dtype="bfloat16", data=rows.view(torch.int16).numpy().tobytes()
            )
        return Residuals(shape=shape, dtype="float32", data=rows.numpy().tobytes())


@dataclass(frozen=True)
class Participant:
    """Where one sequence's tokens lie in the packed batch of a step."""

    row: int
    """Row of its first token."""
    start: int
    """Position of that token."""
    count: int
    steering: SteeringPlan
    capture: Capture | None


@dataclass
class _LayerWork:
    """What happens at one block in this step."""

    steered_rows: list[np.ndarray] = field(default_factory=list)
    added: list[Tensor] = field(default_factory=list)
    matched: list[tuple[np.ndarray, Tensor, float] | None] = field(default_factory=list)
    reads: list[tuple[int, int, Capture]] = field(default_factory=list)


class Interventions:
    """The reads and vectors of one step, over the whole packed batch."""

    def __init__(self, participants: Sequence[Participant], stream: Stream) -> None:
        self._stream = stream
        self._work: dict[int, _LayerWork] = {}
        self._rows: list[tuple[Capture, int, Tensor]] = []
        for participant in participants:
            self._plan(participant)

    @property
    def layers(self) -> list[int]:
        """Layers that this step touches."""
        return sorted(self._work)

    def apply(self, layer: int, hidden: Tensor) -> Tensor:
        """Steer and then read one block's output.

        `hidden` is `[rows, width]`. Returns it unchanged where nothing is steered, else a copy in
        which the other rows keep their bits.
        """
        work = self._work[layer]
        if work.steered_rows:
            hidden = self._steered(work, hidden)
        if work.reads:
            rows = torch.cat([hidden[row : row + count] for row, count, _ in work.reads])
            cuts = np.cumsum([count for _, count, _ in work.reads])[:-1].tolist()
            parts = rows.tensor_split(cuts)
            for part, (_, _, capture) in zip(parts, work.reads, strict=True):
                self._rows.append((capture, layer, part))
        return hidden

    def deliver(self) -> None:
        """Hand the rows of a pass that succeeded to the requests that read them."""
        for capture, layer, rows in self._rows:
            capture.add(layer, rows)
        self._rows = []

    @contextmanager
    def installed(self, blocks: Sequence[nn.Module]) -> Iterator[None]:
        """Hooks on the blocks in use, for the length of the `with` block."""
        handles = [
            blocks[layer].register_forward_hook(partial(self._hook, layer)) for layer in self._work
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(
        self, layer: int, module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...]:
        hidden = output[0] if isinstance(output, tuple) else output
        changed = self.apply(layer, hidden.flatten(0, -2)).view_as(hidden)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def _plan(self, participant: Participant) -> None:
        start, stop = participant.start, participant.start + participant.count
        for steer in participant.steering.steers:
            places, vectors, added = steer.rows(start, stop)
            if not len(places):
                continue
            work = self._work.setdefault(steer.layer, _LayerWork())
            rows = places - start + participant.row
            work.steered_rows.append(rows)
            work.added.append(added)
            exact = (rows, vectors, steer.scale) if steer.norm_match else None
            work.matched.append(exact)
        if participant.capture is not None:
            for layer in participant.capture.layers:
                work = self._work.setdefault(layer, _LayerWork())
                work.reads.append((participant.row, participant.count, participant.capture))

    def _steered(self, work: _LayerWork, hidden: Tensor) -> Tensor:
        """Add the vectors in order; with `norm_match` all see the unsteered norm (C-288)."""
        device = hidden.device
        added = [
            plain if exact is None else _matched(hidden, exact)
            for plain, exact in zip(work.added, work.matched, strict=True)
        ]
        rows = torch.from_numpy(np.concatenate(work.steered_rows)).to(device)
        return hidden.index_add(0, rows, torch.cat(added))


def _matched(hidden: Tensor, exact: tuple[np.ndarray, Tensor, float]) -> Tensor:
    rows, vectors, scale = exact
    norms = hidden[torch.from_numpy(rows).to(hidden.device)].float().norm(dim=-1, keepdim=True)
    own = vectors.norm(dim=-1, keepdim=True) + NORM_FLOOR
    matched: Tensor = (vectors * (norms / own)).to(hidden.dtype) * scale
    return matched


def _read_vector(vector: Steering, stream: Stream, reach: int) -> list[Steer]:
    param = "apply_steering_vectors"
    for layer in vector.layers:
        if not 0 <= layer < stream.layers:
            raise InterventionError(_no_layer(layer, stream), param)
    shape = vector.shape
    if len(shape) not in (2, 3) or shape[0] != len(vector.layers):
        raise InterventionError("activations needs one row for each layer in layer_indices.", param)
    if shape[-1] != stream.hidden:
        raise InterventionError(
            f"The vectors have {shape[-1]} numbers, but the model's hidden size is"
            f" {stream.hidden}.",
            param,
        )
    size = 2 if vector.dtype == "bfloat16" else 4
    if len(vector.data) != size * int(np.prod(shape)):
        raise InterventionError(f"The data of a vector does not fill its shape {shape}.", param)
    positions = _positions(vector, reach)
    flat = torch.frombuffer(bytearray(vector.data), dtype=_DTYPES[vector.dtype])
    rows = flat.view(shape[0], -1, stream.hidden).float().to(stream.device)
    added = rows.to(stream.dtype) * vector.scale
    if not bool(torch.isfinite(rows).all()) or not bool(torch.isfinite(added).all()):
        raise InterventionError(
            "A steering vector, times its scale, has numbers that are not finite in the model's"
            " dtype.",
            param,
        )
    return [
        Steer(layer, rows[index], added[index], vector.scale, vector.norm_match, positions)
        for index, layer in enumerate(vector.layers)
    ]


def _positions(vector: Steering, reach: int) -> np.ndarray | None:
    param = "apply_steering_vectors"
    spread = len(vector.shape) == 3
    if vector.positions is None:
        if not spread:
            return None
        positions = np.arange(vector.shape[1], dtype=np.int64)
    else:
        positions = np.array(vector.positions, dtype=np.int64)
    if spread and len(positions) != vector.shape[1]:
        raise InterventionError(
            f"A row has {vector.shape[1]} vectors, but {len(positions)} positions are listed.",
            param,
        )
    if len(positions) and (positions.min() < 0 or positions.max() > reach):
        wrong = int(positions.min() if positions.min() < 0 else positions.max())
        raise InterventionError(
            f"apply_steering_vectors steers position {wrong}, but the forward passes of this"
            f" request reach position {reach} at most: the last generated token never runs"
            f" through the model. Steer a position up to {reach}, or raise max_tokens.",
            param,
        )
    return positions


def _no_layer(layer: int, stream: Stream) -> str:
    return f"The model has Layers 0 to {stream.layers - 1}: it has no Layer {layer}."
