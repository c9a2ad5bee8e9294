"""npu_dequant_swiglu_quant: int32 sums dequantised, SwiGLU, then quantised to int8.

.. code-block:: text

    v = f32(x) * weight_scale * activation_scale + bias     x of int32; an int32 bias is added first
    a, b = the halves of v, the second one activated unless activate_left
    z = (a / (exp(-a) + 1)) * b
    quant_mode 1    z = z * quant_scale,  M = max|z| of a row
                    scale = M / 127,  y = fit(round(z * (1 / scale)))
        groups      scale = M * f32(1 / 127),  y = fit(round(z / scale))
    quant_mode 0    y = fit(round(z / quant_scale + quant_offset)),  one scale: z * (1 / scale)

All in fp32, rounded after each operation to nearest, ties to even; *fit* saturates and turns NaN
into 0. The precision of Exp is not public: the nearest value is assumed. With a group_index, the
number of rows of each group, each group has its own scales and bias, and swiglu_mode 1 and 2

.. code-block:: text

    mode 1          a, b = the even and the odd elements of v
    mode 1, 2       b = max(min(b, clamp_limit), -clamp_limit) + glu_bias,  a = min(a, clamp_limit)
                    z = b * (a / (exp(a * -glu_alpha) + 1))

* With quant_mode 0 no kernel writes the scale, and rows that no group counts are never written:
  both are zero here, where a card returns what the memory held.
* A row with an infinity gives zeros and an infinite scale, one with a NaN zeros and a NaN scale.
* Without a group_index the kernels do not read swiglu_mode: giving one only causes a warning, as do
  dst_type, round_mode and activate_dim, which only later chips read.
* With a group_index half rows are multiples of 64: otherwise the kernel's step from row to row
  would skip half a repeat (assumed). A single scale of 0 counts as 1 there.

Sources: ops-nn@e5c3fa9 quant/dequant_swiglu_quant, op_kernel and op_host; op-plugin@517f2e7 for the
function. Atlas inference has no such kernel.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, VectorCore
from npusim.ops import _vocabulary as ops
from npusim.ops._row_quant import clamped
from npusim.ops._swiglu_quant import halves_of, swiglu_of
from npusim.ops._swish import exp_plus_1_of
from npusim.ops.npu_dequant_swiglu_quant import groups, rows
from npusim.ops.npu_dequant_swiglu_quant.check import SUPPORT, Problem, check
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "build", "oracle"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build one block for each core, with the kernel for groups or the one for rows."""
    core = VectorCore("npu_dequant_swiglu_quant", spec)
    return (groups.build if p.group_index is not None else rows.build)(core, p, plan)


# ---- oracle ----

