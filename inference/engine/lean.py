"""Parts of a model in fewer operations, each proved equal on the model itself.

Between its matrix products a decoder block spends its time on small operations. Where a part of
the model has one of the usual shapes (an RMS norm, a gated MLP, attention with rotary positions)
and compiled kernels are at hand, a lean part takes its place: but only if it gives, on a pass of
this very model, the same output as the part that it replaces. What is different in any way
(another activation, norms on the queries, partial rotation) stays as transformers wrote it.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.engine.attention import AttentionShape
from inference.engine.kernels import Kernels
from inference.engine.packing import PanelLinear
from inference.engine.parts import DecoderBlock, GatedMlp, RmsNorm, RotaryAttention

_POSITIONS = (0, 1, 7, 30, 3)
"""Positions of the pass on which the parts are compared."""
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Of the largest number of an output."""

Output = Tensor | tuple[Tensor, ...]
Embeddings = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Call:
    """What a part was given in the pass, and what it said."""

    positional: tuple[object, ...]
    named: Mapping[str, object]
    output: Output


@dataclass
class _Recorder:
    """A layout that keeps what attention gets, and answers with a mixture of it."""

    unread: set[str] | None = None
    cached: None = None
    seen: dict[int, tuple[tuple[Tensor, ...], AttentionShape]] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """See `attention.Layout.attend`."""
        self.seen[layer] = (query.clone(), key.clone(), value.clone()), shape
        shared = query.shape[0] // key.shape[0]
        return value.repeat_interleave(shared, 0).transpose(0, 1).contiguous()


def install(model: PreTrainedModel, kernels: Kernels) -> int:
    """Replace what can be replaced, in place; returns the number of parts.

    The linear layers of `model` must still be plain. Blocks come last: they are made of lean parts.
    """
    parts = _replace(model, kernels, _maker)
    blocks = _replace(model, kernels, _block_maker)
    _join(blocks)
    return len(parts) + len(blocks)


def _replace(
    model: PreTrainedModel, kernels: Kernels, maker_of: "MakerOf"
) -> list[tuple[nn.Module, _Call]]:
    """Replace what a pass shows to be the same; returns the new parts and the calls of the old."""
    makers = {
        part: maker for part in model.modules() if (maker := maker_of(part, kernels)) is not None
    }
    if not makers:
        return []
    calls, recorder = _run(model, makers)
    replaced: list[tuple[nn.Module, _Call]] = []
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if part not in makers or part not in calls:
                continue
            for make in makers[part](recorder):
                lean = make()
                if _agrees(lean, part, calls[part], recorder):
                    setattr(parent, name, lean)
                    replaced.append((lean, calls[part]))
                    break
            del calls[part], makers[part]
    return replaced


def _join(replaced: Sequence[tuple[nn.Module, _Call]]) -> None:
    """Tell each block which ones follow it with nothing between them."""
    followers: tuple[DecoderBlock, ...] = ()
    later: tuple[DecoderBlock, _Call] | None = None
    for block, call in reversed(replaced):
        assert isinstance(block, DecoderBlock)
        joins = later is not None and _follows(block, call, *later)
        followers = (later[0], *followers) if later is not None and joins else ()
        block.followers = followers
        later = block, call


def _follows(block: DecoderBlock, call: _Call, later: DecoderBlock, its: _Call) -> bool:
    """Whether `later` got what `block` gave, and the same positions."""
    output = call.output if isinstance(call.output, Tensor) else call.output[0]
    ours, theirs = call.named["position_embeddings"], its.named["position_embeddings"]
    return (
        later.layer_idx == block.layer_idx + 1
        and its.positional[0] is output
        and all(map(operator.is_, cast("Embeddings", ours), cast("Embeddings", theirs)))
    )


Maker = Callable[[_Recorder], list[Callable[[], nn.Module]]]
"""Given what attention saw, the lean parts that may do."""
MakerOf = Callable[[nn.Module, Kernels], Maker | None]


