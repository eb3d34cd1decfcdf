"""Parts of a model in fewer operations, each proved equal on the model itself.

Between its matrix products a decoder block spends its time on small operations. Where a part of
the model has one of the usual shapes (an RMS norm, a gated MLP, attention with rotary positions)
and compiled kernels are at hand, a lean part takes its place: but only if it gives, on a pass of
this very model, the same output as the part that it replaces. What is different in any way
(another activation, norms on the queries, partial rotation) stays as transformers wrote it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.engine.attention import AttentionShape, Layout
from inference.engine.kernels import CBlock, CNorm, Kernels
from inference.engine.packing import PanelLinear, joined, packed

_POSITIONS = (0, 1, 7, 30, 3)
"""Positions of the pass on which the parts are compared."""
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Of the largest number of an output."""

Output = Tensor | tuple[Tensor, ...]


class RmsNorm(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, plain: nn.Module, kernels: Kernels, *, around_zero: bool) -> None:
        """Some models keep their weights around zero, and multiply by them in float32."""
        super().__init__()
        self._kernels = kernels
        self._weight = cast("Tensor", plain.weight).detach().float() + float(around_zero)
        self._wide = around_zero
        epsilon = getattr(plain, "variance_epsilon", None)
        self._epsilon = float(plain.eps if epsilon is None else epsilon)  # type: ignore[arg-type]

    def described(self) -> CNorm:
        """Return the norm for `Kernels.enter` and `Kernels.leave`."""
        return CNorm(self._weight.data_ptr(), self._epsilon, self._wide)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[..., width]` like the input."""
        return self._kernels.rms_norm(hidden, self._weight, self._epsilon, wide=self._wide)


class GatedMlp(nn.Module):
    """`down(silu(gate(x)) * up(x))`, with gate and up as one matrix."""

    def __init__(self, plain: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        gate, up, down = (getattr(plain, f"{name}_proj") for name in ("gate", "up", "down"))
        self.into, self.out = packed(joined([gate, up]), kernels), packed(down, kernels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[..., width]` like the input."""
        out: Tensor = self.out(self._kernels.silu_mul(self.into(hidden)))
        return out


class RotaryAttention(nn.Module):
    """Attention whose queries and keys are turned by their positions, q, k and v as one matrix."""

    def __init__(self, plain: nn.Module, kernels: Kernels, shape: AttentionShape) -> None:
        super().__init__()
        self._kernels = kernels
        self._shape = shape
        self.layer_idx = cast("int", plain.layer_idx)
        self.dim = cast("int", plain.head_dim)
        parts = [getattr(plain, f"{name}_proj") for name in "qkv"]
        self._heads = [part.out_features // self.dim for part in parts]
        self.turned = self._heads[0] + self._heads[1]
        """Heads of queries and keys."""
        self.into = packed(joined(parts), kernels)
        self.out = packed(cast("nn.Linear", plain.o_proj), kernels)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *,
        layout: Layout,
        **others: object,
    ) -> tuple[Tensor, None]:
        """`[1, tokens, width]` in and out; `position_embeddings` are cosines and sines."""
        cosines, sines = (part[0].contiguous() for part in position_embeddings)
        rows = self.into(hidden_states)[0]
        self._kernels.rotate(rows, self.turned, cosines, sines)
        result: Tensor = self.out(self.attend(rows, layout)[None])
        return result, None

    def attend(self, rows: Tensor, layout: Layout) -> Tensor:
        """Attend for rows of queries, keys and values; returns `[tokens, heads * dim]`."""
        heads = rows.view(len(rows), -1, self.dim).transpose(0, 1)
        query, key, value = torch.split(heads, self._heads)
        out = layout.attend(self.layer_idx, query, key, value, self._shape)
        return out.reshape(len(rows), -1)


class DecoderBlock(nn.Module):
    """A decoder block of lean parts, in two calls of the kernels around its attention."""

    def __init__(
        self,
        before: RmsNorm,
        attention: RotaryAttention,
        after: RmsNorm,
        mlp: GatedMlp,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        # The parts are kept: they hold what `_block` points to.
        self.before, self.attention, self.after, self.mlp = before, attention, after, mlp
        self.layer_idx, self.dim = attention.layer_idx, attention.dim
        self._kernels = kernels
        products = (attention.into, attention.out, mlp.into, mlp.out)
        into, out, up, down = (cast("PanelLinear", layer).described() for layer in products)
        self._block = CBlock(
            before.described(), after.described(), into, out, up, down,
            attention.turned, attention.dim,
        )  # fmt: skip

    def forward(
        self,
        hidden: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        layout: Layout,
        **others: object,
    ) -> Tensor:
        """`[1, tokens, width]` in and out; `position_embeddings` are cosines and sines."""
        cosines, sines = (part[0].contiguous() for part in position_embeddings)
        stream = hidden[0].contiguous()
        rows = self._kernels.enter(self._block, stream, cosines, sines)
        mixed = self.attention.attend(rows, layout)
        return self._kernels.leave(self._block, stream, mixed)[None]


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
    return _replace(model, kernels, _maker) + _replace(model, kernels, _block_maker)


def _replace(model: PreTrainedModel, kernels: Kernels, maker_of: "MakerOf") -> int:
    """Replace what a pass shows to be the same; returns the number of parts."""
    makers = {
        part: maker for part in model.modules() if (maker := maker_of(part, kernels)) is not None
    }
    if not makers:
        return 0
    calls, recorder = _run(model, makers)
    count = 0
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if part not in makers or part not in calls:
                continue
            for make in makers[part](recorder):
                lean = make()
                if _agrees(lean, part, calls[part], recorder):
                    setattr(parent, name, lean)
                    count += 1
                    break
            del calls[part], makers[part]
    return count


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
    if len(call.positional) > 1:
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
