"""Parts of a decoder in few operations over compiled kernels; `lean` says where they may stand."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from inference.engine.attention import AttentionShape, Layout
from inference.engine.kernels import Kernels
from inference.engine.packing import PanelLinear, joined, packed
from inference.engine.structs import CAttention, CBlock, CNorm


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
        """Return the norm for the kernels."""
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
        self._sinks = None if shape.sinks is None else shape.sinks.detach().float().contiguous()

    def described(self) -> CAttention:
        """Return the attention for the kernels."""
        shape = self._shape
        return CAttention(
            None if self._sinks is None else self._sinks.data_ptr(),
            *self._heads[:2],
            self.dim,
            shape.window or 0,
            shape.scaling,
            shape.softcap or 0.0,
        )

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
    """A decoder block of lean parts.

    Over the cache, the kernels run it together with the blocks after it, up to the first at whose
    output somebody looks. Elsewhere it is two calls around its attention.
    """

    def __init__(
        self,
        before: RmsNorm,
        attention: RotaryAttention,
        after: RmsNorm,
        mlp: GatedMlp,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        # The parts are kept: they hold what `described` points to.
        self.before, self.attention, self.after, self.mlp = before, attention, after, mlp
        self.layer_idx, self.dim = attention.layer_idx, attention.dim
        self.followers: tuple[DecoderBlock, ...] = ()
        """The blocks after it that get its output as it is, and the same positions."""
        self._kernels = kernels
        products = (attention.into, attention.out, mlp.into, mlp.out)
        into, out, up, down = (cast("PanelLinear", layer).described() for layer in products)
        self.described = CBlock(
            before.described(), after.described(), into, out, up, down, attention.described()
        )

    def forward(
        self,
        hidden: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        layout: Layout,
        **others: object,
    ) -> Tensor:
        """`[1, tokens, width]` in and out; `position_embeddings` are cosines and sines."""
        cached = layout.cached
        if cached is not None and self.layer_idx < cached.done:
            return hidden
        cosines, sines = (part[0].contiguous() for part in position_embeddings)
        stream = hidden[0].contiguous()
        if cached is None:
            rows = self._kernels.enter(self.described, stream, cosines, sines)
            mixed = self.attention.attend(rows, layout)
            return self._kernels.leave(self.described, stream, mixed)[None]
        blocks = [block.described for block in self._together()]
        cached.done = self.layer_idx + len(blocks)
        out = self._kernels.run(blocks, self.layer_idx, cached.described, stream, cosines, sines)
        return out[None]

    def _together(self) -> "Iterator[DecoderBlock]":
        """Yield this block and those that can run with it, for nobody looks between them."""
        block = self
        yield block
        for follower in self.followers:
            if block._forward_hooks or follower._forward_pre_hooks:
                return
            block = follower
            yield block
