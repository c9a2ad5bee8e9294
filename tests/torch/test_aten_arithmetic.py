"""Types, factors and kernels of sums, products and comparisons of two operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated_card import recorded, torch

FULL = torch.float32
HALVES = [torch.float16, torch.bfloat16]


def drawn(dtype: Any, seed: int = 0) -> Any:
    own = np.random.default_rng(seed)
    return torch.from_numpy(own.normal(size=(6, 50)).astype(np.float32) * 3).to(dtype)


def once(exact: Any, dtype: Any) -> Any:
    """*exact*, of float64, rounded to float32 and then to *dtype*."""
    return torch.as_tensor(exact).to(FULL).to(dtype)


BY_ELEMENT: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "sum": (lambda x, y: x + y, ["add", "cast"]),
    "difference": (lambda x, y: x - y, ["cast", "sub", "cast"]),
    "product": (lambda x, y: x * y, ["mul", "cast"]),
    "quotient": (lambda x, y: x / y, ["div", "cast"]),
    "maximum": (torch.maximum, ["cast", "maximum", "cast"]),
    "choice": (lambda x, y: torch.where(x == x, y, x), ["eq", "cast", "where", "cast"]),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", BY_ELEMENT)
def test_a_tensor_without_dimensions_is_not_rounded_first(name: str, dtype: Any) -> None:
    call, kernels = BY_ELEMENT[name]
    # 0.3 is no value of either type.
    x, y = drawn(dtype), torch.tensor(0.3)
    found, names = recorded(lambda: call(x.npu(), y.npu()))
    assert (names, found.dtype) == (kernels, dtype)
    assert torch.equal(found.cpu(), once(call(x.double(), y.double()), dtype))


def test_a_gradient_is_scaled_in_float32() -> None:
    x, factor = drawn(torch.bfloat16), torch.tensor(0.3)
    found = x.npu().mul_(factor.npu())
    assert torch.equal(found.cpu(), once(x.double() * factor.double(), torch.bfloat16))


@pytest.mark.parametrize("number", [3, 257, 0.1])
def test_bfloat16_times_an_integer_is_a_product_of_float32(number: float) -> None:
    x = drawn(torch.bfloat16)
    exact = x.double() * torch.tensor(number, dtype=FULL).double()
    kernels = ["mul"] if isinstance(number, float) else ["cast", "mul", "cast"]
    for call in (lambda x: x * number, lambda x: number * x, lambda x: x.mul_(number)):
        found, names = recorded(lambda call=call: call(x.npu()))
        assert names == kernels
        assert torch.equal(found.cpu(), once(exact, torch.bfloat16))


def test_a_whole_divisor_is_rounded_and_a_float_is_not() -> None:
    x = drawn(torch.bfloat16)
    for divisor, used in ((257, 256.0), (257.0, 257.0)):
        found, names = recorded(lambda divisor=divisor: x.npu() / divisor)
        assert names == ["div"]
        assert torch.equal(found.cpu(), once(x.double() / used, torch.bfloat16))
    # float16 has no 70,000: the divisor of a mean of that many is infinite.
    many = torch.ones(70_000, dtype=torch.float16).npu().requires_grad_()
    many.mean().backward()
    assert many.grad is not None
    assert not many.grad.any()


def test_a_multiple_is_added_by_one_kernel() -> None:
    for dtype in (torch.float16, FULL, torch.int32):
        x = drawn(FULL).mul(8).round().to(dtype)
        found, names = recorded(lambda x=x: torch.add(x.npu(), x.npu(), alpha=3))
        assert names == ["axpy"]
        assert torch.equal(found.cpu(), x * 4)


def test_a_multiple_of_bfloat16_is_rounded_by_a_separate_kernel() -> None:
    x = drawn(torch.bfloat16)
    factor = torch.tensor(0.3, dtype=torch.bfloat16).double()
    multiple = once(x.double() * factor, torch.bfloat16)
    found, names = recorded(lambda: torch.add(x.npu(), x.npu(), alpha=0.3))
    assert names == ["mul", "add"]
    assert torch.equal(found.cpu(), once(x.double() + multiple.double(), torch.bfloat16))
    found, names = recorded(lambda: torch.add(x.npu(), 2, alpha=0.3))
    assert names == ["mul", "add"]
    added = once(2 * factor, torch.bfloat16).double()
    assert torch.equal(found.cpu(), once(x.double() + added, torch.bfloat16))


@pytest.mark.parametrize("dtype", [*HALVES, FULL])
def test_a_multiple_is_subtracted_in_float32(dtype: Any) -> None:
    x, y = drawn(dtype), drawn(dtype, seed=1)
    casts = [] if dtype is FULL else ["cast", "cast"]
    found, names = recorded(lambda: torch.sub(x.npu(), y.npu(), alpha=0.3))
    assert names == [*casts, "axpy", *casts[:1]]
    multiple = once(y.double() * torch.tensor(0.3).double(), FULL)
    assert torch.equal(found.cpu(), once(x.double() - multiple.double(), dtype))
    found, names = recorded(lambda: torch.sub(x.npu(), 2, alpha=0.5))
    assert names == ["axpy"]
    assert torch.equal(found.cpu(), once(x.double() - 1, dtype))


def test_a_multiple_of_integers_is_subtracted_exactly() -> None:
    x = torch.tensor([2**24 + 1, -7], dtype=torch.int32)
    found, names = recorded(lambda: torch.sub(x.npu(), x.npu(), alpha=2))
    assert names == ["mul", "sub"]
    assert found.tolist() == [-(2**24) - 1, 7]


@pytest.mark.parametrize("dtype", [*HALVES, FULL, torch.int32])
def test_the_order_of_a_difference_may_be_reversed(dtype: Any) -> None:
    x = drawn(FULL).mul(4).round().to(dtype)
    for call in (lambda x: 2 - x, lambda x: torch.rsub(x, x + x)):
        found, names = recorded(lambda call=call: call(x.npu()))
        assert names[-1] == "sub"
        assert torch.equal(found.cpu(), call(x))
    found, names = recorded(lambda: torch.rsub(x.npu(), 1, alpha=2))
    assert names == ["mul", "sub"]
    assert torch.equal(found.cpu(), 1 - 2 * x)


@pytest.mark.parametrize("dtype", HALVES)
def test_greater_compares_halves_with_the_exact_number(dtype: Any) -> None:
    near = torch.tensor(0.3).to(dtype)
    x = torch.stack([near, near * 2, -near]).npu()
    is_above = near.double().item() > 0.3
    for call in (lambda x: x > 0.3, lambda x: x >= 0.3):
        found, names = recorded(lambda call=call: call(x))
        assert found.tolist() == [is_above, True, False]
        assert names[0].startswith("aten.")
    # The others round it, and what the type has is compared by a kernel.
    found, names = recorded(lambda: x <= 0.3)
    assert (found.tolist(), names) == ([True, False, True], ["le"])
    _, names = recorded(lambda: x > 0.25)
    assert names == ["gt"]


def test_integers_are_compared_with_a_float_exactly() -> None:
    x = torch.tensor([2**24 + 1, 2**24], dtype=torch.int32).npu()
    assert (x > 2.0**24).tolist() == [True, False]
    assert (x == 2.0**24).tolist() == [False, True]


QUOTIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "floor_divide": lambda x, y: x // y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
}


def by_steps(name: str, x: Any, y: Any) -> Any:
    """The steps of the kernels in numpy: quotients of float16 in float16, all else in float32."""
    dtype = np.float16 if x.dtype == np.float16 and name in QUOTIENTS_OF_HALF else np.float32
    a, b = x.astype(dtype), y.astype(dtype)
    whole = (np.floor if name in ("floor_divide", "floor", "remainder") else np.trunc)(a / b)
    if name in QUOTIENTS_OF_HALF:
        return whole.astype(x.dtype)
    if x.dtype == np.int32 and name == "remainder":
        return x - whole.astype(np.int32) * y
    found = (a - whole * b).astype(x.dtype)
    is_turned = name == "remainder" and found * b < 0
    return np.where(is_turned, found + y, found).astype(x.dtype)


QUOTIENTS_OF_HALF = ("floor_divide", "floor", "trunc")


@pytest.mark.parametrize("dtype", [torch.float16, FULL, torch.int32])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_quotient_is_rounded_before_its_whole_part_is_taken(name: str, dtype: Any) -> None:
    x = torch.cat([torch.tensor([1.0, 5.0, -7.0]), drawn(FULL).mul(20).flatten()]).to(dtype)
    divisors = [0.1, 0.1, 2.0] if dtype.is_floating_point else [2, 3, 2]
    y = torch.tensor(divisors + [3, -7, 2.0] * 100).to(dtype)
    found = QUOTIENTS[name](x.npu(), y.npu()).cpu().numpy()
    expected = np.array([by_steps(name, a, b) for a, b in zip(x.numpy(), y.numpy(), strict=True)])
    np.testing.assert_array_equal(found, expected)


def test_one_holds_ten_tenths() -> None:
    x, tenth = torch.ones(1), torch.tensor([0.1])
    assert (x.npu() // tenth.npu()).item() == 10 != (x // tenth).item()
    assert (x.npu() % 0.1).item() == 0
    # By a float it is divided in float64, on the AI CPU.
    found, names = recorded(lambda: x.npu() // 0.1)
    assert (found.item(), names) == (9, ["aten.floor_divide.default"])


def test_a_quotient_of_integers_goes_through_float32() -> None:
    x = torch.tensor([2**24 + 1, -7], dtype=torch.int32)
    assert (x.npu() // 1).tolist() == [2**24, -7]
    assert torch.div(x.npu(), 2, rounding_mode="trunc").tolist() == [2**23, -3]
    place = x.npu()
    place.remainder_(torch.tensor([2, 4], dtype=torch.int32).npu())
    assert place.tolist() == [1, 1]
