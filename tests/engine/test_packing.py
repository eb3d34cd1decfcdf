"""Packed linear layers compute what plain ones do."""

import pytest
import torch
from torch import nn

from inference.engine.packing import PackedLinear, pack


@pytest.mark.parametrize("shape", [(1, 1, 96), (1, 7, 96), (5, 96), (1, 300, 96), (1, 0, 96)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [64, 33])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_packed_equals_plain(
    shape: tuple[int, ...], bias: bool, width: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    plain = nn.Linear(96, width, bias=bias).to(dtype).requires_grad_(False)
    inputs = torch.randn(shape, generator=generator).to(dtype)
    expected, found = plain(inputs), PackedLinear(plain)(inputs)
    assert found.shape == expected.shape
    assert found.dtype == dtype
    if expected.numel():
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_every_linear_layer_of_a_model_is_packed_where_kernels_exist() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4)))
    pack(model)
    kinds = [type(part) for part in model.modules() if not isinstance(part, nn.Sequential)]
    expected = PackedLinear if torch._C._has_mkldnn else nn.Linear
    assert kinds == [expected, nn.ReLU, expected]
