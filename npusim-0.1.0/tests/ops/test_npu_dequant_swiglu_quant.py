"""npu_dequant_swiglu_quant: its contract, its tilings, and every kernel against numpy.

Sources: ops-nn@e5c3fa9 quant/dequant_swiglu_quant; op-plugin@517f2e7 for what torch_npu checks.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from calls import ones
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import A2, A3, BF16, Array, Row, assert_as_reference, constraints, floats

from npusim import Code, OpError, TensorSpec, devices, ops, run
from npusim.ops.npu_dequant_swiglu_quant.tiling import segments_of

OP = "npu_dequant_swiglu_quant"
OPERATOR = ops.load(OP)
SPEC = devices.load("ascend910b2")
F32 = np.float32


def outputs(x: Array, device: str = "ascend910b2", **given: Any) -> tuple[Array, Array]:
    found: Any = run(OP, x, device=device, timing=False, **given).output
    y, scale = found
    return y, scale


def template(x: Any, **given: Any) -> str | None:
    found: str | None = OPERATOR.tile(SPEC, OPERATOR.check(SPEC, x, **given)).template  # type: ignore[union-attr]
    return found


# ---- contract ----

INTS = ones(6, 128, dtype=np.int32)
BASE = {"x": INTS, "weight_scale": ones(128)}
HALF = {"x": ones(6, 128, dtype=np.float16), "weight_scale": None}
COUNTS = np.array([2, 4], np.int64)
GROUPED = {"weight_scale": ones(2, 128), "group_index": COUNTS, "quant_mode": 1}
STATIC = {"quant_scale": ones(64), "quant_offset": ones(64)}
TILING = Code.TILING_ERROR

ROWS = [
    Row({"x": ones(128, dtype=np.int32)},
        "x must have at least two dimensions, not shape (128,); reshape it"),
    Row({"x": ones(6, 127, dtype=np.int32)},
        "the last dimension of x must be even, to be cut in half, not 127; pad both halves"),
    *(
        Row({"clamp_limit": limit},
            f"clamp_limit must be a finite number above 0, not {limit!r}; leave it out")
        for limit in (0.0, -1.0, float("inf"))
    ),
    Row({"glu_alpha": float("nan")}, "glu_alpha must be a finite number, not nan; leave it out",
        {"glu_alpha": -1.0}),
    # dequantisation
    Row({"weight_scale": None},
        "weight_scale must be given with x of int32, not None; pass a scale for each column",
        code=TILING),
    *(
        Row({"weight_scale": ones(*shape)},
            "weight_scale must have shape (128,) or (1, 128) for x of shape (6, 128), not "
            f"{shape}; pass a number for each column", {"weight_scale": ones(1, 128)}, code=TILING)
        for shape in ((64,), (6, 128), ())
    ),
    Row({"activation_scale": ones(5)},
        "activation_scale must have a number for each of the 6 rows of x, not shape (5,); pass "
        "shape (6, 1)", {"activation_scale": ones(6, 1)}, code=TILING),
    # quantisation
    Row({"quant_mode": 1, "quant_scale": ones(64), "quant_offset": ones(64)},
        "quant_offset must be None with quant_mode=1, which has none, not given; leave it out",
        {"quant_mode": 1, "quant_scale": ones(64)}, code=TILING),
    Row({"quant_scale": ones(64)},
        "quant_offset must be given with quant_mode=0 and a quant_scale, not None; pass zeros of "
        "its shape", STATIC, code=TILING),
    Row(STATIC | {"quant_offset": ones(1)},
        "quant_offset must have the shape of quant_scale, (64,), not (1,); pass one for each scale",
        {"quant_scale": ones(1), "quant_offset": ones(1)}, code=TILING),
    Row({"quant_mode": 1, "quant_scale": ones(128)},
        "quant_scale must have shape (64,), (1, 64) or (1,), not (128,); pass a scale for each "
        "column of y", {"quant_mode": 1, "quant_scale": ones(1, 64)}, code=TILING),
    # groups
    *(
        Row(GROUPED | {"group_index": np.ones(shape, np.int64)},
            f"group_index must have shape (groups,) with counts, or (groups, 2) with groups and "
            f"counts, not {shape}; pass the rows of each group", GROUPED, code=TILING)
        for shape in ((), (0,), (2, 3), (2, 2, 1))
    ),
    Row(GROUPED | HALF, "x must be int32 or bfloat16 with a group_index, not float16; convert it",
        GROUPED | HALF | {"x": ones(6, 128, dtype=BF16)}, code=TILING),
    Row(GROUPED | {"weight_scale": ones(128)},
        "weight_scale must have shape (2, 128) for x of shape (6, 128) and 2 groups, not (128,); "
        "pass a number for each column", GROUPED, code=TILING),
    Row(GROUPED | {"quant_mode": 0},
        "quant_scale must be given with quant_mode=0 and a group_index, not None; pass one for "
        "each group",
        GROUPED | {"quant_mode": 0, "quant_scale": ones(2), "quant_offset": ones(2)}, code=TILING),
    Row(GROUPED | {"quant_scale": ones(2)},
        "quant_scale must have shape (2, 64), not (2,); pass a scale for each column of y",
        GROUPED | {"quant_scale": ones(2, 64, dtype=BF16)}, code=TILING),
    Row(GROUPED | {"group_index": np.array([[1, 2], [0, 4]]), "bias": ones(2, 128)},
        "group_index must have shape (groups,) with a bias or a swiglu_mode, not (2, 2); pass the "
        "counts alone", GROUPED | {"bias": ones(2, 128)}, code=TILING),
    Row({"x": ones(6, 64, dtype=np.int32), "weight_scale": ones(2, 64), "group_index": COUNTS,
        "quant_mode": 1},
        "the last dimension of x must be a multiple of 128 with a group_index, not 64; pad both "
        "halves", GROUPED, code=TILING),
    Row(GROUPED | {"group_index": np.array([2, 5])},
        "group_index must count at most the 6 rows of x, not 7; pass the rows of each group",
        GROUPED | {"group_index": np.array([0, 5])}),
    Row(GROUPED | {"group_index": np.array([-2, 5])},
        "group_index must hold counts from 0 on, not [-2, 5]; pass the rows of each group",
        GROUPED),
    Row({"x": ones(2, 10624, dtype=np.int32), "weight_scale": ones(2, 10624),
        "group_index": np.array([1, 1]), "quant_mode": 1},
        "the last dimension of x must be at most 10496 with a group_index and these operands, not "
        "10624; call npu_swiglu and npu_dynamic_quant",
        {"x": ones(2, 10496, dtype=np.int32), "weight_scale": ones(2, 10496),
        "group_index": np.array([1, 1]), "quant_mode": 1}, code=TILING),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


def test_atlas_inference_has_no_such_kernel() -> None:
    message = (
        f"{OP}: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas inference, "
        "which has no such kernel; use npu_swiglu and npu_dynamic_quant [361001]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
        run(OP, **BASE, device="ascend310p3")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("dst_type", "int8", "None on Atlas A2, where no kernel reads it, not 'int8'"),
        ("round_mode", 1, "None on Atlas A2, where no kernel reads it, not 1"),
        ("activate_dim", -1, "None on Atlas A2, where no kernel reads it, not -1"),
        ("swiglu_mode", 2, "0 without a group_index, not 2, which its kernels do not read"),
    ],
)
def test_what_no_kernel_reads_is_warned_of(name: str, value: Any, text: str) -> None:
    with pytest.warns(UserWarning, match=re.escape(f"{OP}: {name} should be {text}; leave it out")):
        found = outputs(**BASE, **{name: value})
    for came, wanted in zip(found, outputs(**BASE), strict=True):
        np.testing.assert_array_equal(came, wanted)


# ---- templates ----


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


# dequant_swiglu_quant_tiling.cpp and _base.cpp, and what measured kernels are called.
@pytest.mark.parametrize(
    ("x", "given", "wanted", "rows", "columns", "cores"),
    [
        (spec(512, 2048, dtype="float16"), {}, "dynamic", 7, 1024, 48),
        (spec(127, 1024, dtype="bfloat16"), {}, "dynamic", 3, 512, 12),
        (spec(8, 20000, dtype="float16"), {}, "dynamic_long", 1, 7680, 8),
        (spec(96, 3072, dtype="int32"), {"activation_scale": spec(96)}, "performance", 1, 1536, 48),
        (spec(96, 1024, dtype="int32"), {"activation_scale": spec(96)}, "performance", 1, 512, 12),
        (spec(96, 3072, dtype="int32"), {}, "dynamic", 1, 1536, 48),
        (spec(96, 8704, dtype="int32"), {}, "dynamic", 1, 4352, 48),
        (spec(96, 8706, dtype="int32"), {}, "dynamic_long", 1, 4352, 48),
        (spec(96, 3072, dtype="int32"), {"quant_mode": 0}, "static", 1, 1536, 48),
    ],
    ids=str,
)  # fmt: skip
def test_rows_without_groups(
    x: TensorSpec, given: dict[str, Any], wanted: str, rows: int, columns: int, cores: int
) -> None:
    weight = {"weight_scale": spec(x.shape[-1])} if x.dtype == "int32" else {}
    plan: Any = OPERATOR.tile(SPEC, OPERATOR.check(SPEC, x, **{"quant_mode": 1} | weight | given))
    assert (plan.template, plan.row_step, plan.column_step) == (wanted, rows, columns)
    assert plan.block_dim == cores


def test_the_rows_of_every_group_are_shared_by_36_cores() -> None:
    x, weight = spec(1024, 2048, dtype="int32"), spec(2, 2048)
    counts = np.array([100, 36], np.int64)
    problem: Any = OPERATOR.check(SPEC, x, weight_scale=weight, group_index=counts, quant_mode=1)
    plan: Any = OPERATOR.tile(SPEC, problem)
    assert (plan.template, plan.row_step, plan.block_dim) == ("groups", 8, 36)
    segments = segments_of(problem, plan)
    assert segments[0] == ((0, 0, 3), (1, 100, 1))
    assert segments[33] == ((0, 99, 1), (1, 133, 1))
    assert segments[35] == ((1, 135, 1),)


def test_many_small_groups_stay_whole() -> None:
    x, given = spec(320, 256, dtype="int32"), {"weight_scale": spec(32, 256), "quant_mode": 1}
    given |= {"quant_scale": spec(32, 128), "group_index": np.full(32, 10)}
    problem: Any = OPERATOR.check(SPEC, x, **given)
    plan: Any = OPERATOR.tile(SPEC, problem)
    assert (plan.template, plan.block_dim) == ("whole_groups", 48)
    assert segments_of(problem, plan)[31:33] == (((31, 310, 10),), ())
    fewer = {name: value for name, value in given.items() if name != "quant_scale"}
    assert template(x, **fewer) == "groups"


# ---- values ----


def drawn(data: st.DataObject, groups: int, rows: int, width: int) -> tuple[Array, dict[str, Any]]:
    """x and the operands of a call; *groups* is 0 for one without a group_index."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    of_group = (groups,) if groups else ()
    is_dynamic, is_int32 = data.draw(st.booleans()), data.draw(st.booleans())
    given: dict[str, Any] = {"quant_mode": int(is_dynamic)}
    given["activate_left"] = data.draw(st.booleans())
    if is_int32:
        x = rng.integers(-(10**6), 10**6, (rows, width)).astype(np.int32)
        given["weight_scale"] = rng.uniform(0, 1e-5, (*of_group, width)).astype(F32)
        kind = data.draw(st.sampled_from((None, np.int32, F32, np.float16, BF16)))
        if kind is not None:
            given["bias"] = rng.integers(-9, 9, (*of_group, width)).astype(kind)
        if data.draw(st.booleans()):
            given["activation_scale"] = rng.uniform(0, 2, (rows, 1)).astype(F32)
    else:
        kind = BF16 if groups else data.draw(st.sampled_from((np.float16, BF16)))
        x = floats(rng, (rows, width), kind) / kind(16)
    if data.draw(st.booleans()) or (groups and not is_dynamic):
        is_one = data.draw(st.booleans()) and not (groups and is_dynamic)
        shape = ((groups,) if groups else (1,)) if is_one else (*of_group, width // 2)
        kind = data.draw(st.sampled_from((F32, np.float16, BF16))) if groups else F32
        given["quant_scale"] = rng.choice([0, 0.01, 0.5, 1, 2], shape).astype(kind)
        if not is_dynamic:
            given["quant_offset"] = rng.normal(0, 9, shape).astype(kind)
    return x, given


@draws(30)
@given(st.data())
def test_rows_equal_the_reference(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 110)), data.draw(st.integers(1, 90))
    x, given = drawn(data, 0, rows, 2 * columns)
    assert_as_reference(OP, device=data.draw(st.sampled_from(A2 + A3)), x=x, **given)


