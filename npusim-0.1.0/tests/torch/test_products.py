"""Products of torch run as the kernels that a card launches, with the operator's bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated_card import recorded, torch, torch_npu

import npusim
import npusim.torch

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
TYPES = [HALF, BRAIN, SINGLE]
linear = torch.nn.functional.linear


def drawn(*shape: int, dtype: Any = HALF) -> Any:
    return torch.randn(*shape).to(dtype).npu()


def plain(x: Any) -> Any:
    """A tensor of torch as an array."""
    x = x.detach().cpu()
    if x.dtype == BRAIN:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def by_operator(a: Any, b: Any, bias: Any = None, device: str = "ascend910b2") -> Any:
    """What the operator itself makes of the same numbers."""
    given = [None if x is None else plain(x) for x in (a, b, bias)]
    return np.asarray(npusim.run("matmul", *given, device=device, timing=False).output)


FACTORS: dict[str, tuple[Any, list[str]]] = {
    "transposed weight": (lambda x, w: (x, w.t()), ["matmul"]),
    "transposed rows": (lambda x, w: (w, x.t()), ["matmul"]),
    "rows of a weight": (lambda x, w: (x, w[:16].t()), ["matmul"]),
    "columns": (lambda x, w: (x[:, :16], w[:, :16].t()), ["narrow", "narrow", "permute", "matmul"]),
    "batch of rows": (lambda x, w: (x.view(2, 4, 32), w.t()), ["matmul"]),
    "batch": (lambda x, w: (x.view(2, 4, 32), w.view(2, 32, 32)), ["matmul"]),
    "transposed batch": (lambda x, w: (x.view(2, 4, 32), w.view(2, 32, 32).mT), ["matmul"]),
    "batch in another order": (
        lambda x, w: (x.view(4, 2, 32).transpose(0, 1), w.view(2, 32, 32)),
        ["permute", "matmul"],
    ),
    "expanded batch": (
        lambda x, w: (x.view(2, 4, 32), w[:32].expand(2, 32, 32)),
        ["broadcast_to", "matmul"],
    ),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FACTORS)
def test_a_product_is_its_kernels_with_the_operators_bits(name: str, dtype: Any) -> None:
    factors, kernels = FACTORS[name]
    a, b = factors(drawn(8, 32, dtype=dtype), drawn(64, 32, dtype=dtype))
    found, names = recorded(lambda: a @ b)
    assert (names, found.is_npu, found.dtype) == (kernels, True, dtype)
    np.testing.assert_array_equal(plain(found), by_operator(a, b))


def test_a_vector_is_a_matrix_of_one_column() -> None:
    w, x = drawn(64, 32), drawn(32)
    found, names = recorded(lambda: w @ x)
    assert names == ["matmul"]
    np.testing.assert_array_equal(plain(found), by_operator(w, x[:, None])[:, 0])


@pytest.mark.parametrize("batch", [(), (2, 4)])
@pytest.mark.parametrize(("dtype", "first"), [(HALF, []), (BRAIN, ["cast"]), (SINGLE, [])])
def test_a_bias_of_bfloat16_is_cast_first(dtype: Any, first: Any, batch: Any) -> None:
    x, w, bias = (drawn(*shape, dtype=dtype) for shape in ((*batch, 32), (48, 32), (48,)))
    x = x if batch else x[None]
    found, names = recorded(lambda: linear(x, w, bias))
    assert names == [*first, "matmul"]
    wide = bias.cpu().float() if first else bias
    np.testing.assert_array_equal(plain(found), by_operator(x, w.t(), wide))


def test_a_weight_in_fractals_goes_in_as_it_is() -> None:
    x, w = drawn(8, 32), drawn(64, 32)
    fractals = torch_npu.npu_format_cast(w, 29)
    found, names = recorded(lambda: linear(x, fractals))
    assert names == ["matmul"]
    np.testing.assert_array_equal(plain(found), by_operator(x, w.t()))


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "kernel"),
    [
        (HALF, 3, 5, "mul"),
        (BRAIN, 3, 5, "matmul"),
        (BRAIN, 128, 128, "mul"),
        (BRAIN, 16, 4001, "matmul"),
        (SINGLE, 3, 5, "mul"),
    ],
)
def test_outer_products_are_none(dtype: Any, rows: int, columns: int, kernel: str) -> None:
    a, b = drawn(rows, 1, dtype=dtype), drawn(1, columns, dtype=dtype)
    found, names = recorded(lambda: a @ b)
    assert names == [kernel]
    assert torch.equal(found.cpu(), a.cpu() * b.cpu())


def test_two_types_are_cast_to_float32() -> None:
    x, w = drawn(8, 32), drawn(32, 64, dtype=BRAIN)
    found, names = recorded(lambda: x @ w)
    assert names == ["cast", "cast", "matmul", "cast"]
    np.testing.assert_array_equal(
        plain(found), by_operator(x.float(), w.float()).astype(np.float16)
    )
    bias = drawn(64)
    found, names = recorded(lambda: torch.addmm(bias, x, w))
    assert names == ["cast", "cast", "cast", "matmul", "cast"]
    single = by_operator(x.float(), w.float(), bias.float())
    np.testing.assert_array_equal(plain(found), single.astype(np.float16))


def test_atlas_inference_multiplies_float16_alone() -> None:
    npusim.torch.install(device="ascend310p3")
    x, w, bias = drawn(16, 32, dtype=SINGLE), drawn(64, 32, dtype=SINGLE), drawn(64, dtype=SINGLE)
    found, names = recorded(lambda: linear(x, w, bias))
    assert names == ["cast", "cast", "matmul", "cast"]
    half = x.half(), w.half().t(), bias
    np.testing.assert_array_equal(plain(found), by_operator(*half, device="ascend310p3"))
    x, w, other = drawn(16, 32), drawn(32, 64), drawn(16, 64)
    found, names = recorded(lambda: torch.addmm(other, x, w, beta=2))
    assert names == ["matmul", "mul", "add"]
    assert torch.equal(found, other * 2 + x @ w)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 1), (1, 3)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_matrices_are_added_in_float32(dtype: Any, beta: float, alpha: float, batch: Any) -> None:
    x, w, other = (drawn(*batch, *shape, dtype=dtype) for shape in ((16, 32), (32, 64), (16, 64)))
    add = torch.baddbmm if batch else torch.addmm
    found, names = recorded(lambda: add(other, x, w, beta=beta, alpha=alpha))
    scaled, cast = ["mul"] if beta != 1 else [], [] if dtype is SINGLE else ["cast"]
    assert names == ["matmul", *scaled, *cast, "add" if alpha == 1 else "axpy", *cast]
    given = plain(x), plain(w)
    sums = npusim.run("matmul", *given, output_dtype="float32", device="ascend910b2").output
    scaled_sums = torch.from_numpy(np.asarray(sums)) * alpha
    expected = scaled_sums + (other.cpu() * beta).float()
    torch.testing.assert_close(found.cpu(), expected.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 1, 1), (16, 1), (1,), (3, 1, 64)])
def test_what_is_added_is_broadcast(shape: tuple[int, ...]) -> None:
    x, w, other = drawn(3, 16, 32), drawn(3, 32, 64), drawn(*shape)
    found, names = recorded(lambda: torch.baddbmm(other, x, w))
    assert [name for name in names if "aten" in name] == []
    expected = torch.baddbmm(other.cpu().float(), x.cpu().float(), w.cpu().float())
    torch.testing.assert_close(found.cpu().float(), expected, rtol=2e-3, atol=2e-3)


def test_the_sum_in_float32_is_rounded_once() -> None:
    # 1 + 2^-8 + 2^-9: a product that was rounded to bfloat16 first would give 1.
    a = torch.tensor([[1, 2.0**-8]] * 2, dtype=BRAIN).npu()
    b, x = torch.ones(2, 1, dtype=BRAIN).npu(), torch.full((2, 1), 2.0**-9, dtype=BRAIN).npu()
    assert torch.addmm(x, a, b).tolist() == [[1.0078125]] * 2
    assert torch.addmm(x[0], a[:1], b).tolist() == [[1.0078125]]
    assert (a @ b + x).tolist() == [[1.0]] * 2


def test_a_sum_that_is_scaled_away_is_the_product() -> None:
    x, w, other = drawn(16, 32), drawn(32, 64), drawn(16, 64)
    for alpha, kernels in ((1, ["matmul"]), (2, ["matmul", "mul"])):
        found, names = recorded(lambda: torch.addmm(other, x, w, beta=0, alpha=alpha))  # noqa: B023
        assert names == kernels
        assert torch.equal(found, (x @ w) * alpha)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: x[:0] @ w,
        lambda x, w: x.double() @ w.double(),
        lambda x, w: torch.mm(x, w, out=torch.empty(8, 64, dtype=HALF, device="npu")),
        lambda x, w: torch.addmm(torch.ones(8, 64, dtype=HALF, device="npu"), x, w, alpha=0),
    ],
    ids=["empty", "float64", "out", "alpha"],
)
def test_what_no_kernel_takes_runs_on_the_host(call: Any) -> None:
    x, w = drawn(8, 32), drawn(32, 64)
    assert "matmul" not in recorded(lambda: call(x, w))[1]


def test_shapes_that_do_not_fit_are_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        drawn(4, 8) @ drawn(7, 3)
    with pytest.raises(RuntimeError, match="same device"):
        drawn(4, 8) @ torch.ones(8, 3, dtype=HALF)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_are_those_of_the_host(dtype: Any) -> None:
    here = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 16)).to(dtype)
    there = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 16)).to(dtype).npu()
    there.load_state_dict(here.state_dict())
    x = torch.randn(2, 4, 32).to(dtype)
    here(x).square().sum().backward()
    _, names = recorded(lambda: there(x.npu()).square().sum().backward())
    assert names.count("matmul") == 5
    for own, other in zip(here.parameters(), there.parameters(), strict=True):
        assert other.grad.is_npu
        torch.testing.assert_close(other.grad.cpu(), own.grad, rtol=0.05, atol=0.05)
