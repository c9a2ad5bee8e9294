"""npu_transpose_batchmatmul: what comes out, bit for bit, how it is split, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Row, assert_as_reference, constraints

from npusim import Code, Tensor, TensorSpec, devices, ops, run

pytestmark = pytest.mark.filterwarnings("ignore:npu_transpose_batchmatmul:UserWarning")

OP = "npu_transpose_batchmatmul"
A2, A3 = "ascend910b2", "ascend910_9391"
REFERENCE = ops.load(OP).reference
F16 = np.float16


def words(count: int, scale: float, offset: float = 0.0) -> Any:
    scales, points = np.full(count, scale, np.float32), np.full(count, offset, np.float32)
    return ops.load("npu_trans_quant_param").reference(scales, points)


# ---- values ----


def test_heads_lie_side_by_side() -> None:
    x = np.array([[[1, 2]], [[3, 4]]], F16)
    w = np.array([[[1, 0, 1], [0, 1, 1]], [[2, 0, 0], [0, 2, 1]]], F16)
    # head 0: (1, 2, 3), head 1: (6, 8, 4)
    y = run(OP, x, w, device=A2, timing=False).output
    assert y.tolist() == [[[1, 2, 3], [6, 8, 4]]]
    split = run(OP, x, w, batch_split_factor=2, device=A2, timing=False).output
    assert split.tolist() == [[[1, 2, 3]], [[6, 8, 4]]]


def test_int8_is_fitted_into_nine_bits_before_the_offset() -> None:
    x, w = np.full((1, 1, 16), 100, F16), np.full((1, 16, 1), 1, F16)
    y = run(OP, x, w, scale=words(1, 1.0, -200), device=A2, timing=False).output
    assert (y.dtype, y.shape, y.tolist()) == (np.int8, (1, 1, 1), [[[55]]])


@draws(40)
@given(
    device=st.sampled_from([A2, A3]),
    sizes=st.tuples(*[st.sampled_from([1, 2, 5, 16, 30])] * 2),
    k=st.sampled_from([1, 16, 33, 272, 528]),
    n=st.sampled_from([1, 16, 40, 128, 400]),
    is_turned=st.booleans(),
    is_swapped=st.booleans(),
    dtype=st.sampled_from([F16, BF16, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    sizes: tuple[int, int],
    k: int,
    n: int,
    is_turned: bool,
    is_swapped: bool,
    dtype: Any,
    seed: int,
) -> None:
    m, heads = sizes
    is_turned = is_turned and dtype is not np.float32
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 4, (m, heads, k) if is_turned else (heads, m, k)).astype(dtype)
    is_swapped = is_swapped and not is_turned
    w = rng.normal(0, 4, (heads, n, k) if is_swapped else (heads, k, n)).astype(dtype)
    more: dict[str, Any] = {"perm_x1": (1, 0, 2)} if is_turned else {}
    more |= {"perm_x2": [0, 2, 1]} if is_swapped else {}
    if seed % 3 == 0:
        more["batch_split_factor"] = heads
    elif seed % 3 == 1 and dtype is F16:
        more["scale"] = words(heads * n, 0.5, float(seed % 99))
    assert_as_reference(OP, x, w, device=device, **more)


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", [A2, A3])
def test_a_weight_in_fractals_is_begun_elsewhere_by_each_core(device: str) -> None:
    rng = np.random.default_rng(3)
    # Several cores share a head, and begin at different pieces of k.
    x = (rng.normal(0, 1, (3, 2, 2500)) * 2.0 ** rng.integers(-9, 9, (3, 2, 2500))).astype(F16)
    plain = rng.normal(0, 1, (2, 2500, 640)).astype(F16)
    w = Tensor.of(plain, "FRACTAL_NZ")
    order = {"perm_x1": (1, 0, 2)}
    found = assert_as_reference(OP, x, w, device=device, **order)
    in_order = REFERENCE(x, plain, **order)
    assert 0 < np.mean(found.output != in_order) < 0.5
    np.testing.assert_allclose(found.output.astype(float), in_order, rtol=2e-2, atol=2)


# ---- how it is split ----


@pytest.mark.parametrize(
    ("heads", "m", "k", "n", "tile", "cores"),
    [
        # The measured one: as many blocks as heads.
        (16, 5, 512, 128, (16, 128, 128), 16),
        # Left-over cores share the columns of a head: 6 of 24 each.
        (4, 16, 512, 512, (16, 96, 160), 24),
        # Large heads have the blocks of matmul.
        (18, 512, 512, 512, (128, 256, 64), 24),
        (64, 40, 64, 2048, (64, 512, 32), 24),
    ],
)
def test_the_blocks(
    heads: int, m: int, k: int, n: int, tile: tuple[int, int, int], cores: int
) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    shapes = TensorSpec((heads, m, k), "float16"), TensorSpec((heads, k, n), "float16")
    plan = operator.tile(spec, operator.check(spec, *shapes))
    assert plan is not None
    assert plan.block_dim == 24
    assert (plan.cube.base_m, plan.cube.base_n, plan.cube.base_k) == tile
    assert plan.cube.cores == cores


def test_the_measured_call_is_near_its_time() -> None:
    """12.57 us, mean of 305 calls in traces of a model on Atlas A3, standard deviation 1.24."""
    shapes = TensorSpec((16, 5, 512), "bfloat16"), TensorSpec((16, 512, 128), "bfloat16")
    time_us = run(OP, *shapes, device=A3, icache="cold").time_us
    assert time_us is not None
    assert 10 < time_us < 15


# ---- what is refused ----


def fractals(*shape: int) -> Tensor:
    return Tensor.of(ones(*shape), "FRACTAL_NZ")


BASE = {"input": ones(2, 3, 16), "weight": ones(2, 16, 32)}
TURNED, SWAPPED = {"perm_x1": (1, 0, 2)}, {"perm_x2": (0, 2, 1)}
WHY = "since the kernel PpMatmulEinSum, which takes such calls, is not simulated"

ROWS = [
    Row(TURNED | {name: ones(2, 2, 2, dtype=np.float32) for name in ("input", "weight")},
        f"perm_x1 must be (0, 1, 2) with float32, not (1, 0, 2), {WHY}; permute input",
        {name: ones(2, 2, 2, dtype=np.float32) for name in ("input", "weight")},
        code=Code.UNSUPPORTED),
    Row({"weight": ones(2, 16, 0)},
        "weight must not be empty, not of shape (2, 16, 0); leave the call out"),
    # axes
    Row({"perm_x1": (2, 1, 0)},
        "perm_x1 must be (0, 1, 2) or (1, 0, 2), not (2, 1, 0); permute the tensor first",
        TURNED | {"input": ones(3, 2, 16)}),
    Row({"perm_x2": (1, 0, 2)},
        "perm_x2 must be (0, 1, 2) or (0, 2, 1), not (1, 0, 2); permute the tensor first",
        SWAPPED | {"weight": ones(2, 32, 16)}),
    Row({"perm_y": (0, 1, 2)}, "perm_y must be (1, 0, 2), not (0, 1, 2); pass (1, 0, 2)",
        {"perm_y": [1, 0, 2]}),
    Row({"perm_x1": "012"},
        "perm_x1 must be a list of integers, not '012'; pass a list of them",
        {"perm_x1": [0, 1, 2]}),
    Row({"weight": ones(3, 16, 32)},
        "dimension 0 of weight must be heads of input, 2, not 3; pass input as (B, M, K) and "
        "weight as (B, K, N)"),
    Row(TURNED,
        "dimension 0 of weight must be heads of input, 3, not 2; pass input as (M, B, K) and "
        "weight as (B, K, N)", TURNED | {"input": ones(3, 2, 16)}),
    Row(SWAPPED,
        "dimension 2 of weight must be k of input, 16, not 32; pass input as (B, M, K) and "
        "weight as (B, N, K)", SWAPPED | {"weight": ones(2, 32, 16)}),
    Row({"weight": ones(1, 1, 65536), "input": ones(1, 1, 1)},
        "N must be at most 65535, not 65536; split the call"),
    Row({"weight": ones(65536, 1, 1), "input": ones(65536, 1, 1)},
        "the number of heads must be at most 65535, not 65536; split the call"),
    # layouts, and the vendor's other kernel
    Row({"weight": fractals(2, 16, 32)},
        "weight in FRACTAL_NZ must come as (B, K, N), with perm_x1 (1, 0, 2) and perm_x2 "
        "(0, 1, 2), not with (0, 1, 2) and (0, 1, 2); pass it through npu_format_cast(..., 2)",
        TURNED | {"input": ones(3, 2, 16), "weight": fractals(2, 16, 32)}),
    Row(TURNED | SWAPPED | {"input": ones(3, 2, 16), "weight": ones(2, 32, 16)},
        f"perm_x2 must be (0, 1, 2) with perm_x1 (1, 0, 2), not (0, 2, 1), {WHY}; transpose weight",
        TURNED | {"input": ones(3, 2, 16)}, code=Code.UNSUPPORTED),
    Row(TURNED | {"input": ones(1, 2, 32768), "weight": ones(2, 32768, 1)},
        f"a row of input, B * K, must have at most 65535 elements, not 65536, {WHY}; permute "
        "input, and pass perm_x1=(0, 1, 2)", code=Code.UNSUPPORTED),
    # slices and scales
    *(
        Row({"batch_split_factor": factor},
            f"batch_split_factor must divide the number of heads, 2, not be {factor}; pass 1",
            {"batch_split_factor": 2})
        for factor in (0, 3)
    ),
    Row({"scale": words(32, 1.0)},
        "scale must have shape (64,), a word for each head and column, not (32,); pass as many",
        {"scale": words(64, 1.0).view(np.uint64)}),
    Row({"scale": words(64, 1.0).reshape(2, 32)},
        "scale must have shape (64,), a word for each head and column, not (2, 32); reshape it",
        {"scale": words(64, 1.0)}),
    Row({"scale": words(64, 1.0), "batch_split_factor": 2},
        "batch_split_factor must be 1 with a scale, not 2; pass 1", {"scale": words(64, 1.0)}),
    Row({"scale": words(65536, 1.0), "input": ones(2, 1, 1), "weight": ones(2, 1, 32768)},
        "B * N must be at most 65535 with a scale, not 65536; split the call"),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


@pytest.mark.filterwarnings("default:npu_transpose_batchmatmul:UserWarning")
def test_sizes_that_the_document_excludes_are_warned_of() -> None:
    message = "K and N must be multiples of 16 by the document, not 8 and 32$"
    with pytest.warns(UserWarning, match=f"^{OP}: {message}"):
        run(OP, ones(2, 3, 8), ones(2, 8, 32), device=A2, timing=False)
