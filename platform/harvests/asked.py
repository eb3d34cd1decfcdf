"""A checked request for a harvest, and how it is kept until it has run."""

from dataclasses import dataclass

import msgspec
import numpy as np
import zstandard

from inference.catalogue import ModelEntry
from inference.harvest.request import HarvestRequest, Projection


class HarvestAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `POST /v1/harvest`, in order by themselves; the model is not looked at yet."""

    model: str
    prompts: tuple[str, ...]
    prompt_bytes: int
    """UTF-8 bytes of all prompts."""
    layers: tuple[int, ...] | None
    """Ascending, each once; empty for all, None for those of `default_layers`."""
    shard_size: int
    batch_size: int | None
    add_special_tokens: bool
    directions: bytes = b""
    """float32, little-endian; empty without a projection."""
    n_directions: int = 0

    @property
    def reserved_tokens(self) -> int:
        """The Hold of the harvest (C-334, C-485)."""
        return self.prompt_bytes + (len(self.prompts) if self.add_special_tokens else 0)

    @property
    def projection(self) -> Projection | None:
        """The directions, already checked."""
        if not self.n_directions:
            return None
        numbers = np.frombuffer(self.directions, dtype="<f4")
        return Projection(numbers.reshape(self.n_directions, -1))

    def pack(self) -> bytes:
        """Return everything as compressed bytes."""
        return zstandard.compress(msgspec.msgpack.encode(self), 1)

    @classmethod
    def unpack(cls, data: bytes) -> "HarvestAsked":
        """Read what `pack` wrote."""
        return msgspec.msgpack.decode(zstandard.decompress(data), type=cls)


@dataclass(frozen=True)
class Resolved:
    """A request with its model and its Layers."""

    asked: HarvestAsked
    model: ModelEntry
    layers: tuple[int, ...]

    def request(self, run_id: str, model_identity: str) -> HarvestRequest:
        """Return what the harvest library runs."""
        asked = self.asked
        return HarvestRequest(
            run_id=run_id,
            model_id=self.model.id,
            model_identity=model_identity,
            prompts=asked.prompts,
            layers=self.layers,
            max_tokens=self.model.harvest_max_tokens,
            shard_size=asked.shard_size,
            batch_size=asked.batch_size,
            add_special_tokens=asked.add_special_tokens,
            projection=asked.projection,
        )