@draws(30)
@given(st.data())
def test_groups_equal_the_reference(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 3)) * 64
    groups = data.draw(st.integers(1, 5) | st.integers(32, 70))
    x, given = drawn(data, groups, rows, 2 * columns)
    rng = np.random.default_rng(rows)
    counts = rng.multinomial(data.draw(st.integers(0, rows)), np.ones(groups) / groups)
    given["group_index"] = counts.astype(np.int64)
    given["swiglu_mode"] = data.draw(st.integers(0, 2))
    if given["swiglu_mode"] == 0 and "bias" not in given and data.draw(st.booleans()):
        given["group_index"] = np.stack([rng.permutation(groups), counts], axis=1)
    assert_as_reference(OP, device=data.draw(st.sampled_from(A2 + A3)), x=x, **given)


LONG = np.random.default_rng(4).integers(-(10**6), 10**6, (3, 20000)).astype(np.int32)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("kind", [np.int32, BF16])
def test_rows_in_parts_equal_the_reference(mode: int, kind: Any) -> None:
    given: dict[str, Any] = {"quant_scale": np.linspace(0.5, 2, 10000, dtype=F32)}
    if mode == 0:
        given["quant_offset"] = np.linspace(-9, 9, 10000, dtype=F32)
    if kind is np.int32:
        given["weight_scale"] = np.linspace(1e-6, 1e-5, 20000, dtype=F32)
    x = LONG if kind is np.int32 else (LONG / 2.0**18).astype(kind)
    assert template(x, quant_mode=mode, **given) == ("dynamic_long" if mode else "static")
    assert_as_reference(OP, device="ascend910b2", x=x, quant_mode=mode, **given)


