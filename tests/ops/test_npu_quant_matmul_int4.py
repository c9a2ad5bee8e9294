"""npu_quant_matmul of int8 times int4, and of int4 with scales of groups: values and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import NEW, RNG, Row, assert_as_reference, constraints
from weight_calls import Kind, gm_matrix

from npusim import Code, TensorSpec, devices, ops, run
from npusim.data.dtypes import pack_int4

OP = "npu_quant_matmul"
A2, A3 = "ascend910b2", "ascend910_9391"
F32, F16 = np.float32, np.float16


def int4(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(-8, 8, shape).astype(np.int8)


def packed(numbers: Any, layout: str = "ND") -> Any:
    """int4 `(rows, columns)` in int32, or with a T the transposed view of its transpose."""
    return gm_matrix(numbers, Kind(weight="int4", layout=layout))


def words(scale: Any) -> Any:
    """Scales as the low words of uint64, the high ones zero."""
    return np.asarray(scale, F32).view(np.uint32).astype(np.uint64)


def mixed_call(
    rng: np.random.Generator, m: int, k: int, n: int, layout: str, *, grouped: bool
) -> dict[str, Any]:
    """int8 times int4, with the offset that the low digits' 8 asks for, and a little more."""
    weight = int4(rng, k, n)
    scale = rng.random((k // 256, n) if grouped else (1, n), F32) * F32(0.01)
    of_k = np.repeat(scale, k // len(scale), axis=0)
    offset = (8.0 * (weight * of_k).sum(axis=0)).astype(F32)
    return {
        "x1": rng.integers(-128, 128, (m, k)).astype(np.int8),
        "x2": packed(weight, layout),
        "scale": words(scale if grouped else scale[0]),
        "offset": offset,
        "pertoken_scale": rng.random((m, 1) if grouped else m, F32),
        "group_sizes": [0, 0, 256] if grouped else None,
    }


def grouped_call(rng: np.random.Generator, m: int, k: int, n: int) -> dict[str, Any]:
    return {
        "x1": pack_int4(int4(rng, m, k)).view(np.int32).reshape(m, -1),
        "x2": packed(int4(rng, k, n), "NDT"),
        "scale": rng.random((k // 256, n), F32),
        "offset": rng.normal(0, 3, (k // 256, n)).astype(F16),
        "pertoken_scale": rng.random((m, 1), F32),
        "group_sizes": (0, 0, 256),
    }


# ---- values ----


def test_every_int8_is_its_two_digits() -> None:
    """16 hi + lo, and 8 that the offset adds: x1 comes back through a weight of ones."""
    x1 = np.arange(-128, 128, dtype=np.int8).reshape(-1, 1).repeat(2, axis=1)
    x1[:, 1] = 0
    weight = packed(np.array([[1] * 8, [0] * 8], np.int8))
    call = {"x1": x1, "x2": weight, "scale": words(np.ones(8)), "offset": np.full(8, 8, F32)}
    more = {"pertoken_scale": np.ones(256, F32), "output_dtype": "float16"}
    y = run(OP, **call, **more, device=A2, timing=False).output
    np.testing.assert_array_equal(y, x1[:, :1].repeat(8, axis=1))


def test_groups_are_added_up_in_float16() -> None:
    """2048 + 1 is 2048 in fp16, and so is each group of 1 that follows; exactly it is 2051."""
    x1, weight = np.zeros((1, 1024), np.int8), np.zeros((1024, 8), np.int8)
    x1[0, ::256], weight[::256] = 1, 1
    scale = np.ones((4, 8), F32)
    scale[0] = 2048.0
    call = {"x1": x1, "x2": packed(weight), "scale": words(scale)}
    # lo = 1 - 8 = -7 for the ones, -8 for zeros, which the weight drops; hi = 0.
    more = {"offset": np.zeros(8, F32), "pertoken_scale": np.ones((1, 1), F32)}
    y = run(OP, **call, **more, output_dtype="float16", group_sizes=[0, 0, 256], device=A2,
            timing=False).output  # fmt: skip
    # -7 * 2048 = -14336; a step of fp16 there is 8, so that -7 more round to -14344, and so on.
    assert y.tolist() == [[-14336.0 - 3 * 8] * 8]


def test_offsets_of_groups_leave_the_sum_of_a_row() -> None:
    x1, weight = np.ones((1, 1024), np.int8), np.full((1024, 256), 2, np.int8)
    call = {"x1": pack_int4(x1).view(np.int32).reshape(1, -1), "x2": packed(weight, "NDT")}
    scale, offset = np.ones((4, 256), F32), np.full((4, 256), 3, F16)
    # (2 - 3) * 1024, times 0.5
    more = {"scale": scale, "offset": offset, "pertoken_scale": np.full((1, 1), 0.5, F32)}
    y = run(OP, **call, **more, output_dtype="bfloat16", group_sizes=[0, 0, 256], device=A2,
            timing=False).output  # fmt: skip
    assert set(y.astype(float).ravel()) == {-512.0}


CHIPS, DTYPES = st.sampled_from([A2, A3]), st.sampled_from(["float16", "bfloat16"])
COLUMNS = st.sampled_from([8, 64, 200, 520])
APART = st.builds(
    mixed_call, RNG, st.sampled_from([1, 2, 17, 70]), st.sampled_from([2, 64, 130, 530]), COLUMNS,
    st.sampled_from(["ND", "NZ"]), grouped=st.just(False),
) | st.builds(
    mixed_call, RNG, st.sampled_from([1, 70]), st.sampled_from([8, 72, 136, 536]), COLUMNS,
    st.sampled_from(["NDT", "NZT"]), grouped=st.just(False),
)  # fmt: skip
IN_GROUPS_OF_K = st.builds(
    mixed_call, RNG, st.sampled_from([1, 9, 40]), st.sampled_from([256, 512, 1280]),
    st.sampled_from([8, 264, 1040]), st.just("ND"), grouped=st.just(True),
)  # fmt: skip


@draws(40)
@given(device=CHIPS, call=APART | IN_GROUPS_OF_K, dtype=DTYPES, factor=st.sampled_from([1, 1e30]))
def test_int8_times_int4_equals_the_reference(
    device: str, call: dict[str, Any], dtype: str, factor: float
) -> None:
    with np.errstate(over="ignore"):
        call["scale"] = words(call["scale"].astype(np.uint32).view(F32) * factor)
    found = assert_as_reference(OP, **call, output_dtype=dtype, device=device)
    assert found.template == "msd"


@pytest.mark.sample(3)
@pytest.mark.parametrize("device", [A2, A3])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1024, 256), (3, 2048, 512), (131, 1024, 512)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_groups_of_int4_equal_the_reference(
    device: str, m: int, k: int, n: int, dtype: str
) -> None:
    call = grouped_call(np.random.default_rng(m), m, k, n) | {"output_dtype": dtype}
    found = assert_as_reference(OP, **call, device=device)
    assert found.template == "pergroup"


def test_the_digits_are_near_the_exact_product() -> None:
    rng = np.random.default_rng(4)
    call = mixed_call(rng, 33, 512, 64, "ND", grouped=True) | {"output_dtype": "float16"}
    y = run(OP, **call, device=A2, timing=False).output.astype(float)
    nibbles = (call["x2"][..., None] >> np.arange(0, 32, 4)) & 15
    weight = ((nibbles ^ 8) - 8).reshape(512, 64)
    scale = np.repeat(call["scale"].astype(np.uint32).view(F32), 256, axis=0)
    exact = call["x1"].astype(float) @ (weight * scale.astype(float)) * call["pertoken_scale"]
    assert np.abs(y - exact).max() < 0.01 * np.abs(exact).max()


# ---- how it is split ----


@pytest.mark.parametrize(
    ("m", "k", "n", "grouped", "tile"),
    [
        (1, 4096, 4096, False, (16, 256, 256)),
        (1024, 4096, 4096, False, (128, 256, 256)),
        # 2 m / 16 = 1 row of blocks: 4096 / 24 columns a core, the next of 64, 128, 256 and 512
        (8, 4096, 4096, True, (16, 256, 128)),
        (64, 4096, 4096, True, (16, 512, 128)),
    ],
)
def test_the_blocks(m: int, k: int, n: int, grouped: bool, tile: tuple[int, int, int]) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    problem = operator.check(
        spec, TensorSpec((m, k), "int8"), TensorSpec((k, n // 8), "int32"),
        TensorSpec((k // 256, n) if grouped else (n,), "uint64"),
        offset=TensorSpec((n,), "float32"),
        pertoken_scale=TensorSpec((m, 1) if grouped else (m,), "float32"),
        output_dtype="bfloat16", group_sizes=[0, 0, 256 * grouped],
    )  # fmt: skip
    plan = operator.tile(spec, problem)
    assert plan is not None
    assert (plan.cube.base_m, plan.cube.base_n, plan.cube.base_k) == tile
    assert (plan.block_dim, plan.is_mix, plan.template) == (24, True, "msd")


# ---- what is refused ----


MADE = np.random.default_rng(0)
MIXED = mixed_call(MADE, 3, 256, 64, "ND", grouped=False) | {"output_dtype": "float16"}
IN_GROUPS = mixed_call(MADE, 3, 512, 64, "ND", grouped=True) | {"output_dtype": "float16"}
INT4 = grouped_call(MADE, 3, 1024, 256) | {"output_dtype": "float16"}
WITH = " with int8 times packed int4"
OF = " with groups of int4"
MIXED_ROWS = [
    Row({"pertoken_scale": None}, "pertoken_scale must be given, not None; pass a tensor",
        code=Code.NULL_POINTER),
    Row({"offset": None}, "offset must be given, not None; pass a tensor", code=Code.NULL_POINTER),
    Row({"scale": MIXED["scale"].reshape(1, 64)},
        "scale must have shape (64,), not (1, 64); reshape it"),
    Row({"offset": np.ones(1, F32)},
        "offset must have shape (64,), not (1,); pass as many elements"),
    Row({"pertoken_scale": np.ones((3, 1), F32)},
        "pertoken_scale must have shape (3,), not (3, 1); reshape it"),
    Row({"template": "basic"},
        "template must be msd on Atlas A2 and Atlas A3 with int8 times packed int4, not 'basic'; "
        "leave it out to get the vendor's choice", {"template": "msd"}),
    Row({"x1": np.ones((3, 255), np.int8)},
        "x2 must have as many rows as x1 has columns, 255, not 256; pass x1 as (m, k), x2 as (k, "
        "n / 8) or as the transpose of (n, k / 8)"),
    Row({"x1": np.ones((2, 3, 256), np.int8)},
        f"x1 and x2 must have two dimensions{WITH}; pass matrix by matrix"),
    Row({"x1": np.ones((256, 3), np.int8).T},
        f"x1 must not be transposed{WITH}; make it contiguous"),
    Row({"x1": np.ones((3, 255), np.int8), "x2": np.ones((255, 8), np.int32)},
        f"k and n must be even and k at most 29576{WITH}, not 255 and 64; pad the matrices, or "
        "split them"),
]  # fmt: skip
GROUP_ROWS = [
    Row({"x1": np.ones((3, 500), np.int8), "x2": np.ones((500, 8), np.int32)},
        f"k must be a multiple of 256{WITH} and scales of groups, not 500; pad both matrices"),
    Row({"x2": np.ones((64, 64), np.int32).T},
        f"x2 must be (k, n / 8) in ND{WITH} and scales of groups, not transposed; make it so"),
    Row({"scale": MIXED["scale"]},
        "scale must have shape (2, 64), not (64,); pass as many elements"),
]  # fmt: skip
INT4_ROWS = [
    Row({"offset": np.ones(256, F16)},
        "offset must have shape (4, 256), not (256,); pass as many elements"),
    Row({"x1": np.ones((3, 64), np.int32), "x2": np.ones((256, 64), np.int32).T},
        f"k must be a multiple of 1024 and n of 256{OF}, not 512 and 256; pad both matrices"),
    Row({"x2": np.ones((1024, 32), np.int32)},
        f"x2 must be the transposed view of (n, k / 8){OF}, not contiguous; turn it"),
]  # fmt: skip
test_constraints_of_int8_by_int4 = constraints(OP, MIXED, MIXED_ROWS, NEW)
test_constraints_of_scales_of_groups = constraints(OP, IN_GROUPS, GROUP_ROWS, NEW)
test_constraints_of_int4 = constraints(OP, INT4, INT4_ROWS, NEW)
