"""npu_add_rms_norm_dynamic_quant: two tensors added, rows scaled as by npu_rms_norm, and quantised.

.. code-block:: text

    v = f32(x1) + f32(x2)                       x = T(v): the type of x1
    r = 1 / sqrt(mean(v * v) + epsilon)         over the last dimension
    t = (v * r) * f32(gamma) + f32(beta)        without beta: the product alone
    z = t * f32(smooth_scale)                   once for each of the two outputs
    q = 127 / max|z|                            of the row; int4: 7 for 127
    y = fit(rint(z * q))                        int8, or int4 eight to an int32
    scale = 1 / q                               fp32, one number a row

All is fp32, one rounding an operation, and the sum of two fp16 is not rounded before it is squared,
as npu_add_rms_norm does. The mean is a sum times fp32(1 / n): the upper half of a row onto the
lower one, and so on, slice by slice in slice_d. The scalar unit finds r, q and the scale, with two
divisions; *fit* saturates and turns NaN into 0. That the scalar unit rounds a product before it
adds epsilon is assumed.

==========  =============================================================================
template    what it does
==========  =============================================================================
normal      several rows a step, gamma and the smooth scales resident
single_row  a row at a time, gamma loaded for each
slice_d     a row in slices, which go through a workspace
==========  =============================================================================

The first that can, in this order. `template` may name another one, which overrules the choice, but
not what a kernel has room for.

* A row whose z are all zero gives zeros and scale 0. One with an infinity gives zeros and NaN.
* y2 and scale2 come with both smooth scales, or as output_mask says; without a mask the template
  normal computes the second in any case, and drops it, which takes its time. What is not asked for
  comes back as a tensor without dimensions, undefined on a card and 0 here.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant, op_kernel and op_host. What is accepted is
what the operator's document says (torch_npu-npu_add_rms_norm_dynamic_quant.md), on A2 and A3.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, INT4, Array, DType
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.kernel.views import GmView
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._rms_norm.core import NormCore
from npusim.ops._rms_norm.oracle import halving_sum, rounded, scaled_root, sum_of_parts
from npusim.ops._rms_norm.tiling import Machine, Plan, chosen, launch_rows
from npusim.ops._row_quant import LARGEST, clamped, packed
from npusim.ops._torch import TorchArguments, TorchFunction, quantised
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import (
    SUPPORT,
    TARGETS,
    Problem,
    check,
    slice_columns,
    templates_for,
    tile,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.templates import TEMPLATES

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    core = NormCore("npu_add_rms_norm_dynamic_quant", spec, p)
    views = [p.matrix(name) for name in ("x1", "x2", "x")]
    for output in p.taken:
        views.append(GmView.of(output.y, p.target, p.rows, p.columns))
        views.append(GmView.vector(output.scale, FLOAT32, p.rows))
    by_core: tuple[GmView, ...] = ()
    if plan.workspaces:
        rows = plan.block_dim * len(p.taken)
        by_core = (GmView.of("workspace", FLOAT32, rows, p.columns),)
    kernel = TEMPLATES[str(plan.template)](core, p, plan)
    return launch_rows(core, plan, kernel, *views, by_core=by_core)


def oracle(given: Given) -> tuple[Array, Array, Array, Array, Array]:
    """y1, y2, x, scale1 and scale2; an output that is not asked for is a single 0."""
    x1, beta, target = given.x1, given.beta, TARGETS[given.y_dtype]
    columns, machine = x1.shape[-1], Machine.of(given.spec)
    templates = templates_for(columns, target, machine, beta is not None)
    taken = chosen(templates, machine, given.template).name
    part = slice_columns(columns, target) if taken == "slice_d" else columns
    smooth = given.smooth_scale1, given.smooth_scale2
    asked = given.output_mask or (True, smooth[1] is not None)
    with np.errstate(all="ignore"):
        total = x1.astype(np.float32) + given.x2.astype(np.float32)
        mean = np.float32(1) / np.float32(columns)
        root = scaled_root(sum_of_parts(halving_sum, total * total, part) * mean, given.epsilon)
        values = total * root[..., None] * given.gamma.astype(np.float32)
        if beta is not None:
            values = values + beta.astype(np.float32)
        nothing = np.zeros((), np.int32 if target is INT4 else np.int8), np.zeros((), np.float32)
        (y1, scale1), (y2, scale2) = (
            _quantised(values, factors, target) if is_asked else nothing
            for is_asked, factors in zip(asked, smooth, strict=True)
        )
        x = rounded(total, x1.dtype, given.spec)
    return y1, y2, x, scale1, scale2


def _quantised(values: Array, smooth: Array | None, target: DType) -> tuple[Array, Array]:
    """Each row of *values* scaled so that its largest element becomes 127 or 7, and the scales."""
    if smooth is not None:
        values = values * smooth.astype(np.float32)
    factor = np.float32(LARGEST[target]) / np.abs(values).max(-1)
    whole = clamped(values * factor[..., None], target)
    return packed(whole) if target is INT4 else whole, np.float32(1) / factor


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, mask = given["x1"], given["output_mask"]
    shape, dtype = quantised(x, "quint4x2" if given["y_dtype"] == "int4" else given["y_dtype"])
    first, second = mask or (True, given["smooth_scale2"] is not None)
    return (
        (shape if first else (), dtype),
        (shape if second else (), dtype),
        (x.shape, x.dtype),
        (x.shape[:-1] if first else (), "float32"),
        (x.shape[:-1] if second else (), "float32"),
    )


TORCH = TorchFunction(
    schema="npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, "
    "Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None, "
    "float epsilon=1e-06, bool[2]? output_mask=None, int? y_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnAddRmsNormDynamicQuantV2",
    outputs=_outputs,
    dtypes={"y_dtype": {"qint8": "int8"}},
)

OPERATOR = Operator(
    kernel_type="AddRmsNormDynamicQuant",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=tuple(TEMPLATES),
    torch=(TORCH,),
)
