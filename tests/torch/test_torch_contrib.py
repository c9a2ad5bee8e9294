"""Linear layers of quantised weights: they call their operators with the weight turned."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

import npusim.torch

LinearQuant = torch_npu.contrib.module.LinearQuant
LinearWeightQuant = torch_npu.contrib.module.LinearWeightQuant


@pytest.fixture(autouse=True)
def card() -> None:
    torch.manual_seed(11)
    npusim.torch.install(device="ascend910b2")


def integers(*shape: int, dtype: Any = torch.int8) -> Any:
    return torch.randint(-8, 8, shape, dtype=dtype).npu()


def filled(group_size: int) -> Any:
    layer = LinearWeightQuant(128, 32, antiquant_offset=True, antiquant_group_size=group_size).npu()
    assert all(not parameter.requires_grad for parameter in layer.parameters())
    layer.weight.data = integers(32, 128)
    for name in ("antiquant_scale", "antiquant_offset", "bias"):
        parameter = getattr(layer, name)
        parameter.data = torch.randn(parameter.shape).half().npu()
    return layer


@pytest.mark.parametrize("group_size", [0, 32, 64])
def test_linear_weight_quant_calls_its_operator(group_size: int) -> None:
    layer, x = filled(group_size), torch.randn(4, 128).half().npu()
    scale, offset = layer.antiquant_scale.data, layer.antiquant_offset.data
    assert scale.shape == ((32, -(-128 // group_size)) if group_size else (32,))
    wanted = torch_npu.npu_weight_quant_batchmatmul(
        *(x, layer.weight.data.T, scale.T if group_size else scale),
        antiquant_offset=offset.T if group_size else offset,
        bias=layer.bias.data,
        antiquant_group_size=group_size,
    )
    assert torch.equal(layer(x), wanted)


def test_parameters_that_are_not_asked_for_are_none() -> None:
    layer = LinearWeightQuant(64, 32, bias=False)
    assert set(layer.state_dict()) == {"weight", "antiquant_scale"}
    assert (layer.bias, layer.antiquant_offset) == (None, None)
    assert (layer.quant_scale, layer.quant_offset) == (None, None)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}


def test_a_layer_is_copied_and_saved(tmp_path: Path) -> None:
    layer, x = filled(0), torch.randn(4, 128).half().npu()
    wanted = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), wanted)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = filled(0)
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(other(x), wanted)


@pytest.mark.parametrize("output_dtype", [None, torch.float16])
def test_linear_quant_calls_its_operator(output_dtype: Any) -> None:
    layer = LinearQuant(64, 32, offset=output_dtype is None, output_dtype=output_dtype).npu()
    layer.weight.data, layer.bias.data = integers(32, 64), integers(32, dtype=torch.int32)
    layer.scale.data = torch.rand(32).npu()
    if output_dtype is None:
        layer.offset.data = torch.rand(32).npu()
    x = integers(4, 64)
    wanted = torch_npu.npu_quant_matmul(
        *(x, layer.weight.data.T, layer.scale.data),
        offset=None if layer.offset is None else layer.offset.data,
        bias=layer.bias.data,
        output_dtype=output_dtype,
    )
    assert torch.equal(layer(x), wanted)
    assert wanted.dtype == (output_dtype or torch.int8)


def test_linear_quant_with_scales_a_row() -> None:
    layer = LinearQuant(
        64, 32, bias=False, pertoken_scale=True, output_dtype=torch.float16, device="npu"
    )
    layer.weight.data, layer.scale.data = integers(32, 64), torch.rand(32).npu()
    layer.pertoken_scale.data = torch.rand(4).npu()
    x = integers(4, 64)
    wanted = (x.cpu().double() @ layer.weight.cpu().double().T) * layer.scale.cpu().double()
    wanted *= layer.pertoken_scale.cpu().double()[:, None]
    torch.testing.assert_close(layer(x).cpu().double(), wanted, rtol=2e-3, atol=2e-3)
