"""npu_dynamic_quant_asymmetric: what differs from npu_dynamic_quant, and the kernels against numpy.

Sources: ops-nn@e5c3fa9 quant/dynamic_quant_v2.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from chips import every
from draws import draws
from hypothesis import given
from op_calls import (
    A2,
    A3,
    BF16,
    INFERENCE,
    Array,
    DrawnCall,
    Row,
    assert_as_reference,
    constraints,
    dynamic_calls,
    rows_of_floats,
)

from npusim import Code, OpError, TensorSpec, devices, ops, run

OP = "npu_dynamic_quant_asymmetric"
OPERATOR = ops.load(OP)


def outputs(x: Array, device: str = "ascend910b2", **given: Any) -> tuple[Array, Array, Array]:
    found: Any = run(OP, x, device=device, timing=False, **given).output
    y, scale, offset = found
    return y, scale, offset


# ---- contract ----

BASE = {"x": ones(6, 4)}
LEAVE = "leave it out to get the vendor's choice"
ROWS = [
    Row({"smooth_scales": ones(6)},
        "smooth_scales must have shape (4,) like the last dimension of x, not (6,); pass a scale "
        "for each column", {"smooth_scales": ones(4)}),
    Row({"quant_mode": "pertensor"},
        "quant_mode must be pertoken, not 'pertensor', which only Ascend950 has; leave it out",
        code=Code.INNER_ERROR),
    *(
        Row({"x": ones(2, 4096), "template": name},
            f"template must be db, base, large, moe or moe_large on Atlas A2 and Atlas A3, not "
            f"{name!r}; {LEAVE}", {"x": ones(2, 4096), "template": "db"})
        for name in ("single_row", "multi_row")
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


def test_atlas_inference_documents_no_such_kernel() -> None:
    message = (
        f"{OP}: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas inference, "
        "which has no such kernel; use npu_dynamic_quant [361001]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
        run(OP, ones(6, 32), device="ascend310p3")


# ---- templates ----


# Without those of several rows an instruction (quant/dynamic_quant_v2/op_kernel).
@pytest.mark.parametrize(
    ("columns", "smooth", "wanted"),
    [
        (4096, False, "db"), (15024, False, "db"), (15025, False, "base"), (17744, False, "base"),
        (17745, False, "large"), (10272, True, "db"), (10273, True, "base"), (11489, True, "large"),
    ],
)  # fmt: skip
def test_templates(columns: int, smooth: bool, wanted: str) -> None:
    spec = devices.load("ascend910b2")
    scales = {"smooth_scales": TensorSpec((columns,), "float16")} if smooth else {}
    problem = OPERATOR.check(spec, TensorSpec((8, columns), "float16"), **scales)
    plan: Any = OPERATOR.tile(spec, problem)
    assert (plan.template, plan.depth) == (wanted, 2 if wanted == "db" else 1)


# ---- values ----


@draws(40)
@given(dynamic_calls().filter(lambda call: call.device not in INFERENCE))
def test_a_tiled_run_equals_the_reference(call: DrawnCall) -> None:
    assert_as_reference(OP, *call.args, device=call.device, **call.kwargs)


@pytest.mark.parametrize("template", ["base", "large", "moe", "moe_large"])
@pytest.mark.parametrize("dst_type", ["int8", "quint4x2"])
def test_other_templates_equal_the_reference(template: str, dst_type: str) -> None:
    columns = 10248 if template in ("large", "moe_large") else 136
    rng = np.random.default_rng(columns)
    x = rows_of_floats(rng, (99, columns), BF16)
    given: dict[str, Any] = {"template": template, "dst_type": dst_type}
    shape = (3, columns) if "moe" in template else (columns,)
    given["smooth_scales"] = rng.normal(0, 2, shape).astype(BF16)
    if "moe" in template:
        given["group_index"] = np.array([1, 40, 99], np.int32)
    assert_as_reference(OP, device="ascend910b2", x=x, **given)


ROW, COLUMN = np.arange(3)[:, None], np.arange(16)[None, :]
X = (((37 * COLUMN + 11 * ROW) % 101 - 50) / 16).astype(np.float16)


@pytest.mark.parametrize("device", every(A2 + A3))
def test_bits_that_were_worked_out_apart(device: str) -> None:
    y, scale, offset = outputs(X, device)
    assert y[0].tolist() == [
        *(-128, -28, 73, -101, 0, 100, -74, 27, 127, -47, 54, -120, -19, 81, -93, 8),
    ]
    assert [f"{word:08X}" for word in scale.view(np.uint32)[:2]] == ["3CBCBCBD", "3CB6B6B7"]
    assert [f"{word:08X}" for word in offset.view(np.uint32)] == [
        *("40F46CF0", "3F66AE80", "C0BD9DE0"),
    ]


def test_rows_come_back() -> None:
    """The vendor's tests let y be off by one."""
    x = np.random.default_rng(8).normal(3, 2, (20, 300)).astype(np.float16)
    y, scale, offset = outputs(x)
    back = (y.astype(np.float64) - offset[:, None]) * scale[:, None]
    assert (np.abs(back - x) <= 0.51 * scale[:, None]).all()


def test_special_rows() -> None:
    x = np.arange(6 * 64, dtype=np.float16).reshape(6, 64)
    x[0], x[1], x[2, 3], x[3, 3], x[5, 3] = 0, 2, np.nan, np.inf, -np.inf
    y, scale, offset = outputs(x)
    assert set(y[0].tolist()) == {127}
    assert (scale[:3] == np.float32(1e-12)).all()
    assert scale[3] == np.inf
    assert offset[0] == 127
    assert offset[1] == pytest.approx(-2e12)
    assert np.isnan(offset[2:4]).all()
    assert not y[1:4].any()
    assert (y[4].min(), y[4].max()) == (-128, 127)
    # Minus infinity alone: scale is infinite, and 127 less nothing is left of the others.
    assert (scale[5], offset[5]) == (np.inf, 127)
    assert y[5].tolist() == [127] * 3 + [0] + [127] * 60
