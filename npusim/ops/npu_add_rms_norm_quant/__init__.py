"""npu_add_rms_norm_quant: two tensors added, RMS norm, and quantisation.

.. code-block:: text

    x = T(f32(x1) + f32(x2))                            T: the type of x1
    v = f32(x)                                          or the sum before it is rounded, see below
    r = 1 / sqrt(sum(v * v * fp32(1 / n)) + epsilon)    over the dimensions of gamma
    t = f32(fp16(fp16(v * r) * gamma)) + f32(beta)      fp16
    t = (v * r) * f32(gamma) + f32(beta)                bf16; without beta the product alone
    y = fit(rint(t / f32(scale) + f32(zero_point)))     with div_mode False: t * f32(scale)

Each operation rounds to nearest, ties to even; *fit* saturates to int8 and turns NaN into 0. The
squares are summed in 64 running sums and a tree of them, in split_d piece by piece; fp16 in
single_n instead adds the upper half of a row onto the lower one. bf16 is squared and scaled as
stored in single_n and with beta, otherwise before it is rounded.

========  ===============================================================================
template  what it does
========  ===============================================================================
single_n  one row per core: loads and stores overlap as far as possible; not on 310P
normal    one row at a time
split_d   a row in pieces, with x1 and x2 loaded and added twice
========  ===============================================================================

The first of these that can runs. On A2 and A3 `template` may select another one, which overrides
the choice, but not the room that a kernel needs. The vendor's tiling remembers the presence of beta
and of a second scale for later calls of a process; here each call is the first one.

With one scale and one zero point, beta, no second scales, and div_mode, another kernel runs the
call: all of it is fp32, unrounded, and t is multiplied by 1 / scale.

* A row with an infinity gives 0 there, and elsewhere what zeros give; one with a NaN gives zeros.
* y2 without scales2 is not written: undefined on a card, and 0 here; zero_points2 is then ignored.
* An x1 or gamma without elements gives empty outputs, and no kernel runs.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_quant and add_rms_norm_quant_v2, op_kernel and op_host.
Accepted calls follow the operator's document (torch_npu-npu_add_rms_norm_quant.md): bf16 with
scales in fp32 and zero points in int32, which the kernels support and the document does not list,
gives a warning. axis must be -1; dst_type is int8, its default; on 310P rows have at least 32
elements, and so has the remainder after whole pieces.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.errors import Code
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, Block, DType, GmView
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._row_quant import clamped
from npusim.ops._torch import Result
from npusim.ops.npu_add_rms_norm_quant.steps import OptionalVectors, Problem
from npusim.ops.npu_add_rms_norm_quant.templates import TEMPLATES

# ---- what is accepted ----

COLUMNS_310P = 32
"""310P accepts rows of at least a block of int8."""


def _row(on: tuple[str, ...], element: DType, scale: DType, point: DType) -> ops.Row:
    return ops.Row(
        on=on,
        x1=ops.Operands((element,), shape=norm.PAIR["x1"]),
        x2=ops.Operands((element,), shape=norm.PAIR["x2"]),
        gamma=element,
        beta=element,
        scales1=scale,
        scales2=scale,
        zero_points1=point,
        zero_points2=point,
    )


SUPPORT = (
    _row(ops.EVERYWHERE, FLOAT16, FLOAT32, INT32),
    _row(ops.A2_A3, BFLOAT16, BFLOAT16, BFLOAT16),
    _row(ops.A2_A3, BFLOAT16, FLOAT32, INT32),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x1, x2, gamma = (contract.operand(name) for name in ("x1", "x2", "gamma"))
    beta, scales1 = contract.optional("beta"), contract.operand("scales1")
    scales2 = contract.optional("scales2")
    points1, points2 = contract.optional("zero_points1"), contract.optional("zero_points2")
    axis = contract.integer("axis")
    contract.require(axis == -1, f"axis must be -1, not {axis}; leave it out")
    if contract.value("dst_type") is not None:
        contract.choice("dst_type", ("int8",))
    divides = contract.boolean("div_mode")
    norm.check_gamma(contract, x1, gamma, code=Code.INVALID_PARAMETER)
    is_310p = contract.spec.series not in ops.A2_A3
    contract.require(
        not is_310p or gamma.spec.size >= COLUMNS_310P,
        f"gamma must have at least {COLUMNS_310P} elements on {contract.spec.series}, not "
        f"{gamma.spec.size}; pad it",
    )
    if x1.element is BFLOAT16 and scales1.element is FLOAT32:
        contract.warn(
            "scales1 should be bfloat16 like x1, not float32, which the kernel takes and the "
            "document does not name; convert it"
        )
    optional = OptionalVectors(points1, beta, scales2, points2)
    per_tensor = optional.are_for_one_scale(x1, gamma, scales1, divides=divides)
    vectors = (beta,) if per_tensor else (beta, scales1, scales2, points1, points2)
    for operand in ops.present(*vectors):
        contract.require(
            operand.shape == gamma.shape,
            f"{operand.name} must have the shape of gamma, {gamma.shape}, not {operand.shape}; "
            f"pass a number for each of its elements",
        )
    templates = _templates(contract.spec, x1, gamma, optional)
    asked = norm.template_of(contract, templates)
    piece = norm.chosen(templates, asked).column_step
    left = gamma.spec.size % piece
    contract.require(
        not is_310p or left in (0, *range(COLUMNS_310P, piece)),
        f"gamma must leave at least {COLUMNS_310P} elements to the last piece of a row on "
        f"{contract.spec.series}, where pieces have {piece}, not {left}: storing fewer would "
        f"overwrite the next row, which is not simulated; pad it",
    )
    y = TensorSpec(x1.shape, "int8")
    return Problem(
        inputs=ops.present(x1, x2, gamma, scales1, scales2, points1, points2, beta),
        outputs={"output": y, "y2": y, "x": x1.spec},
        x=x1,
        gamma=gamma,
        scales1=scales1,
        optional=optional,
        divides=divides,
        per_tensor=per_tensor,
        epsilon=norm.epsilon_of(contract, least=""),
        asked=asked,
    )


# ---- tiling: norm/add_rms_norm_quant/op_host/add_rms_norm_quant_tiling.cpp ----

PLAIN_NORMAL, PLAIN_SINGLE, PLAIN_PIECE = 8192, 12224, 7680
"""Columns that fit without beta and second scales."""
NORMAL_BYTES, NORMAL_RESERVED_BYTES = 20, 256
PIECE_BYTES, PIECE_RESERVED_BYTES = 22, 2560
SINGLE_BYTES = 20
"""Bytes of the templates per column without these operands, and in total."""
UNIT = 32
"""Limits are multiples of 32 columns."""
GROUP_ROWS = 64
"""Rows that split_d processes together, piece by piece."""


def _templates(
    spec: DeviceSpec | None,
    x1: Operand | Array,
    gamma: Operand | Array,
    optional: OptionalVectors,
) -> tuple[norm.Template, ...]:
    """The templates that can process rows of *x1*, and how."""
    machine, columns = norm.Machine.of(spec), max(1, prod(gamma.shape))
    normal, single, room = PLAIN_NORMAL, PLAIN_SINGLE, machine.ub_bytes - norm.RESERVED_BYTES
    piece = align_up(ceil_div(columns, ceil_div(columns, PLAIN_PIECE)), 16)
    has_points1, has_beta, has_second, has_points2 = (each is not None for each in optional)
    if has_beta or has_second:
        second_bytes = has_second * (4 + 4 * has_points2)
        row_bytes = 4 + 4 * has_points1 + 2 * has_beta + second_bytes + 2 * has_second
        normal = align_down((room - NORMAL_RESERVED_BYTES) // (NORMAL_BYTES + row_bytes), UNIT)
        single = align_down(room // (SINGLE_BYTES + second_bytes), UNIT)
        piece = align_down((room - PIECE_RESERVED_BYTES) // (PIECE_BYTES + row_bytes), UNIT)
    is_few = prod(x1.shape) // columns <= machine.cores and not machine.is_310p
    few = f"no more rows than the {machine.cores} cores, of at most {single} elements"
    piece_step = min(columns, piece)
    fit, too_long = f"at most {normal} elements fit", f"more than {normal} elements do not fit"
    return (
        norm.Template("single_n", few, is_few and columns <= single, 1, columns, room=single),
        norm.Template("normal", f"rows of {fit}", columns <= normal, 1, columns, room=normal),
        norm.Template("split_d", f"rows of {too_long}", True, GROUP_ROWS, piece_step, room=piece),
    )


def tile(spec: DeviceSpec, p: Problem) -> norm.Plan:
    """A step is the rows whose squares split_d sums before it scales them; otherwise one row.

    The kernel for a single scale is tiled like the one for a scale per column (ops-nn@e5c3fa9
    norm/add_rms_norm_quant/op_host/add_rms_norm_quant_tiling.cpp:286-296).
    """
    return norm.planned(_templates(spec, p.x, p.gamma, p.optional), spec, p)


def build(spec: DeviceSpec, p: Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """One block per core; cores with equally many rows share their program."""
    output, y2 = (GmView.of(name, INT8, p.rows, p.columns) for name in ("output", "y2"))
    views = [p.matrix("x1"), p.matrix("x2"), output, p.matrix("x")]
    if p.optional.scales2 is not None:
        views.append(y2)
    return norm.launch_rows("npu_add_rms_norm_quant", TEMPLATES, spec, p, plan, *views)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """y1 and y2, int8 in the shape of x1, and `x = x1 + x2`."""
    x1, gamma, columns = given.x1, given.gamma, given.gamma.size
    nothing = np.zeros(x1.shape, np.int8)
    if not x1.size:
        return nothing, nothing.copy(), x1.copy()
    optional = OptionalVectors(given.zero_points1, given.beta, given.scales2, given.zero_points2)
    is_one = optional.are_for_one_scale(x1, gamma, given.scales1, divides=given.div_mode)
    in_half = x1.dtype == np.float16 and not is_one
    first, second = (x.reshape(-1, columns).astype(np.float32) for x in (x1, given.x2))
    taken = norm.chosen(_templates(given.spec, x1, gamma, optional), given.template)
    is_single = taken.name == "single_n"
    with np.errstate(all="ignore"):
        exact = first + second
        x = given.rounded(exact, x1.dtype)
        is_late = is_single or given.beta is not None
        is_rounded = in_half or (is_late and not is_one)
        values = x.astype(np.float32) if is_rounded else exact
        add = norm.halving_sum if is_single and in_half else norm.lanes_sum
        root = norm.root_of_rows(values, given.epsilon, taken, add, scales_squares=True)
        t, weights = values * root[:, None], gamma.astype(np.float32).reshape(-1)
        if in_half:
            halves = given.rounded(t, x1.dtype).astype(np.float32)
            t = given.rounded(halves * weights, x1.dtype).astype(np.float32)
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


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    x = given["x1"]
    return (x.shape, "int8"), (x.shape, "int8"), (x.shape, x.dtype)


OPERATOR = ops.Operator(
    kernel_type=lambda _, p, __: f"AddRmsNormQuant{'V2' if p.per_tensor else ''}",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    templates=tuple(TEMPLATES),
    torch=(
        ops.TorchFunction(
            schema="npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, "
            "Tensor? zero_points1, Tensor? beta=None, Tensor? scales2=None, "
            "Tensor? zero_points2=None, *, int axis=-1, float epsilon=1e-06, bool div_mode=True, "
            "int? dst_type=None) -> (Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnAddRmsNormQuantV2",
            outputs=_outputs,
            dtypes={"dst_type": {"qint8": "int8"}},
        ),
    ),
)