F32 = np.float32


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """int8 `(..., columns)` of x `(..., 2 x columns)`, and scales `(...)`, float32.

    What no kernel writes is zero: the scales with quant_mode 0, and rows that no group counts.
    """
    x, group_index, swiglu_mode = given.x, given.group_index, given.swiglu_mode
    activation_scale = given.activation_scale
    *outer, width = x.shape
    rows = x.reshape(-1, width)
    group, is_counted = _groups(group_index, rows.shape[0])
    in_groups = group_index is not None
    of_rows = partial(_of_rows, group, 1 if group_index is None else group_index.shape[0])
    with np.errstate(all="ignore"):
        act = None if activation_scale is None else activation_scale.reshape(-1, 1)
        values = _dequantised(rows, of_rows(given.weight_scale), act, of_rows(given.bias))
        a, b = halves_of(values, given.activate_left)
        if swiglu_mode == 1 and in_groups:
            a, b = values[:, 0::2], values[:, 1::2]
        if swiglu_mode and in_groups:
            z = _gated(a, b, F32(given.clamp_limit), F32(given.glu_alpha), F32(given.glu_bias))
        else:
            z = swiglu_of(a, b)
        factors = of_rows(given.quant_scale)
        if given.quant_mode == 1:
            z = z if factors is None else z * factors.astype(F32)
            scaled, scale = _dynamic(z, by_division=in_groups)
        else:
            scaled = _static(z, factors, of_rows(given.quant_offset), in_groups=in_groups)
            scale = np.zeros(len(rows), F32)
        y = clamped(scaled)
    y[~is_counted], scale[~is_counted] = 0, 0
    return y.reshape(*outer, width // 2), scale.reshape(outer)


def _of_rows(group: Array, groups: int, numbers: Array | None) -> Array | None:
    """The values for each row's group, `(rows, columns)` or `(rows, 1)`."""
    return None if numbers is None else numbers.reshape(groups, -1)[group]


def _dequantised(rows: Array, weight: Array | None, act: Array | None, bias: Array | None) -> Array:
    """`(rows, width)` in fp32; a bias of int32 is added first, any other last."""
    if bias is not None and bias.dtype == np.int32:
        rows, bias = rows + bias, None
    values = rows.astype(F32)
    for factors in (weight, act):
        values = values if factors is None else values * factors
    return np.asarray(values if bias is None else values + bias.astype(F32))


def _groups(group_index: Array | None, rows: int) -> tuple[Array, Array]:
    """The group of each row, and whether it has one: both `(rows,)`."""
    if group_index is None:
        return np.zeros(rows, np.int64), np.ones(rows, bool)
    if group_index.ndim == 2:
        names, counts = group_index[:, 0], group_index[:, 1]
    else:
        names, counts = np.arange(group_index.size), group_index
    group = np.repeat(names, counts)
    return np.pad(group, (0, rows - group.size)), np.arange(rows) < group.size


def _gated(a: Array, b: Array, limit: np.float32, alpha: np.float32, beta: np.float32) -> Array:
    b = np.maximum(np.minimum(b, limit), -limit) + beta
    a = np.minimum(a, limit)
    return np.asarray(b * (a / exp_plus_1_of(a, float(-alpha))))


def _dynamic(z: Array, *, by_division: bool) -> tuple[Array, Array]:
    """Scale rows to 127; also returns the scales. The kernels differ in the last bit."""
    largest = np.abs(z).max(axis=1, initial=0)
    if by_division:
        scale = largest * F32(1 / 127)
        return z / scale[:, None], scale
    scale = largest / F32(127)
    return z * (F32(1) / scale)[:, None], scale


def _static(z: Array, scale: Array | None, offset: Array | None, *, in_groups: bool) -> Array:
    if scale is None or offset is None:
        return z
    factors, points = scale.astype(F32), offset.astype(F32)
    if factors.shape[1] == z.shape[1] > 1:
        return np.asarray(z / factors + points)
    # One scale for a row: the scalar unit inverts it; for groups only unless it is 0.
    inverse = np.where((factors == 0) & in_groups, F32(1), F32(1) / factors)
    return np.asarray(z * inverse + points)


# ---- declaration ----


def _halved(given: ops.TorchArguments) -> tuple[object, ...]:
    *outer, columns = given["x"].shape
    return (*outer, columns // 2)


TORCH = ops.TorchFunction(
    schema="npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, "
    "Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None, "
    "Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=False, "
    "int quant_mode=0, int? dst_type=None, int? round_mode=None, int? activate_dim=None, "
    "int swiglu_mode=0, float clamp_limit=7.0, float glu_alpha=1.702, float glu_bias=1.0) -> "
    "(Tensor, Tensor)",
    # Assumed: with a swiglu_mode torch_npu calls the second version.
    aclnn=lambda given: f"aclnnDequantSwigluQuant{'V2' if given['swiglu_mode'] else ''}",
    outputs=lambda given, _: (
        (_halved(given), "int8"),
        (given["x"].shape[:-1], "float32"),
    ),
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = ops.Operator(
    kernel_type="DequantSwigluQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_swiglu and npu_dynamic_quant",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    value_dependent_inputs=("group_index",),
    torch=(TORCH,),
)
