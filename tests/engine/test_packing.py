"""Packed linear layers compute what plain ones do."""

import pytest
import torch
from torch import nn

from inference.engine import compiling
from inference.engine.kernels import Kernels
from inference.engine.packing import PackedLinear, PanelLinear, pack
from tests.engine.harness import house_kernels

DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)]
)


def kernels_for(dtype: torch.dtype) -> Kernels:
    kernels = house_kernels()
    if not kernels.multiplies(dtype):
        pytest.skip("products of this dtype are torch's on this processor")
    return kernels


@pytest.mark.parametrize("shape", [(1, 1, 96), (1, 7, 96), (5, 96), (1, 300, 96), (1, 0, 96)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [64, 33])
@DTYPES
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


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 12, 13, 96, 97, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(96, 64), (95, 33), (1, 1), (576, 200)])
@pytest.mark.parametrize("bias", [True, False])
@DTYPES
def test_panels_equal_plain(
    rows: int, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    plain = nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)
    given = torch.randn((1, rows, inputs), generator=generator).to(dtype)
    expected, found = plain(given), PanelLinear(plain, kernels_for(dtype))(given)
    assert found.shape == expected.shape
    assert found.dtype == dtype
    if expected.numel():
        assert (found - expected).abs().max() <= 2 * tolerance * expected.abs().max()


@DTYPES
def test_a_row_times_panels_does_not_depend_on_the_rows_beside_it(
    dtype: torch.dtype, tolerance: float
) -> None:
    plain = nn.Linear(320, 200).to(dtype).requires_grad_(False)
    layer = PanelLinear(plain, kernels_for(dtype))
    rows = torch.randn(131, 320).to(dtype)
    whole = layer(rows)
    for count in (1, 3, 7, 12, 16, 100):
        assert torch.equal(layer(rows[:count]), whole[:count])
        assert torch.equal(layer(rows[-count:]), whole[-count:])


@DTYPES
def test_a_number_that_is_not_finite_stays_in_its_row(dtype: torch.dtype, tolerance: float) -> None:
    plain = nn.Linear(64, 48).to(dtype).requires_grad_(False)
    rows = torch.randn(4, 64).to(dtype)
    rows[1, 5], rows[2, 7] = torch.nan, torch.inf
    found = PanelLinear(plain, kernels_for(dtype))(rows)
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert found[[0, 3]].isfinite().all()


def test_every_linear_layer_of_a_model_is_packed_where_kernels_exist() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4)))
    pack(model, None)
    kinds = [type(part) for part in model.modules() if not isinstance(part, nn.Sequential)]
    expected = PackedLinear if torch._C._has_mkldnn else nn.Linear
    assert kinds == [expected, nn.ReLU, expected]


@DTYPES
def test_panels_are_taken_where_the_processor_has_what_they_need(
    dtype: torch.dtype, tolerance: float
) -> None:
    kernels = house_kernels()
    model = nn.Sequential(nn.Linear(8, 8)).to(dtype)
    pack(model, kernels)
    assert isinstance(model[0], PanelLinear if kernels.multiplies(dtype) else PackedLinear)
    flags = set(compiling.processor().split())
    needed = {torch.float32: {"avx512f"}, torch.bfloat16: {"avx512_bf16"}}[dtype]
    has_amx = dtype == torch.bfloat16 and "amx_bf16" in flags
    assert kernels.multiplies(dtype) == (needed <= flags and not has_amx)
