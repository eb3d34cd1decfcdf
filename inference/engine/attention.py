"""The engine's place inside transformers' models: an attention function of its own.

transformers calls `attend` in place of its own attention for a model that was loaded with
`IMPLEMENTATION`. The layout of the step travels as the keyword `layout` through the model's
forward, so two engines in one process never meet.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from inference.engine.structs import CStep

IMPLEMENTATION = "basalt"


@dataclass
class CachedStep:
    """A step whose keys and values lie where the kernels find them, for all Layers."""

    described: CStep
    done: int = 0
    """The kernels have run the blocks before this Layer together with an earlier one."""


class Layout(Protocol):
    """What one forward pass does at each attention layer."""

    unread: set[str] | None
    """Where keywords are noted that `attend` has no use for; None notes nothing."""
    cached: CachedStep | None
    """What lets blocks run without asking `attend`; None where only that can answer."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        shape: "AttentionShape",
    ) -> Tensor:
        """Store the new keys and values and return `[tokens, heads, value_dim]`.

        `query`, `key` and `value` are `[heads, tokens, dim]`.
        """


@dataclass(frozen=True)
class AttentionShape:
    """How one layer scores its keys."""

    scaling: float
    window: int | None
    """A token sees itself and the `window - 1` tokens before it; None sees all before it."""
    softcap: float | None
    sinks: Tensor | None
    """`[heads]`: a score that takes its share of each softmax and adds nothing."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention in transformers' interface: `[1, heads, tokens, dim]` in, `[1, tokens, ...]` out.

    `loading` looks at what `others` holds, and refuses a model that means something by it.
    """
    if layout.unread is not None:
        others["attention_mask"] = attention_mask
        layout.unread.update(name for name, value in others.items() if value is not None)
    shape = AttentionShape(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    layer: int = module.layer_idx  # type: ignore[assignment]
    return layout.attend(layer, query[0], key[0], value[0], shape)[None], None


def no_mask(*args: object, **keywords: object) -> None:
    """Let no mask be built: `attend` knows which tokens see each other."""


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers. Repeating it changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, no_mask)


def mixed_values(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    shape: AttentionShape,
    sinks: Tensor | None,
) -> Tensor:
    """Return what each query takes of the values, `[..., heads, queries, value_dim]`.

    `mask` is added to the scores; all heads of `key` are those of `query`.
    """
    if shape.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=shape.scaling
        )
    scores = query @ key.transpose(-1, -2) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    share = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, share], -1).softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(value.dtype) @ value
