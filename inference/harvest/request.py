"""What a harvest reads, with every default filled in and every name resolved."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

MAX_DIRECTIONS = 64
"""Directions of a projection (C-463)."""

Contents = Literal["activations", "projections"]


def default_layers(n_layers: int) -> tuple[int, ...]:
    """Return the Layers that are read when none are named: at 1/4, 1/2, 3/4 (C-458, U-10)."""
    return tuple(sorted({n_layers * part // 4 for part in (1, 2, 3)}))


class HarvestInvalid(ValueError):
    """A harvest that this model cannot run. The message says why."""


@dataclass(frozen=True)
class Projection:
    """Directions onto which the stream is projected."""

    directions: np.ndarray
    """float32 `[directions, hidden]`, as they were given."""

    @classmethod
    def check(cls, directions: np.ndarray) -> "Projection":
        """Take float32 `[directions, hidden]`.

        Raises HarvestInvalid, with the words of the contract after its field's name, for numbers
        that are not finite (C-466) and a direction of length 0 (C-467), and for a shape that is
        none (C-463).
        """
        if directions.ndim != 2 or not 1 <= len(directions) <= MAX_DIRECTIONS:
            raise HarvestInvalid(
                f"needs the shape [directions, hidden size] with 1 to {MAX_DIRECTIONS} directions."
            )
        if not np.isfinite(directions).all():
            raise HarvestInvalid("has numbers that are not finite.")
        if not directions.any(axis=1).all():
            raise HarvestInvalid("has a direction whose length is 0.")
        return cls(np.ascontiguousarray(directions, dtype=np.float32))

    def unit(self) -> np.ndarray:
        """Return the directions scaled to length 1 (C-507), float32 `[directions, hidden]`.

        Each is first divided by its largest number, so that no square is too large or too small.
        """
        exact = self.directions.astype(np.float64)
        exact /= np.abs(exact).max(axis=1, keepdims=True)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        return exact.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class HarvestRequest:
    """Everything that decides what is in the files."""

    run_id: str
    model_id: str
    model_identity: str
    """Which weights these are: revision and digest."""
    prompts: Sequence[str]
    layers: tuple[int, ...]
    """Ascending, each once."""
    max_tokens: int
    """Tokens kept of a longer prompt (C-503)."""
    shard_size: int = 32
    """Prompts of a shard."""
    batch_size: int | None = None
    """Kept in the manifest, and of no other effect (C-460)."""
    add_special_tokens: bool = True
    projection: Projection | None = None

    def check(self, *, n_layers: int, hidden: int) -> None:
        """Raise HarvestInvalid for what a model of this depth and width cannot do."""
        if not self.prompts:
            raise HarvestInvalid("there are no prompts.")
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise HarvestInvalid("the Layers must be ascending, each once, and at least one.")
        if not 0 <= self.layers[0] <= self.layers[-1] < n_layers:
            raise HarvestInvalid(
                f"{self.model_id} has layers 0 to {n_layers - 1}: it has no layer"
                f" {self.layers[0] if self.layers[0] < 0 else self.layers[-1]}."
            )
        if self.shard_size < 1 or self.max_tokens < 1:
            raise HarvestInvalid("shard_size and max_tokens must be at least 1.")
        if self.projection is not None and self.projection.directions.shape[1] != hidden:
            raise HarvestInvalid(
                f"the directions have {self.projection.directions.shape[1]} numbers, but the"
                f" hidden size of {self.model_id} is {hidden}."
            )

    @property
    def contents(self) -> Contents:
        """What the files hold (C-505)."""
        return "activations" if self.projection is None else "projections"
