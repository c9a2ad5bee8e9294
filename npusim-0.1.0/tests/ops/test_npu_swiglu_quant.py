"""npu_swiglu_quant: its contract, its split, and the kernel against numpy.

Sources: ops-nn@e5c3fa9 quant/swi_glu_quant; op-plugin@517f2e7 for what torch_npu checks.
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

OP = "npu_swiglu_quant"
OPERATOR = ops.load(OP)
F32 = np.float32


def outputs(x: Array, device: str = "ascend910b2", **given: Any) -> tuple[Array, Array]:
    found: Any = run(OP, x, device=device, timing=False, **given).output
    y, scale = found
    return y, scale


# ---- contract ----

HALF = ones(6, 64, dtype=np.float16)
BASE = {"x": HALF, "smooth_scales": ones(1, 32), "quant_mode": 1}
ENDS = np.array([2, 6], np.int32)
GROUPED = {"smooth_scales": ones(2, 32), "group_index": ENDS}
STATIC = {"quant_mode": 0, "smooth_scales": ones(1), "offsets": ones(1)}
TILING = Code.TILING_ERROR

ROWS = [
    Row({"x": ones(6, 63)},
        "the last dimension of x must be even, to be cut in half, not 63; pad both halves"),
    Row({"x": ones(1, 8194)},
        "the last dimension of x must be at most 8192, not 8194; call npu_swiglu and "
        "npu_dynamic_quant", {"x": ones(1, 8192), "smooth_scales": ones(1, 4096)}),
    Row({"x": ones(6, 66), "dst_type": "quint4x2"},
        "the last dimension of x must be a multiple of 4 with dst_type='quint4x2', not 66; pad "
        "both halves", {"dst_type": "quint4x2"}),
    *(
        Row({"smooth_scales": ones(*shape)},
            f"smooth_scales must have shape (1, 32) with quant_mode=1, not {shape}; pass the "
            f"scales of each group", code=TILING)
        for shape in ((32,), (1,), (2, 32), (1, 64))
    ),
    Row(GROUPED | {"smooth_scales": ones(1, 32)},
        "smooth_scales must have shape (2, 32) with quant_mode=1, not (1, 32); pass the scales of "
        "each group", GROUPED, code=TILING),
    Row(GROUPED | {"group_index": ones(1025, dtype=np.int32)},
        "group_index must have shape (groups,) with 1 to 1024 of them, not (1025,); pass an entry "
        "for each group", GROUPED, code=TILING),
    *(
        Row(STATIC | {"offsets": offsets},
            f"offsets must have the shape of smooth_scales, (1,), with quant_mode=0, not {came}; "
            f"pass an offset for each scale", STATIC)
        for offsets, came in ((None, None), (ones(1, 32), (1, 32)))
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


def test_atlas_inference_has_no_such_kernel() -> None:
    message = (
        f"{OP}: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas inference, "
        "which has no such kernel; use npu_swiglu and npu_dynamic_quant [361001]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
        run(OP, **BASE, device="ascend310p3")


def test_offsets_that_no_kernel_reads_are_warned_of() -> None:
    message = f"{OP}: offsets should be None with quant_mode=1, where no kernel reads them; "
    with pytest.warns(UserWarning, match=re.escape(message)):
        outputs(**BASE, offsets=ones(1, 32))


# ---- split ----


# Rows of each core, and of a piece: 7854 elements in 25 bytes each (swi_glu_quant_tiling.cpp).
@pytest.mark.parametrize(
    ("shape", "dtype", "first", "last", "piece"),
    [
        ((256, 512), "bfloat16", 6, 5, 6),
        ((4096, 4096), "bfloat16", 86, 85, 3),
        ((20000, 62), "float32", 417, 416, 245),
        ((3, 8192), "float16", 1, 1, 1),
    ],
)
def test_split(shape: tuple[int, int], dtype: str, first: int, last: int, piece: int) -> None:
    spec, smooth = devices.load("ascend910b2"), TensorSpec((1, shape[1] // 2), "float32")
    problem = OPERATOR.check(spec, TensorSpec(shape, dtype), smooth_scales=smooth, quant_mode=1)
    plan: Any = OPERATOR.tile(spec, problem)
    assert (plan.rows_of_core[0], plan.rows_of_core[-1], plan.row_step) == (first, last, piece)
    assert plan.block_dim == min(48, shape[0])


# ---- values ----


@draws(40)
@given(st.data())
def test_a_tiled_run_equals_the_reference(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, columns = data.draw(st.integers(1, 110)), 2 * data.draw(st.integers(1, 70))
    kind, groups = data.draw(st.sampled_from((np.float16, BF16, F32))), data.draw(st.integers(1, 9))
    x = floats(rng, (rows, 2 * columns), kind) / kind(16)
    given: dict[str, Any] = {
        "quant_mode": data.draw(st.integers(0, 1)),
        "activate_left": data.draw(st.booleans()),
        "dst_type": data.draw(st.sampled_from((None, "int8", "quint4x2"))),
    }
    if data.draw(st.booleans()):
        ends = np.sort(rng.integers(0, rows, groups, endpoint=True))
        in_counts = data.draw(st.booleans())
        counts = np.diff(ends, prepend=0)
        given["group_index"] = (counts if in_counts else ends).astype(np.int32)
        given["group_list_type"] = int(in_counts)
    else:
        groups = 1
    is_whole = given["quant_mode"] == 1 or data.draw(st.booleans())
    shape = (groups, columns) if is_whole else (groups,)
    given["smooth_scales"] = floats(rng, shape, F32) / F32(50)
    if given["quant_mode"] == 0:
        given["offsets"] = floats(rng, shape, F32)
    assert_as_reference(OP, device=data.draw(st.sampled_from(A2 + A3)), x=x, **given)


A = [-3, -1.5, -0.5, 0, 0.25, 1, 2, 4]
B = [1, 2, -1, 0.5, -2, 3, 1.5, -1]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_bits_that_were_worked_out_apart(device: str) -> None:
    x = np.array([[*B, *A]], np.float16)
    y, scale = outputs(x, device, smooth_scales=ones(1, 8), quant_mode=1)
    assert y[0].tolist() == [-5, -18, 6, 0, -9, 71, 85, -127]
    assert f"{scale.view(np.uint32)[0]:08X}" == "4201537B"


def test_special_rows_and_those_of_no_group() -> None:
    x = np.ones((5, 64), F32)
    x[1, 0], x[2, 0], x[3] = np.inf, np.nan, 0
    halves = {"smooth_scales": ones(1, 32) / 2, "quant_mode": 1}
    y, scale = outputs(x, group_index=np.array([4], np.int32), **halves)
    assert set(y[[0, 4]].ravel().tolist()) == {127}
    assert not y[1:4].any()
    # The last row is not halved.
    assert scale[0] == 2 * scale[4]
    assert scale[1] == 0
    assert np.isnan(scale[2])
    assert np.isinf(scale[3])
