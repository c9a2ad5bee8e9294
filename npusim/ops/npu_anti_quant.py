"""npu_anti_quant: floats from int8, or from int4 packed eight to an int32.

.. code-block:: text

    y = (x + offset) * scale        fp32, each operation rounded once, then to the type of y

All rounding is to nearest, ties to even. *scale* and *offset*, `(1,)` or `(n,)` with n the last
dimension of y, are float32 or bfloat16; the offset is a float and is added before the product. On
overflow of float16 Atlas inference saturates, Atlas A2 and A3 give infinities.

Sources: ops-nn@e5c3fa9 quant/ascend_anti_quant_v2, aclnn_ascend_anti_quant.cpp for accepted calls
and the public TBE copy of CANN (impl/dynamic/ascend_anti_quant_v2.py) for the numerics. The
schedule of that kernel is closed: the open Ascend C kernel for A2 (experimental/quant) replaces it
on every product line, row by row, and *src_dtype* gives the type in x (both assumed).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT4, INT8, INT32, Array, DType, dtype_named
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, GmView, Step, VectorCore
from npusim.kernel.rectangles import rectangles
from npusim.ops import _vocabulary as ops
from npusim.ops._quant_parameters import QuantParameter
from npusim.ops._support import Entries
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Row, alike, present, same_shape_remedy

INT4_PER_INT32 = 8


# ---- contract ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x as a matrix, with scale and offset per column."""

    element: DType
    """int8 or int4."""
    rows: int
    columns: int
    """All of x is one row if there is one scale for all."""


FLOATS: Entries = {"on": A2_A3, "dst_dtype": ("float16", "bfloat16")}

