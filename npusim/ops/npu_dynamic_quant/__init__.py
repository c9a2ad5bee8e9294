"""npu_dynamic_quant: floats to int8 or packed int4, with one scale for each row.

.. code-block:: text

    v = f32(x) * f32(smooth_scales)            without smooth_scales: v = f32(x)
    M = max|v| over the last dimension
    y = fit(round(v * (127 / M)))              int8, in the shape of x; int4: 7 for 127
    scale = M * f32(1 / 127)                   float32, one value per row; or
    scale = 1 / (127 / M)                      in base, large, moe and moe_large

    310P
    y = fit(round(x * f16(127 / M)))           fp16, ties away from zero
    scale = M * f32(1 / 127)

On A2 and A3 everything is fp32, each operation rounded once; *round* is to nearest, ties to even,
*fit* saturates and turns NaN into 0. With a group_index each group of rows has its own smooth
scales: row r uses those of the first group whose entry, the end of its rows, is greater than r. The
two formulas for scale differ in the last bit of about a quarter of all rows; which one applies
depends on the vendor's kernel, called template, that runs the call: see ``choice``.

* A row of zeros gives zeros and scale 0. A row with an infinity also gives zeros: its finite
  elements become 0, and 127 / inf times inf is NaN. Its scale is infinite.
* If 127 / M overflows, which takes bfloat16, elements other than 0 become 127 or -128.
* A NaN makes its row zeros and the scale NaN, since Max propagates it. An exception are all but the
  last 10240 columns, or the remainder after the last whole 10240, of a row in large or moe_large:
  the scalar unit compares their M and drops a NaN. On 310P NaN counts as 0, and an infinity as
  65504 in M (both: asc-devkit, Memory矢量计算接口边界值汇总.md); scaled, it is as large as fp16
  allows, so that y is 127, or -128 for minus infinity (assumed).

Sources: ops-nn@e5c3fa9 quant/dynamic_quant, op_kernel and op_host. Accepted calls follow the
operator's document (torch_npu-npu_dynamic_quant.md), on Atlas A2 and A3. In addition:

* 310P accepts float16 in rows of a multiple of 32, and only int8: that document does not list it,
  the one of aclnn does, and vllm-ascend calls it there. It reads neither smooth_scales nor
  group_index; if given, there is a warning.
* group_index needs smooth_scales, as the document of aclnn requires, and must extend to the last
  row: otherwise the kernel reads past its end.
* quant_mode and dst_type_max, which are newer, must have their defaults: only Ascend950 has others.
* `template` selects a kernel other than the vendor's choice, see `choice`: on A2 and A3 single_row,
  multi_row, db, base and large, or moe and moe_large with a group_index.
* x without elements gives empty outputs, and no kernel runs; with rows but no columns it is
  refused, since the scales would not be written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import INT4, INT8, Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, VectorCore
from npusim.ops import _vocabulary as ops
from npusim.ops._dynamic_quant import (
    SUPPORT,
    Plan,
    Problem,
    check,
    extreme_of,
    smoothed,
    template_of,
    tile,
    torch_function,
)
from npusim.ops._dynamic_quant.choice import BY_SCALAR, IN_PARTS, NAMED
from npusim.ops._row_quant import LARGEST, clamped, packed
from npusim.ops.npu_dynamic_quant.coupled import long_patches, patches
from npusim.ops.npu_dynamic_quant.rows import base, db, large, moe, moe_large
from npusim.ops.npu_dynamic_quant.several_rows import multi_row, single_row

TEMPLATES: dict[str, Callable[[VectorCore, Problem, Plan], tuple[Block, ...]]] = {
    "single_row": single_row,
    "multi_row": multi_row,
    "db": db,
    "base": base,
    "large": large,
    "moe": moe,
    "moe_large": moe_large,
    "aligned": patches,
    "unaligned": patches,
    "unaligned_large": long_patches,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Convert rows to fp32, multiply them by the smooth scales, and find M, the largest magnitude;
    then multiply them by 127 / M, round and narrow them.

    The templates differ in how many rows an instruction covers, how much they load at a time, and
    which unit divides.
    """
    return TEMPLATES[plan.template](VectorCore("npu_dynamic_quant", spec), p, plan)


# ---- oracle ----

LARGEST_HALF = np.float32(65504)


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """Quantise each row of x `(..., columns)`; returns that and scales `(...)`, float32.

    The first has the shape of x, int8, or with 'quint4x2' one int32 for eight columns. template
    selects the kernel; by default the chip decides by its series, and the size of its unified
    buffer. On 310P smooth_scales and group_index are ignored.
    """
    if given.spec is not None and given.spec.arch == "2002":
        return _in_half(given.x)
    target = INT4 if given.dst_type == "quint4x2" else INT8
    template, top = template_of(given, is_symmetric=True), np.float32(LARGEST[target])
    with np.errstate(all="ignore"):
        values = smoothed(given)
        largest = extreme_of(np.abs(values), np.maximum, template in IN_PARTS)
        factor = top / largest
        scale = 1 / factor if template in BY_SCALAR else largest * np.float32(1 / top)
        whole = clamped(values * factor[..., None], target)
    return packed(whole) if target is INT4 else whole, scale


def _in_half(x: Array) -> tuple[Array, Array]:
    """310P: one fp16 product, rounded with ties away from zero; nothing overflows."""
    with np.errstate(all="ignore"):
        values = _saturated(x.astype(np.float32))
        largest = np.abs(values).max(-1, initial=0)
        factor = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
        factor = _saturated(factor.astype(np.float16).astype(np.float32))
        scaled = _saturated((x.astype(np.float32) * factor[..., None]).astype(np.float16))
        scaled = scaled.astype(np.float64)
        whole = np.trunc(scaled + np.copysign(0.5, scaled))
    scale = (largest * np.float32(1 / 127)).astype(np.float32)
    return np.clip(whole, -128, 127).astype(np.int8), scale


def _saturated(values: Array) -> Array:
    """fp16 elements on a chip without infinities: they become 65504, NaN becomes 0."""
    finite = np.where(np.isnan(values), 0, values).astype(np.float32)
    return np.clip(finite, -LARGEST_HALF, LARGEST_HALF)


# ---- declaration ----


def _aclnn(given: ops.TorchArguments) -> str:
    # Assumed: torch_npu calls the second version if dst_type is given.
    return f"aclnnDynamicQuant{'' if given['dst_type'] is None else 'V2'}"


OPERATOR = ops.Operator(
    kernel_type="DynamicQuant",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    templates=NAMED,
    value_dependent_inputs=("group_index",),
    torch=(torch_function("npu_dynamic_quant", 2, _aclnn),),
)
