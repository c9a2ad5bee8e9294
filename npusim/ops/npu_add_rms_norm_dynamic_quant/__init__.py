"""npu_add_rms_norm_dynamic_quant: two tensors added, RMS norm, and dynamic quantisation.

.. code-block:: text

    v = f32(x1) + f32(x2)                       x = T(v): the type of x1
    r = 1 / sqrt(mean(v * v) + epsilon)         over the last dimension
    t = (v * r) * f32(gamma) + f32(beta)        without beta: the product alone
    z = t * f32(smooth_scale)                   once for each of the two outputs
    q = 127 / max|z|                            of the row; int4: 7 for 127
    y = fit(rint(z * q))                        int8, or int4 eight to an int32
    scale = 1 / q                               fp32, one value per row

All is fp32, each operation rounded once, and the sum of two fp16 is not rounded before it is
squared, unlike in npu_add_rms_norm. The mean is a sum times fp32(1 / n): the upper half of a row
onto the lower one, and so on, slice by slice in slice_d. The scalar unit computes r, q and the
scale, with two divisions; *fit* saturates and turns NaN into 0. That the scalar unit rounds a
product before it adds epsilon is assumed.

==========  =============================================================================
template    what it does
==========  =============================================================================
normal      several rows per step, with gamma and the smooth scales resident
single_row  one row at a time, with gamma loaded for each
slice_d     a row in slices, which go through a workspace
==========  =============================================================================

The first of these that can runs. `template` may select another one, which overrides the choice, but
not the room that a kernel needs.

* A row whose z are all zero gives zeros and scale 0. One with an infinity gives zeros and NaN, but
  slice_d skips slices whose maximum is NaN: finite elements there saturate if they exceed the
  others' maximum, and the scale is 0 if no slice is left.
* y2 and scale2 are computed if both smooth scales are given, or as output_mask says; without a mask
  the template normal computes the second in any case, and drops it, which takes time. Outputs that
  are not requested are tensors without dimensions, undefined on a card and 0 here.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant, op_kernel and op_host. Accepted calls
follow the operator's document (torch_npu-npu_add_rms_norm_dynamic_quant.md), on A2 and A3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, Block, DType, GmView
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._row_quant import LARGEST, clamped, output_of, packed
from npusim.ops._torch import Result, quantised
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import Output, Problem, padded
from npusim.ops.npu_add_rms_norm_dynamic_quant.templates import TEMPLATES

# ---- what is accepted ----

TARGETS = {None: INT8, "int8": INT8, "int4": INT4, "quint4x2": INT4}
"""y_dtype -> type to which a row is quantised."""


def _row(kind: DType) -> ops.Row:
    addend = ops.Operands((kind,), ranks=(2, 8), shape="*rows columns")
    vector = ops.Operands((kind,), shape="columns", shape_code=Code.TILING_ERROR)
    return ops.Row(
        on=ops.A2_A3,
        x1=addend,
        x2=addend,
        gamma=vector,
        smooth_scale1=vector,
        smooth_scale2=vector,
        beta=vector,
    )


SUPPORT = tuple(map(_row, (FLOAT16, BFLOAT16)))


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x1, x2, gamma = (contract.operand(name) for name in ("x1", "x2", "gamma"))
    smooth = contract.optional("smooth_scale1"), contract.optional("smooth_scale2")
    beta = contract.optional("beta")
    contract.require(
        x1.spec.size > 0,
        f"x1 must have elements, not shape {x1.shape}; leave the call out",
        Code.TILING_ERROR,
    )
    taken, name = _taken_outputs(contract, smooth), contract.value("y_dtype")
    if name is not None:
        contract.choice("y_dtype", tuple(each for each in TARGETS if each))
    target = TARGETS[name]
    y = output_of(contract, x1, target, f"y_dtype={name!r}")
    columns, has_beta = gamma.spec.size, beta is not None
    templates = _templates(contract.spec, columns, target, has_beta=has_beta)
    both = Output(1, smooth[0], taken[0]), Output(2, smooth[1], taken[1])
    return Problem(
        inputs=ops.present(x1, x2, gamma, *smooth, beta),
        outputs=_specs(x1.spec, y, both),
        x=x1,
        gamma=gamma,
        beta=beta,
        both=both,
        is_masked=contract.value("output_mask") is not None,
        target=target,
        epsilon=norm.epsilon_of(contract, least="> 0"),
        asked=norm.template_of(contract, templates),
    )


def _taken_outputs(
    contract: ops.Contract, smooth: tuple[Operand | None, Operand | None]
) -> tuple[bool, bool]:
    """Whether y1 and y2 are requested: by output_mask, or by the scales given."""
    mask = contract.value("output_mask")
    if mask is None:
        contract.require(
            smooth[0] is not None or smooth[1] is None,
            "smooth_scale1 must be given with a smooth_scale2 unless an output_mask says which "
            "outputs there are, not None; pass it, or an output_mask",
        )
        return True, smooth[1] is not None
    first, second = mask
    contract.require(
        first or second,
        "output_mask must ask for an output at least, not [False, False]; set one to True",
    )
    for number, (is_taken, operand) in enumerate(zip(mask, smooth, strict=True), 1):
        contract.require(
            is_taken or operand is None,
            f"smooth_scale{number} must be None where output_mask leaves y{number} out, not a "
            f"tensor; leave it out",
        )
    return first, second


def _specs(x: TensorSpec, y: TensorSpec, both: tuple[Output, ...]) -> dict[str, TensorSpec]:
    """The outputs; for those not requested a single number, which is not written."""
    rows = x.shape[:-1]
    return {
        **{each.y: y if each.is_taken else TensorSpec((), y.dtype) for each in both},
        "x": x,
        **{each.scale: TensorSpec(rows if each.is_taken else (), "float32") for each in both},
    }


# ---- tiling: norm/add_rms_norm_dynamic_quant/op_host/arch22 ----

MAX_STEP_ROWS = 16
NORMAL_BYTES, NORMAL_ROW_BYTES, NORMAL_RESERVED_BYTES = 16, 8, 768
"""Bytes of normal per column of a row, per row, and in total."""
SINGLE_ROW_BYTES, SINGLE_ROW_RESERVED_BYTES = 16, 1024
SLICE = {INT8: 8864, INT4: 8832}
"""Columns of a slice."""
GROUP_ROWS = 128
"""Rows whose scales single_row stores together."""


def _templates(
    spec: DeviceSpec | None, columns: int, target: DType, *, has_beta: bool
) -> tuple[norm.Template, ...]:
    """The templates that can process rows of *columns*, and how."""
    ub_bytes, whole = norm.Machine.of(spec).ub_bytes, padded(columns, target)
    # gamma and two smooth scales, and beta
    vectors_bytes = 2 * whole * (4 if has_beta else 3)
    room = max(0, ub_bytes - vectors_bytes - NORMAL_RESERVED_BYTES)
    rows = min(MAX_STEP_ROWS, room // (NORMAL_BYTES * whole + NORMAL_ROW_BYTES))
    has_room = SINGLE_ROW_BYTES * whole + SINGLE_ROW_RESERVED_BYTES <= ub_bytes
    alone, piece = "a row fits, but not with its vectors", min(columns, SLICE[target])
    return (
        norm.Template("normal", "a row and its vectors fit", rows > 0, rows, columns),
        norm.Template("single_row", alone, has_room, GROUP_ROWS, columns),
        norm.Template("slice_d", "a row does not fit", True, 1, piece),
    )


def tile(spec: DeviceSpec, p: Problem) -> norm.Plan:
    """A step is what normal loads together, or in single_row rows whose scales are one store."""
    templates = _templates(spec, p.columns, p.target, has_beta=p.beta is not None)
    plan = norm.planned(templates, spec, p)
    if plan.template != "slice_d":
        return plan
    # Each core has a row of fp32 for each output, which it reuses.
    row_bytes = FLOAT32.nbytes(len(p.taken) * p.columns)
    return replace(plan, workspaces={"workspace": plan.block_dim * row_bytes})


def build(spec: DeviceSpec, p: Problem, plan: norm.Plan) -> tuple[Block, ...]:
    """One block per core; cores with equally many rows share their program."""
    views = [p.matrix(name) for name in ("x1", "x2", "x")]
    for output in p.taken:
        views.append(GmView.of(output.y, p.target, p.rows, p.columns))
        views.append(GmView.vector(output.scale, FLOAT32, p.rows))
    rows_of_all = plan.block_dim * len(p.taken)
    workspace = GmView.of("workspace", FLOAT32, rows_of_all, p.columns)
    by_core = (workspace,) if plan.workspaces else ()
    name = "npu_add_rms_norm_dynamic_quant"
    return norm.launch_rows(name, TEMPLATES, spec, p, plan, *views, by_core=by_core)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array, Array, Array]:
    """y1, y2, x, scale1 and scale2; an output that is not requested is a single 0."""
    x1, beta, target = given.x1, given.beta, TARGETS[given.y_dtype]
    columns = x1.shape[-1]
    templates = _templates(given.spec, columns, target, has_beta=beta is not None)
    taken = norm.chosen(templates, given.template)
    smooth = given.smooth_scale1, given.smooth_scale2
    asked = given.output_mask or (True, smooth[1] is not None)
    with np.errstate(all="ignore"):
        total = x1.astype(np.float32) + given.x2.astype(np.float32)
        add = norm.halving_sum
        root = norm.root_of_rows(total, given.epsilon, taken, add, scales_squares=False)
        values = total * root[..., None] * given.gamma.astype(np.float32)
        if beta is not None:
            values = values + beta.astype(np.float32)
        nothing = np.zeros((), np.int32 if target is INT4 else np.int8), np.zeros((), np.float32)
        (y1, scale1), (y2, scale2) = (
            _quantised(values, factors, target, taken) if is_asked else nothing
            for is_asked, factors in zip(asked, smooth, strict=True)
        )
        x = given.rounded(total, x1.dtype)
    return y1, y2, x, scale1, scale2


def _quantised(
    values: Array, smooth: Array | None, target: DType, template: norm.Template
) -> tuple[Array, Array]:
    """Rows of *values* scaled so that the largest magnitude becomes 127 or 7, and the scales."""
    if smooth is not None:
        values = values * smooth.astype(np.float32)
    factor = np.float32(LARGEST[target]) / _largest(np.abs(values), template)
    whole = clamped(values * factor[..., None], target)
    return packed(whole) if target is INT4 else whole, np.float32(1) / factor


def _largest(magnitudes: Array, template: norm.Template) -> Array:
    """The maximum of each row; slice_d uses that of a slice only if it exceeds previous ones."""
    if template.name != "slice_d":
        return np.asarray(magnitudes.max(-1))
    largest = np.zeros(magnitudes.shape[:-1], np.float32)
    for start in range(0, magnitudes.shape[-1], template.column_step):
        part = magnitudes[..., start : start + template.column_step].max(-1)
        largest = np.where(part > largest, part, largest)
    return largest


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
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


OPERATOR = ops.Operator(
    kernel_type="AddRmsNormDynamicQuant",
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
            schema="npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, "
            "Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None, "
            "float epsilon=1e-06, bool[2]? output_mask=None, int? y_dtype=None) -> "
            "(Tensor, Tensor, Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnAddRmsNormDynamicQuantV2",
            outputs=_outputs,
            dtypes={"y_dtype": {"qint8": "int8"}},
        ),
    ),
)
