"""Autocast chooses the types that torch's rules for accelerators choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch

F = torch.nn.functional


def half(*shape: int) -> Any:
    return torch.rand(*shape, device="npu", dtype=torch.float16)


LOWER: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "convolution": lambda x: F.conv1d(x[None], x[:, :, None]),
}
SINGLE: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: x.half().exp(),
    "softmax": lambda x: x.half().softmax(-1),
    "sum": lambda x: x.half().sum(0),
    "layer norm": lambda x: F.layer_norm(x.half(), (4,)),
    "loss": lambda x: F.cross_entropy(x.half(), torch.arange(4, device="npu")),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOWER)
def test_products_take_the_type_of_the_autocast(name: str, dtype: Any) -> None:
    x = torch.rand(4, 4, device="npu")
    with torch.autocast("npu", dtype=dtype):
        found = LOWER[name](x)
    assert found.dtype == dtype
    assert torch.equal(found, LOWER[name](x.to(dtype)))
    assert LOWER[name](x).dtype == torch.float32


@pytest.mark.parametrize("name", SINGLE)
def test_sums_and_losses_stay_in_float32(name: str) -> None:
    x = torch.rand(4, 4, device="npu")
    with torch.autocast("npu", dtype=torch.float16):
        assert SINGLE[name](x).dtype == torch.float32
        assert x.half().softmax(-1, dtype=torch.float16).dtype == torch.float16


def test_other_operations_keep_their_type() -> None:
    x, y = half(4, 4), torch.arange(4, device="npu")
    with torch.autocast("npu"):
        assert (x + 1).dtype == torch.float16
        assert y.sum().dtype == torch.int64
        assert (x.double() @ x.double()).dtype == torch.float64


def test_gradients_come_back_in_the_type_of_the_parameters() -> None:
    layer = torch.nn.Linear(4, 2).npu()
    scaler = torch.npu.amp.GradScaler()
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        made = layer(torch.rand(3, 4, device="npu"))
    assert made.dtype == torch.bfloat16
    before = layer.weight.detach().clone()
    scaler.scale(made.float().sum()).backward()
    assert layer.weight.grad.dtype == torch.float32
    scaler.step(optimiser)
    scaler.update()
    assert not torch.equal(layer.weight, before)


def test_a_compiled_model_casts_too() -> None:
    layer, x = torch.nn.Linear(4, 2).npu(), torch.rand(3, 4, device="npu")

    def forward(x: Any) -> Any:
        with torch.autocast("npu", dtype=torch.float16):
            return layer(x)

    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), forward(x))
