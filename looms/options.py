"""The Branch options that a Node was sampled with, as they are kept and shown.

They are kept as JSON and shown as they stand, also when a range became narrower since, or when they
came with a file (C-531, C-532); checking what a new Branch asks for is the API's part.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from completions.request import LARGEST_TOP_K
from inference.engine.messages import Sampling

OutputTokens = Annotated[int, Meta(le=32_000)]
Likeliest = Annotated[int, Meta(ge=0, le=100)]
Seed = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(pattern="^[^\\0]*$")]
StopTexts = Annotated[list[Name], Meta(max_length=4)]


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`request` of a Node: every Branch option but `n`, defaults filled in (C-530)."""

    model: Name
    max_tokens: OutputTokens = 16
    temperature: float = 1.0
    logprobs: Likeliest | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: Seed | None = None
    stop: Name | StopTexts | None = None

    def sampling(self) -> Sampling:
        """Return how the engine draws with them."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=min(self.top_k, LARGEST_TOP_K),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )

    def stop_texts(self) -> tuple[str, ...]:
        """Return the stop texts as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


OPTION_NAMES = NodeRequest.__struct_fields__
_decoder = msgspec.json.Decoder(NodeRequest)


@dataclass(frozen=True, kw_only=True)
class BranchOptions:
    """What one Branch asks for: checked, defaults filled in but for the seed."""

    request: NodeRequest
    n: int = 1


def read_options(options: str | None) -> NodeRequest | None:
    """Return kept options as a request, or None when they do not read as Branch options (C-531)."""
    if options is None:
        return None
    try:
        return _decoder.decode(options)
    except msgspec.ValidationError:
        return None


def write_options(request: NodeRequest) -> str:
    """Return options as they are kept."""
    return msgspec.json.encode(request).decode()


def unseeded(options: str) -> str:
    """Return kept options with `seed` null, as the lower half of a split has them (C-574)."""
    return json.dumps({**json.loads(options), "seed": None}, ensure_ascii=False)


def kept_options(given: Mapping[str, object], model: str | None, seed: int | None) -> str | None:
    """Return what is kept of the options in a file (C-595, C-596), or None when there are none.

    model, seed: of the file's Node, for options that do not say.
    """
    kept = {name: given[name] for name in OPTION_NAMES if name in given}
    if model is not None:
        kept.setdefault("model", model)
    if seed is not None:
        kept.setdefault("seed", seed)
    return json.dumps(_whole(kept), ensure_ascii=False) if kept else None


def _whole(options: dict[str, object]) -> dict[str, object]:
    """Write `16.0` as 16 where a whole number is meant."""
    counts = ("max_tokens", "logprobs", "top_k", "seed")
    return {
        name: int(value)
        if name in counts and isinstance(value, float) and value.is_integer()
        else value
        for name, value in options.items()
    }
