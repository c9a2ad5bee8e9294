"""npu_grouped_matmul_swiglu_quant: what comes out, bit for bit, how it is split, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Row, assert_all_same, assert_as_reference, constraints

from npusim import Tensor, TensorSpec, devices, ops, run
from npusim.data.dtypes import pack_int4

OP = "npu_grouped_matmul_swiglu_quant"
A2, A3 = "ascend910b2", "ascend910_9391"
REFERENCE = ops.load(OP).reference
F32 = np.float32


def fractals(numbers: Any) -> Tensor:
    return Tensor.of(np.ascontiguousarray(numbers, np.int8), "FRACTAL_NZ")


def padded(numbers: Any, *shape: int) -> Any:
    """*numbers* in the first corner of zeros."""
    found = np.zeros(shape, np.int8)
    found[tuple(slice(size) for size in np.shape(numbers))] = numbers
    return found


def outputs(*args: Any, device: str = A2) -> tuple[Any, ...]:
    return tuple(run(OP, *args, device=device, timing=False).outputs.values())


# ---- values ----


def test_a_vector_worked_out_apart() -> None:
    x = [[10, -20, 30, 40], [7, 0, -9, 127]]
    weight = [[3, -2, 1, 5], [4, 4, -3, 2], [-6, 1, 2, 2], [1, -1, 7, 3]]
    # Columns 0 and 1 of the left half, and of the right half, which begins at 16.
    w = padded(weight, 16, 32)
    w[:, 16:18], w[:, 2:4] = w[:, 2:4].copy(), 0
    scale = np.zeros((1, 32), F32)
    scale[0, [0, 1, 16, 17]] = 0.02, 0.03, 0.05, 0.011
    tokens = np.array([0.1, 0.03], F32)
    y, scales, offset = outputs(padded(x, 2, 16), fractals(w[None]), np.array([2]), scale, tokens)
    assert y[:, :2].tolist() == [[-127, -12], [127, -12]]
    assert (y[:, 2:] == 0).all()
    np.testing.assert_allclose(scales, [0.0024911249, 0.00066646282], rtol=1e-6)
    assert (offset.shape, float(offset)) == ((), 0.0)


def test_numbers_are_rounded_to_float16_before_they_are_whole() -> None:
    """exp(-1000) is nothing next to 1, so s is what stands in the right half, times 1000."""
    scale = np.full((1, 64), 1000, F32)
    scale[0, 32:36] = 127, 101.49, 33.495, 101.4
    w = padded(np.ones((1, 36)), 16, 64)[None]
    y, scales, _ = outputs(padded([[1]], 1, 16), fractals(w), np.array([1]), scale, np.ones(1, F32))
    assert y[0, :4].tolist() == [127, 102, 34, 101]
    assert scales.tolist() == [1000.0]


def test_rows_without_a_group_and_rows_of_zeros_are_zero() -> None:
    x, w = np.zeros((3, 16), np.int8), np.ones((2, 16, 32))
    x[2] = 5
    y, scales, _ = outputs(x, fractals(w), np.array([1, 2]), np.ones((2, 32), F32), np.ones(3, F32))
    assert not y.any()
    assert not scales.any()


@draws(20)
@given(
    device=st.sampled_from([A2, A3]),
    counts=st.lists(st.sampled_from([0, 1, 2, 30, 140]), min_size=1, max_size=5),
    more=st.sampled_from([0, 3]),
    k=st.sampled_from([16, 64, 528]),
    n=st.sampled_from([32, 96, 512, 1056]),
    dtype=st.sampled_from([np.float16, BF16, F32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str, counts: list[int], more: int, k: int, n: int, dtype: Any, seed: int
) -> None:
    rng, m, experts = np.random.default_rng(seed), sum(counts) + more, len(counts)
    if not m:
        return
    tokens = rng.random(m, F32) * F32(0.02)
    tokens[0] = [np.nan, np.inf, 0, -0.01, 1e30][seed % 5]
    args = (
        rng.integers(-128, 128, (m, k)).astype(np.int8),
        fractals(rng.integers(-128, 128, (experts, k, n))),
        np.cumsum(counts),
        (rng.normal(0, 1, (experts, n)) * 1e-2).astype(dtype),
        tokens,
    )
    assert_all_same(outputs(*args, device=device), REFERENCE(*args))


@draws(10)
@given(
    device=st.sampled_from([A2, A3]),
    counts=st.lists(st.sampled_from([0, 1, 2, 70]), min_size=1, max_size=4).filter(any),
    sizes=st.sampled_from([(32, 1), (64, 2), (96, 2), (64, 4), (256, None), (512, 2), (768, 3)]),
    n=st.sampled_from([64, 320, 1088]),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_of_int4_equal_the_reference(
    device: str, counts: list[int], sizes: tuple[int, int], n: int, seed: int
) -> None:
    (k, groups), rng = sizes, np.random.default_rng(seed)
    experts, m = len(counts), sum(counts) + seed % 2
    numbers = rng.integers(-8, 8, (experts, k, n)).astype(np.int8)
    weight = pack_int4(numbers).view(np.int32).reshape(experts, k, -1)
    each = (n,) if groups is None else (groups, n)
    scale = rng.random((experts, *each), F32) * F32(0.01)
    words = scale.view(np.uint32).astype(np.uint64)
    # Some sums are shifted by one to four bits before they are scaled.
    words |= rng.choice([0, 0x10, 0x13], words.shape).astype(np.uint64) << np.uint64(32)
    args = (
        rng.integers(-128, 128, (m, k)).astype(np.int8),
        Tensor.of(weight, "FRACTAL_NZ"),
        np.cumsum(counts),
        words,
        rng.random(m, F32),
    )
    bias = rng.normal(0, 9, (experts, n)).astype(F32)
    assert_as_reference(OP, *args, bias=bias, device=device)


@pytest.mark.nightly
def test_chunks_equal_the_reference() -> None:
    """More than twice 32 MiB of sums: the vector cores begin before all of them are there."""
    rng = np.random.default_rng(1)
    m, n = 2200, 8192
    args = (
        rng.integers(-128, 128, (m, 16)).astype(np.int8),
        fractals(rng.integers(-128, 128, (3, 16, n))),
        np.array([1000, 1030, 2190]),
        (rng.random((3, n)) * 1e-2).astype(F32),
        rng.random(m, F32),
    )
    found = assert_as_reference(OP, *args, device=A2)
    assert found.template == "chunks"


# ---- how it is split ----


def specs(m: int, k: int, n: int, experts: int) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec((m, k), "int8"), TensorSpec((experts, k, n), "int8", "FRACTAL_NZ"),
        TensorSpec((experts,), "int64"), TensorSpec((experts, n), "float32"),
        TensorSpec((m,), "float32"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "template", "chunk", "rows"),
    [
        (64, 1024, "whole", 64, 20),
        (64, 2048, "whole", 64, 9),
        (64, 4096, "whole", 64, 4),
        (64, 7168, "whole", 64, 1),
        (64, 512, "whole", 64, 40),
        (64, 10240, "whole", 64, 1),
        # 32 MiB / 4 / 4096 = 2048 rows, twice
        (4096, 4096, "whole", 4096, 4),
        (4097, 4096, "chunks", 2048, 4),
    ],
)
def test_the_split(m: int, n: int, template: str, chunk: int, rows: int) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    plan = operator.tile(spec, operator.check(spec, *specs(m, 64, n, 2)))
    assert plan is not None
    assert (plan.template, plan.chunk_rows, plan.loaded_rows) == (template, chunk, rows)
    assert (plan.block_dim, plan.is_mix) == (24, True)
    assert "assumed to have an equal share" in str(plan.reason)


def test_equal_shares_take_as_long_as_their_list() -> None:
    args = specs(96, 512, 1024, 4)
    ends = np.array([24, 48, 72, 96])
    times = [run(OP, *args[:2], groups, *args[3:], device=A2).time_us for groups in (args[2], ends)]
    assert times[0] == times[1]


# ---- what is refused ----


def ones(*shape: int, dtype: Any = np.int8) -> Any:
    return np.ones(shape, dtype)


BASE = {
    "x": ones(3, 32), "weight": fractals(ones(2, 32, 64)), "group_list": np.array([1, 3]),
    "weight_scale": ones(2, 64, dtype=F32), "x_scale": ones(3, dtype=F32),
}  # fmt: skip
INT4 = {
    "weight": Tensor.of(ones(2, 32, 8, dtype=np.int32), "FRACTAL_NZ"),
    "weight_scale": np.full((2, 1, 64), 0x3C000000), "bias": ones(2, 64, dtype=F32),
}  # fmt: skip
ROWS = [
    Row(INT4 | {"bias": ones(2, 32, dtype=F32)},
        "bias must have shape (2, 64), not (2, 32); pass 8 times the sums of the scaled columns",
        INT4),
    Row(INT4 | {"weight_scale": ones(2, 2, 32, dtype=np.int64)},
        "weight_scale must have shape (2, 64) or (2, 2, 64) with int4, not (2, 2, 32); pass a word "
        "for each expert and column, or for each group of k as well", INT4),
    Row(INT4 | {"weight_scale": ones(2, 4, 64, dtype=np.int64)},
        "weight_scale must have a number of groups that divides k = 32 into multiples of 16, not "
        "4; pass a word for each of larger groups", INT4),
    Row(INT4 | {"weight": Tensor.of(ones(2, 32, 12, dtype=np.int32), "FRACTAL_NZ")},
        "k must be a multiple of 16 and n of 64, not 32 and 96; pad both matrices", INT4),
    Row({"weight": fractals(ones(2, 64, 32)).T},
        "weight must be contiguous, not a transposed view; cast the contiguous matrices with "
        "npu_format_cast(..., 29)"),
    Row({"x": ones(0, 32)}, "x must not be empty, not of shape (0, 32); leave the call out"),
    Row({"x": ones(3, 64)},
        "weight must have as many rows as x has columns, 64, not 32; pass x as (m, k) and weight "
        "as (e, k, n)"),
    Row({"x": ones(3, 33), "weight": fractals(ones(2, 33, 64))},
        "k must be a multiple of 16 and n of 32, not 33 and 64; pad both matrices"),
    Row({"weight": TensorSpec((2, 32, 10272), "int8", "FRACTAL_NZ")},
        "k must be at most 65535 and n at most 10240, not 32 and 10272; call npu_grouped_matmul "
        "and npu_dequant_swiglu_quant"),
    Row({"x": TensorSpec((3, 20000), "int8"),
         "weight": TensorSpec((2, 20000, 8), "int32", "FRACTAL_NZ"),
         "weight_scale": INT4["weight_scale"], "bias": INT4["bias"]},
        "k must be at most 19999 and n at most 10240, not 20000 and 64; call npu_grouped_matmul "
        "and npu_dequant_swiglu_quant"),
    Row({"group_list": np.array([3])},
        "group_list must have shape (2,), not (1,); pass the end of each group"),
    Row({"weight_scale": ones(64, dtype=F32)},
        "weight_scale must have shape (2, 64), not (64,); pass a number for each expert and column",
        {"weight_scale": ones(2, 64, dtype=BF16)}),
    Row({"x_scale": ones(1, dtype=F32)},
        "x_scale must have shape (3,), not (1,); pass a number a row"),
    Row({"group_list": np.array([2, 1])},
        "group_list must not decrease; pass the row after the last of each group, in order",
        {"group_list": np.array([0, 0])}),
    Row({"group_list": np.array([1, 4])},
        "group_list must end at most at 3, the rows of x, not at 4; pass the groups of this x",
        {"group_list": np.array([1, 1])}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