def test_many_groups_of_the_widest_rows_equal_the_reference() -> None:
    """More entries of the group_index than the buffer has room for next to such a row."""
    x = (np.arange(70 * 10496, dtype=np.int32) % 999).reshape(70, 10496)
    weight = np.linspace(1e-3, 1e-2, 300 * 10496, dtype=F32).reshape(300, -1)
    counts = np.bincount(np.arange(70) * 4, minlength=300)
    assert_as_reference(
        OP, device="ascend910b2", x=x, weight_scale=weight, group_index=counts, quant_mode=1
    )


A = [-3, -1.5, -0.5, 0, 0.25, 1, 2, 4]
B = [1, 2, -1, 0.5, -2, 3, 1.5, -1]


@pytest.mark.parametrize("in_groups", [False, True])
def test_one_scale_of_zero(in_groups: bool) -> None:
    """The kernel of groups inverts no zero."""
    x, given = np.full((1, 128), 2, BF16), {"quant_scale": ones(1) * 0, "quant_offset": ones(1)}
    if in_groups:
        given["group_index"] = np.array([1])
    y, _ = outputs(x, **given)
    # 2 / (1 + exp(-2)) x 2 = 3.52
    assert set(y.ravel().tolist()) == ({5} if in_groups else {127})
    assert_as_reference(OP, device="ascend910b2", x=x, **given)


