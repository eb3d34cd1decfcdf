"""Linear layers whose weights are laid out once for the processor's matrix kernels.

A plain linear layer lays its weights out again at every call. Our own panels (`linear.cpp`) are the
quickest form where the processor has what they need. Elsewhere on a CPU it is oneDNN's packed form,
the same arithmetic on the same numbers (in bfloat16 to the last bit), in half to nine tenths of the
time.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.engine.kernels import Kernels
from inference.engine.structs import CLinear


class PackedLinear(nn.Module):
    """A linear layer over packed weights."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.out_features = plain.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach())
        self._bias = None if plain.bias is None else plain.bias.detach()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        if inputs.numel() == 0:  # a step in which nobody needs scores
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self._bias, "none", [], ""
        )
        return out


class PanelLinear(nn.Module):
    """A linear layer over weights in panels."""

    def __init__(self, plain: nn.Linear, kernels: Kernels) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self._kernels = kernels
        self._panels = kernels.panels(plain.weight.detach())
        self._bias = None
        if plain.bias is not None:
            missing = -plain.out_features % self._panels.shape[2]
            self._bias = F.pad(plain.bias.detach().float(), (0, missing))

    def described(self) -> CLinear:
        """Return where the weights lie."""
        bias = None if self._bias is None else self._bias.data_ptr()
        return CLinear(self._panels.data_ptr(), bias, self.in_features, self.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        return self._kernels.linear(inputs, self._panels, self._bias, self.out_features)


def packed(linear: nn.Linear, kernels: Kernels | None) -> nn.Module:
    """Return the layer with packed weights, or as it is where nothing reads packed ones."""
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return linear
    if kernels is not None and kernels.multiplies(weight.dtype):
        return PanelLinear(linear, kernels)
    return PackedLinear(linear) if torch._C._has_mkldnn else linear


def joined(linears: Sequence[nn.Linear]) -> nn.Linear:
    """Return one layer that gives the outputs of several layers on one input, side by side.

    Raises ValueError when some of them have a bias and some have none.
    """
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if len(biases) not in (0, len(linears)):
        raise ValueError("Some of the linear layers have a bias and some have none.")
    weight = torch.cat([linear.weight.detach() for linear in linears])
    # On no device: its weights are given right after.
    whole = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        whole.bias = nn.Parameter(torch.cat([b.detach() for b in biases]), requires_grad=False)
    return whole


def pack(model: nn.Module, kernels: Kernels | None) -> None:
    """Replace the linear layers of a model, in place, where something reads packed ones."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, packed(child, kernels))
