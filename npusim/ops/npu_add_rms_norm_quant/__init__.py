"""npu_add_rms_norm_quant: two tensors added, rows scaled as by npu_add_rms_norm, and quantised.

.. code-block:: text

    x = T(f32(x1) + f32(x2))                            T: the type of x1
    v = f32(x)                                          or the sum before it is rounded, see below
    r = 1 / sqrt(sum(v * v * fp32(1 / n)) + epsilon)    over the dimensions of gamma
    t = f32(fp16(fp16(v * r) * gamma)) + f32(beta)      fp16
    t = (v * r) * f32(gamma) + f32(beta)                bf16; without beta the product alone
    y = fit(rint(t / f32(scale) + f32(zero_point)))     with div_mode False: t * f32(scale)

One rounding an operation, to nearest, ties to even; *fit* saturates to int8 and turns NaN into 0.
The squares are added up in 64 running sums and a tree of them, in split_d piece by piece, but of
fp16 in single_n the upper half of a row onto the lower one. bf16 is squared and scaled as stored in
single_n and with beta, else before it is rounded.

========  ===============================================================================
template  what it does
========  ===============================================================================
single_n  a row a core: what can be loaded and stored meanwhile is; not on 310P
normal    a row at a time
split_d   a row in pieces, x1 and x2 loaded and added twice
========  ===============================================================================

The first that can, in this order. On A2 and A3 `template` may name another one, which overrules the
choice, but not what a kernel has room for. The vendor's tiling keeps what it found of beta and of a
second scale for later calls of a process; here each call is the first one.

With one scale and one zero point, beta, no second scales, and div_mode, another kernel takes the
call: all of it is fp32, unrounded, and t is multiplied by 1 / scale.

* A row with an infinity gives 0 there, and elsewhere what zeros give; one with a NaN gives zeros.
* y2 without scales2 is not written: undefined on a card, and 0 here; zero_points2 is then not read.
* An x1 or gamma without elements gives empty outputs, and no kernel runs.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_quant and add_rms_norm_quant_v2, op_kernel and op_host.
What is accepted is what the operator's document says (torch_npu-npu_add_rms_norm_quant.md): bf16
with scales in fp32 and zero points in int32, which the kernels have and the document does not name,
is warned of. axis must be -1; dst_type is int8, which is its default; rows have 32 elements at
least on 310P.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, INT8, Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.kernel.views import GmView
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._rms_norm.core import NormCore
from npusim.ops._rms_norm.oracle import (
    element_of,
    halving_sum,
    lanes_sum,
    rounded,
    scaled_root,
    sum_of_parts,
)
from npusim.ops._rms_norm.tiling import Machine, Plan, chosen, launch_rows
from npusim.ops._row_quant import clamped
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_add_rms_norm_quant.contract import (
    SUPPORT,
    Optional,
    Problem,
    check,
    piece_columns,
    templates_for,
    tile,
)
from npusim.ops.npu_add_rms_norm_quant.templates import TEMPLATES

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    core = NormCore("npu_add_rms_norm_quant", spec, p)
    output, y2 = (GmView.of(name, INT8, p.rows, p.columns) for name in ("output", "y2"))
    views = [p.matrix("x1"), p.matrix("x2"), output, p.matrix("x")]
    if p.optional.scales2 is not None:
        views.append(y2)
    kernel = TEMPLATES[str(plan.template)](core, p, plan)
    return launch_rows(core, plan, kernel, *views)


def oracle(given: Given) -> tuple[Array, Array, Array]:
    """y1 and y2, int8 in the shape of x1, and `x = x1 + x2`."""
    x1, gamma, spec, columns = given.x1, given.gamma, given.spec, given.gamma.size
    nothing = np.zeros(x1.shape, np.int8)
    if not x1.size:
        return nothing, nothing.copy(), x1.copy()
    optional = Optional(given.zero_points1, given.beta, given.scales2, given.zero_points2)
    is_one = optional.are_for_one_scale(x1, gamma, given.scales1, divides=given.div_mode)
    in_half, machine = element_of(x1) is FLOAT16 and not is_one, Machine.of(spec)
    first, second = (x.reshape(-1, columns).astype(np.float32) for x in (x1, given.x2))
    templates = templates_for(len(first), columns, optional, machine)
    taken = chosen(templates, machine, given.template).name
    part = piece_columns(columns, optional, machine) if taken == "split_d" else columns
    with np.errstate(all="ignore"):
        exact = first + second
        x = rounded(exact, x1.dtype, spec)
        is_late = taken == "single_n" or given.beta is not None
        is_rounded = in_half or (is_late and not is_one)
        values = x.astype(np.float32) if is_rounded else exact
        mean = np.float32(1) / np.float32(columns)
        add = halving_sum if taken == "single_n" and in_half else lanes_sum
        root = scaled_root(sum_of_parts(add, values * values * mean, part), given.epsilon)
        t, weights = values * root[:, None], gamma.astype(np.float32).reshape(-1)
        if in_half:
            halves = rounded(t, x1.dtype, spec).astype(np.float32)
            t = rounded(halves * weights, x1.dtype, spec).astype(np.float32)
        else:
            t = t * weights
        if given.beta is not None:
            t = t + given.beta.astype(np.float32).reshape(-1)
        divides = given.div_mode and not is_one
        scale = given.scales1.astype(np.float32).reshape(-1)
        scale = np.float32(1) / scale if is_one else scale
        y1 = _quantised(t, scale, given.zero_points1, divides=divides)
        y2 = nothing
        if given.scales2 is not None:
            y2 = _quantised(t, given.scales2, given.zero_points2, divides=divides)
    return y1.reshape(x1.shape), y2.reshape(x1.shape), x.reshape(x1.shape)


def _quantised(t: Array, scales: Array, points: Array | None, *, divides: bool) -> Array:
    factors = scales.astype(np.float32).reshape(-1)
    v = t / factors if divides else t * factors
    return clamped(v if points is None else v + points.astype(np.float32).reshape(-1))


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x = given["x1"]
    return (x.shape, "int8"), (x.shape, "int8"), (x.shape, x.dtype)


TORCH = TorchFunction(
    schema="npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, "
    "Tensor? zero_points1, Tensor? beta=None, Tensor? scales2=None, Tensor? zero_points2=None, *, "
    "int axis=-1, float epsilon=1e-06, bool div_mode=True, int? dst_type=None) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnAddRmsNormQuantV2",
    outputs=_outputs,
    dtypes={"dst_type": {"qint8": "int8"}},
)

OPERATOR = Operator(
    kernel_type=lambda _, p, __: f"AddRmsNormQuant{'V2' if p.per_tensor else ''}",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=tuple(TEMPLATES),
    torch=(TORCH,),
)