def _maker(part: nn.Module, kernels: Kernels) -> Maker | None:
    """Return what makes lean parts for a part of a known shape."""
    weight = getattr(part, "weight", None)
    if "RMSNorm" in type(part).__name__ and isinstance(weight, Tensor) and weight.ndim == 1:
        return lambda recorder: [
            lambda: RmsNorm(part, kernels, around_zero=False),
            lambda: RmsNorm(part, kernels, around_zero=True),
        ]
    if _has_linears(part, "gate_proj", "up_proj", "down_proj"):
        return lambda recorder: [lambda: GatedMlp(part, kernels)]
    if _has_linears(part, "q_proj", "k_proj", "v_proj", "o_proj") and _is_rotary(part):
        layer = cast("int", part.layer_idx)
        return lambda recorder: [lambda: RotaryAttention(part, kernels, recorder.seen[layer][1])]
    return None


def _block_maker(part: nn.Module, kernels: Kernels) -> Maker | None:
    """Return what makes a block of lean parts: two norms, attention and an MLP, and no more."""
    names = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    if {name for name, _ in part.named_children()} != set(names):
        return None
    match tuple(getattr(part, name) for name in names):
        case (
            RmsNorm() as before,
            RotaryAttention() as attention,
            RmsNorm() as after,
            GatedMlp() as mlp,
        ):
            products = (attention.into, attention.out, mlp.into, mlp.out)
            if all(type(product) is PanelLinear for product in products):
                return lambda recorder: [
                    lambda: DecoderBlock(before, attention, after, mlp, kernels)
                ]
    return None


def _has_linears(part: nn.Module, *names: str) -> bool:
    layers = [getattr(part, name, None) for name in names]
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    biases = {cast("nn.Linear", layer).bias is None for layer in layers[:-1]}
    return len(biases) == 1


def _is_rotary(part: nn.Module) -> bool:
    """All heads of queries, keys and values have one width."""
    dim, layer = getattr(part, "head_dim", None), getattr(part, "layer_idx", None)
    if not isinstance(dim, int) or not isinstance(layer, int):
        return False
    widths = [cast("nn.Linear", getattr(part, f"{name}_proj")).out_features for name in "qkv"]
    return all(width % dim == 0 for width in widths) and widths[1] == widths[2]


def _run(
    model: PreTrainedModel, parts: Mapping[nn.Module, Maker]
) -> tuple[dict[nn.Module, _Call], _Recorder]:
    """Run one pass over the plain model; returns what each part got and gave."""
    calls: dict[nn.Module, _Call] = {}

    def note(
        part: nn.Module, positional: tuple[object, ...], named: dict[str, object], output: Output
    ) -> None:
        # A part that is used twice in a pass is left alone.
        calls[part] = _Call(positional, named, output) if part not in calls else _Call((), {}, ())

    handles = [part.register_forward_hook(note, with_kwargs=True) for part in parts]
    recorder = _Recorder()
    try:
        with torch.inference_mode():
            tokens = torch.arange(len(_POSITIONS)) + 5
            model(
                input_ids=tokens[None] % model.config.vocab_size,
                position_ids=torch.tensor([_POSITIONS]),
                use_cache=False,
                logits_to_keep=torch.tensor([0]),
                layout=recorder,
            )
    finally:
        for handle in handles:
            handle.remove()
    return calls, recorder


def _agrees(lean: nn.Module, plain: nn.Module, call: _Call, recorder: _Recorder) -> bool:
    """Whether a lean part gives what the plain one gave, and attends to the same."""
    if not isinstance(lean, RotaryAttention | DecoderBlock):
        if len(call.positional) != 1 or call.named:
            return False
        with torch.inference_mode():
            return _close(lean(*call.positional), call.output)
    embeddings = call.named.get("position_embeddings")
    if not isinstance(embeddings, tuple) or len(embeddings) != 2:
        return False
    if len(call.positional) > 1 or (isinstance(lean, DecoderBlock) and not call.positional):
        return False
    if any(part.shape != (1, len(_POSITIONS), lean.dim) for part in embeddings):
        return False
    again = _Recorder()
    named = {**call.named, "layout": again}
    with torch.inference_mode():
        output = lean(*call.positional, **named)
    saw, shape = recorder.seen[lean.layer_idx]
    seen, same_shape = again.seen[lean.layer_idx]
    return (
        shape == same_shape
        and all(map(_close, seen, saw))
        and _close(output[0], cast("tuple[Tensor, ...]", call.output)[0])
    )


def _close(found: Tensor, right: Output) -> bool:
    if not isinstance(right, Tensor) or found.shape != right.shape or found.dtype != right.dtype:
        return False
    gap = (found.float() - right.float()).abs().max()
    return bool(gap <= _TOLERANCE[right.dtype] * right.float().abs().max())