@pytest.mark.parametrize("device", every(A2 + A3))
@pytest.mark.parametrize("in_groups", [False, True])
def test_bits_that_were_worked_out_apart(device: str, in_groups: bool) -> None:
    zeros = [0] * 56
    x = np.array([[*A, *zeros, *B, *zeros]], BF16)
    given = {"group_index": np.array([1])} if in_groups else {}
    y, scale = outputs(x, device, activate_left=True, quant_mode=1, **given)
    assert y[0, :8].tolist() == [-5, -18, 6, 0, -9, 71, 85, -127]
    assert f"{scale.view(np.uint32)[0]:08X}" == "3CFD6001"


def test_special_rows() -> None:
    x = np.ones((4, 128), np.float16)
    x[1, 0], x[2, 0], x[3] = np.inf, np.nan, 0
    y, scale = outputs(x, quant_mode=1)
    assert y[0].tolist() == [127] * 64
    assert not y[1:].any()
    assert np.isinf(scale[1])
    assert np.isnan(scale[2])
    assert scale[3] == 0


def test_what_nobody_writes_is_zero() -> None:
    x = np.ones((6, 128), BF16)
    y, scale = outputs(x, quant_mode=1, group_index=np.array([2, 3]))
    assert y[4].all()
    assert scale[4] != 0
    assert not y[5].any()
    assert scale[5] == 0
    assert not outputs(x, quant_mode=0)[1].any()
