"""Python's numbers with npu tensors: the values and dtypes that torch gives on the CPU."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch

OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "ge", "eq"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
FUNCTIONS = (
    *("fmod", "remainder", "copysign", "xlogy", "float_power", "floor_divide", "bitwise_and"),
    *("bitwise_xor", "bitwise_left_shift"),
)
SPECIAL = "zeta", "xlog1py", "hermite_polynomial_h", "chebyshev_polynomial_t"
WHOLE = {"and_", "or_", "xor", "lshift", "rshift", "bitwise_and", "bitwise_xor"}
WHOLE |= {"bitwise_left_shift"}


def same(call: Callable[..., Any], *args: Any) -> None:
    """What *call* gives for tensors on npu is what it gives for the same on the CPU."""
    on_npu = [arg.npu() if isinstance(arg, torch.Tensor) else arg for arg in args]
    want, got = call(*args), call(*on_npu)
    assert (got.is_npu, got.dtype, got.shape) == (True, want.dtype, want.shape)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, dtype: str) -> None:
    call, of = getattr(operator, name), getattr(torch, dtype)
    if name in WHOLE and of.is_floating_point:
        return
    for x in torch.tensor([7, 5, 3], dtype=of), torch.tensor(6, dtype=of):
        same(call, x, 3)
        same(call, 3, x)
        if name not in WHOLE:
            same(call, x, 2.5)
            same(call, 2.5, x)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("lt", "ge", "eq")])
def test_operators_in_place(name: str) -> None:
    call = getattr(operator, f"i{name.rstrip('_')}")
    x = torch.tensor([7.0, 5, 3] if name == "truediv" else [7, 5, 3])
    on_npu = x.npu()
    after = call(on_npu, 3)
    assert after is on_npu
    assert torch.equal(after.cpu(), call(x, 3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = torch.tensor([7, 5, 3]) if name in WHOLE else torch.tensor([7.5, -5, 3])
    same(getattr(torch, name), x, 3)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_take_the_number_on_either_side(name: str) -> None:
    call, x = getattr(torch.special, name), torch.tensor([1.5, 2.5])
    same(call, x, 2)
    same(call, 2, x)


def test_functions_that_use_such_a_form_inside() -> None:
    x, index = torch.tensor([1.5, 2.5, -3.5]), torch.tensor([0, 2])
    same(torch.take_along_dim, x, index)
    same(torch.where, x > 0, x, 0)
    same(torch.where, x > 0, 1, 2)
    same(torch.isin, torch.tensor([1, 2]), 2)


def test_out_of_a_form_with_a_number() -> None:
    x, out = torch.tensor([7, 5]).npu(), torch.empty(0, dtype=torch.int64).npu()
    assert torch.remainder(x, 4, out=out) is out
    assert out.tolist() == [3, 1]
