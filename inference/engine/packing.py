"""Linear layers whose weights are laid out once for the processor's matrix kernels.

A plain linear layer lays its weights out again at every call. oneDNN's packed form is the same
arithmetic on the same numbers (in bfloat16 to the last bit), and takes half to nine tenths of the
time, so on a CPU it is the only form that runs; nothing is compiled or tuned for it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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


def packed(linear: nn.Linear) -> nn.Module:
    """Return the layer with packed weights, or as it is where no packed kernels exist."""
    weight = linear.weight
    known = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    return PackedLinear(linear) if known and torch._C._has_mkldnn else linear


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


def pack(model: nn.Module) -> None:
    """Replace the linear layers of a model, in place, where packed kernels exist."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, packed(child))