SUPPORT = (
    *alike((FLOAT32, BFLOAT16), "scale", "offset", x=INT8, src_dtype=("int8",), **FLOATS),
    *alike((FLOAT32, BFLOAT16), "scale", "offset", x=INT32, src_dtype=("quint4x2",), **FLOATS),
    Row(
        on=ATLAS_INFERENCE,
        x=INT8,
        scale=FLOAT32,
        offset=FLOAT32,
        dst_dtype=("float16",),
        src_dtype=("int8",),
    ),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    numbers = contract.operand("x")
    element, shape = _numbers_of(contract, numbers)
    s = contract.operand("scale")
    n = shape[-1] if shape else 1
    wanted = "(1,)" if n == 1 else f"(1,) or ({n},)"
    contract.require(
        s.shape in ((1,), (n,)),
        f"scale must have shape {wanted} for an output of shape {shape}, not {s.shape}; "
        f"pass one scale, or one for each number of the last dimension",
    )
    o = contract.optional("offset")
    contract.require(
        o is None or o.shape == s.shape,
        f"offset must have the shape of scale, {s.shape}, not {o.shape if o else None}; "
        f"{same_shape_remedy(o, s) if o else 'leave it out'}",
    )
    target, source = contract.value("dst_dtype"), contract.value("src_dtype")
    name = contract.one_of("dst_dtype", "float16" if target is None else target)
    if source is not None:
        contract.one_of("src_dtype", source)
    columns = prod(shape) if s.spec.size == 1 else n
    return Problem(
        inputs=present(numbers, s, o),
        outputs={"output": TensorSpec(shape, name)},
        element=element,
        rows=prod(shape) // columns if columns else 0,
        columns=columns,
    )


def _numbers_of(contract: ops.Contract, x: Operand) -> tuple[DType, tuple[int, ...]]:
    """The element type of x, and the shape of y: an int32 of packed int4 becomes eight elements."""
    if x.element is INT8:
        return INT8, x.shape
    contract.require(
        len(x.shape) > 0, "x must have at least one dimension if it is int32, not none; reshape it"
    )
    return INT4, (*x.shape[:-1], INT4_PER_INT32 * x.shape[-1])


# ---- tiling ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """A rectangle for each core, processed one row or part of a row at a time."""

    per_core: tuple[int, int]
    """Rows and columns of its rectangle."""
    column_step: int


RESERVED_BYTES = 1024
"""Bytes of the unified buffer that are not used (ascend_anti_quant_v2, arch22 tiling)."""
BLOCK_ELEMENTS = 512
"""Elements are divided in these units (the same tiling)."""
MOVING_BYTES = 12
"""Bytes per element: int8 and 16-bit floats twice each, intermediate fp16 and fp32."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """One scale: full buffers of elements per core. A scale per column: rows are divided."""
    cores = len(spec.vector_cores)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES
    vectors = p.inputs[1:]
    if vectors[0].spec.size == 1:
        step_columns = align_down(room // MOVING_BYTES, BLOCK_ELEMENTS)
        least = align_down(step_columns // BLOCK_ELEMENTS, 2)
        blocks = max(least, ceil_div(ceil_div(p.columns, BLOCK_ELEMENTS), cores))
        shape = p.rows, min(p.columns, blocks * BLOCK_ELEMENTS)
    else:
        # A vector takes its own type and, unless that is float32, float32 too.
        fixed = sum(4 if x.element is FLOAT32 else 4 + x.element.bits // 8 for x in vectors)
        step_columns = align_down(room // (MOVING_BYTES + fixed), BLOCK_ELEMENTS)
        if p.output.element.nbytes(p.columns) < spec.transfer.store_granule_bytes:
            # Such rows spill into the next ones when they are stored, so one core takes them all.
            cores = 1
        shape = ceil_div(p.rows, cores), p.columns
    rows, columns = shape
    return Plan(
        block_dim=ceil_div(p.rows, rows) * ceil_div(p.columns, columns),
        per_core=shape,
        column_step=min(step_columns, align_up(columns, BLOCK_ELEMENTS)),
    )


# ---- kernel ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Each core has a rectangle: for each piece of its columns the parameters, then row by row."""
    core, width = VectorCore("npu_anti_quant", spec), plan.column_step
    x_in, y_out = core.vecin(p.element, width, 2), core.vecout(p.output.element, width, 2)
    work, is_single = core.tile(FLOAT32, width), p.inputs[1].spec.size == 1
    vectors = {x.name: QuantParameter(core, x, min(width, x.spec.size)) for x in p.inputs[1:]}
    core.claim_tails()

    def begin() -> None:
        for name, vector in vectors.items():
            vector.take_number(name)
            vector.drop()

    def take(*views: GmView) -> None:
        for vector, view in zip(vectors.values(), views, strict=True):
            vector.take(view)

    def drop() -> None:
        for vector in vectors.values():
            vector.drop()

    def row(x: GmView, y: GmView) -> None:
        """*x* to *y*, both `(1, width)`."""
        loaded, values = core.load(x_in, x), work[: x.columns]
        # (width,) int8 or int4 -> fp16 -> fp32: both steps are exact.
        core.widen(values, loaded[: x.columns])
        x_in.free(loaded)
        for name, apply in (("offset", core.add), ("scale", core.mul)):
            if name in vectors:
                apply(values, values, name if is_single else vectors[name].wide[: x.columns])
        out = y_out.alloc()
        core.cast(out[: x.columns], values)
        core.store(y_out, out, y)

    matrix = GmView.of("x", p.element, p.rows, p.columns)
    output = GmView.of("output", p.output.element, p.rows, p.columns)
    parts = rectangles(p.rows, p.columns, plan.per_core, width)
    rows = parts.cut(1)
    step = Step(row, (rows.views(matrix), rows.views(output)), rows.core, rows.order)
    if is_single:
        return core.launch(step, begin=begin)
    views = tuple(parts.views(vector.view) for vector in vectors.values())
    fetch = Step(take, views, parts.core, parts.order, keeps_slots=True)
    return core.launch(fetch, step, Step(drop, (), parts.core, parts.order + 2, keeps_slots=True))


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Integers as floats, on whole arrays; the chip decides how float16 overflows."""
    x, scale, offset = given.x, given.scale, given.offset
    if x.dtype == np.int32:
        nibbles = (x[..., None] >> np.arange(0, 32, 4, dtype=np.int32)) & 0xF
        x = ((nibbles ^ 8) - 8).reshape(*x.shape[:-1], -1)
    with np.errstate(over="ignore", invalid="ignore"):
        values = x.astype(np.float32)
        if offset is not None:
            values = values + offset.astype(np.float32)
        values = values * scale.astype(np.float32)
        return given.rounded(values, dtype_named(given.dst_dtype or "float16").numpy)


TORCH = ops.TorchFunction(
    schema="npu_anti_quant(Tensor x, Tensor scale, *, Tensor? offset=None, "
    "int? dst_dtype=None, int? src_dtype=None) -> Tensor",
    aclnn=lambda _: "aclnnAscendAntiQuant",
    outputs=lambda given, _: ((_shape(given["x"]), given["dst_dtype"] or "float16"),),
    dtypes={"dst_dtype": {}, "src_dtype": {"qint8": "int8"}},
)


def _shape(x: ops.TorchTensor) -> tuple[object, ...]:
    """The shape of y, whose last dimension is eight times that of packed int4."""
    is_packed = x.dtype == "int32"
    return (*x.shape[:-1], INT4_PER_INT32 * x.shape[-1]) if is_packed else x.shape


OPERATOR = ops.Operator(
    kernel_type="AscendAntiQuant",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
