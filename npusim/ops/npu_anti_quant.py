"""npu_anti_quant: int8, or int4 packed eight to an int32, turned back into floats.

.. code-block:: text

    y = (x + offset) * scale        fp32, one rounding an operation, then one to the type of y

Every rounding is to nearest, ties to even. *scale* and *offset*, `(1,)` or `(n,)` with n the last
dimension of y, are float32 or bfloat16; the offset is a float and comes before the product. Beyond
the range of float16 Atlas inference saturates, Atlas A2 and A3 give infinities.

Sources: ops-nn@e5c3fa9 quant/ascend_anti_quant_v2, aclnn_ascend_anti_quant.cpp for what is accepted
and the public TBE copy of CANN (impl/dynamic/ascend_anti_quant_v2.py) for the numerics. The
schedule of that kernel is closed: the open Ascend C kernel for A2 (experimental/quant) stands in
for it on every product line, row by row, and *src_dtype* names what x holds (both assumed).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    Array,
    DType,
    RoundMode,
    dtype_named,
)
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryOp, BinaryScalar, Cast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.columns import ColumnVector
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import BODY_ROWS, Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops._contract import Contract, same_shape_remedy
from npusim.ops._protocol import Operator, present
from npusim.ops._torch import TorchFunction, TorchTensor

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

INT4_PER_INT32 = 8


# ---- contract ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x as a matrix of numbers, of which scale and offset take the columns."""

    element: DType
    """int8 or int4."""
    rows: int
    columns: int
    """All of x is one row if there is one scale for all."""


def check(
    spec: DeviceSpec,
    x: Any,
    scale: Any,
    *,
    offset: Any = None,
    dst_dtype: Any = None,
    src_dtype: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract, is_310p = Contract("npu_anti_quant", spec), spec.series == "Atlas inference"
    numbers = contract.operand("x", x, (INT8,) if is_310p else (INT8, INT32))
    element, shape = _numbers_of(contract, numbers)
    s = contract.operand("scale", scale, (FLOAT32,) if is_310p else (FLOAT32, BFLOAT16))
    n = shape[-1] if shape else 1
    wanted = "(1,)" if n == 1 else f"(1,) or ({n},)"
    contract.require(
        s.shape in ((1,), (n,)),
        f"scale must have shape {wanted} for an output of shape {shape}, not {s.shape}; "
        f"pass one scale, or one for each number of the last dimension",
    )
    o = contract.optional("offset", offset, (s.element,), " like scale")
    contract.require(
        o is None or o.shape == s.shape,
        f"offset must have the shape of scale, {s.shape}, not {o.shape if o else None}; "
        f"{same_shape_remedy(o, s) if o else 'leave it out'}",
    )
    choices = ("float16",) if is_310p else ("float16", "bfloat16")
    target = "float16" if dst_dtype is None else dst_dtype
    name = contract.choice("dst_dtype", target, choices, f" on {spec.series}")
    kind = "int8" if element is INT8 else "quint4x2"
    source = kind if src_dtype is None else src_dtype
    contract.choice("src_dtype", source, (kind,), f" for {numbers.spec.dtype} numbers")
    columns = prod(shape) if s.spec.size == 1 else n
    return Problem(
        inputs=present(numbers, s, o),
        outputs={"output": TensorSpec(shape, name)},
        element=element,
        rows=prod(shape) // columns if columns else 0,
        columns=columns,
    )


def _numbers_of(contract: Contract, x: Operand) -> tuple[DType, tuple[int, ...]]:
    """What x holds, and the shape of y: int4 packed in int32 becomes eight times as many."""
    if x.element is INT8:
        return INT8, x.shape
    contract.require(
        len(x.shape) > 0, "x must have at least one dimension if it is int32, not none; reshape it"
    )
    return INT4, (*x.shape[:-1], INT4_PER_INT32 * x.shape[-1])


# ---- tiling ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """A rectangle for each core, a row or a part of a row at a time."""

    rows_per_core: int
    columns_per_core: int
    column_step: int


RESERVED_BYTES = 1024
"""Of the unified buffer, left alone (ascend_anti_quant_v2, arch22 tiling)."""
BLOCK_ELEMENTS = 512
"""Elements are shared out in these units (the same tiling)."""
MOVING_BYTES = 12
"""Of the buffer, an element: int8 and 16-bit floats twice each, and fp16 and fp32 on the way."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """One scale: whole buffers of elements a core. A scale a column: rows are shared out."""
    cores = len(spec.vector_cores)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES
    vectors = p.inputs[1:]
    if vectors[0].spec.size == 1:
        step_columns = align_down(room // MOVING_BYTES, BLOCK_ELEMENTS)
        least = align_down(step_columns // BLOCK_ELEMENTS, 2)
        blocks = max(least, ceil_div(ceil_div(p.columns, BLOCK_ELEMENTS), cores))
        shape = p.rows, min(p.columns, blocks * BLOCK_ELEMENTS)
    else:
        # A vector takes its own type and, if that is not float32, float32 beside it.
        fixed = sum(4 if x.element is FLOAT32 else 4 + x.element.bits // 8 for x in vectors)
        step_columns = align_down(room // (MOVING_BYTES + fixed), BLOCK_ELEMENTS)
        if p.output.element.nbytes(p.columns) < spec.transfer.store_granule_bytes:
            # Such rows spill into the next ones when they are stored, so one core takes them all.
            cores = 1
        shape = ceil_div(p.rows, cores), p.columns
    rows, columns = shape
    return Plan(
        block_dim=ceil_div(p.rows, rows) * ceil_div(p.columns, columns),
        rows_per_core=rows,
        columns_per_core=columns,
        column_step=min(step_columns, align_up(columns, BLOCK_ELEMENTS)),
    )


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with rectangles of the same size share their program."""
    kernel = AntiQuant(spec, p, plan)
    programs: dict[tuple[int, int], Program] = {}
    blocks: list[Block] = []
    x, y = _matrices(p)
    for row, rows in pieces(p.rows, plan.rows_per_core):
        for column, columns in pieces(p.columns, plan.columns_per_core):
            if (rows, columns) not in programs:
                programs[rows, columns] = kernel.program(rows, columns)
            core, bound = len(blocks), bindings(x[row:, column:], y[row:, column:], *_vectors(p))
            blocks.append(Block(core, spec.vector_cores[core], programs[rows, columns], bound))
    return tuple(blocks)


def _matrices(p: Problem) -> tuple[GmView, GmView]:
    """x and y as matrices `(rows, columns)` of numbers."""
    x = GmView.of("x", p.element, p.rows, p.columns)
    return x, GmView.of("output", p.output.element, p.rows, p.columns)


def _vectors(p: Problem) -> list[GmView]:
    return [GmView.vector(x.name, x.element, x.spec.size) for x in p.inputs[1:]]


class AntiQuant:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = builder = Builder(
            "npu_anti_quant", spec.cores[spec.vector_kinds[0]], spec.sync
        )
        width = plan.column_step
        self.x = builder.queue("ub", p.element.nbytes(width), "mte2", "vector", 2)
        self.y = builder.queue("ub", p.output.element.nbytes(width), "vector", "mte3", 2)
        self.work = builder.claim("ub", FLOAT32.nbytes(width))
        self.is_single = p.inputs[1].spec.size == 1
        self.vectors = {
            view.name: ColumnVector.claim(builder, view.dtype, min(width, view.columns), spec=spec)
            for view in _vectors(p)
        }
        self.numbers: dict[str, Local] = {}
        """Numbers along the columns; where there is one for all, it is in a register instead."""
        self.writer = Writer(builder, spec)

    def program(self, rows: int, columns: int) -> Program:
        """*rows* x *columns*, from where the block's tensors begin."""
        x, y = _matrices(self.p)
        if self.is_single:
            for view in _vectors(self.p):
                self.vectors[view.name].take_number(view, view.name)
                self.vectors[view.name].drop()
        for column, width in pieces(columns, self.plan.column_step):
            here = slice(column, column + width)
            if not self.is_single:
                for view in _vectors(self.p):
                    self.numbers[view.name] = self.vectors[view.name].take(view[:, here])
            for row, count in pieces(rows, BODY_ROWS):
                some = slice(row, row + count), here
                # Where the numbers are depends on the width alone: they have one buffer each.
                repeat(self.builder, self.rows, x[some], y[some])
            for vector in self.vectors.values():
                vector.drop()
        return self.builder.build()

    def rows(self, x: GmView, y: GmView) -> None:
        """*x* to *y*, both `(rows, width)`, one after the other."""
        for row in range(x.rows):
            here = slice(row, row + 1), slice(None)
            self.row(x[here], y[here])

    def row(self, x: GmView, y: GmView) -> None:
        """*x* to *y*, both `(1, width)`."""
        # (width,) int8 or int4 -> fp16 -> fp32: both steps are exact.
        slot = load(self.builder, self.spec, self.x, x)
        values = self.work.of(FLOAT32, x.columns)
        to_float32(self.builder, values, slot.of(x.dtype, x.columns))
        self.x.free(slot)
        if "offset" in self.vectors:
            self.apply("add", "offset", values)
        self.apply("mul", "scale", values)
        # 310P has one conversion to fp16, and that rounds to nearest even as well.
        rounding: RoundMode = "none" if self.spec.arch == "2002" else "rint"
        out = self.y.alloc()
        step(self.builder, Cast(out.of(y.dtype, y.columns), values, rounding))
        self.writer.store(self.y, out, y)

    def apply(self, op: BinaryOp, name: str, values: Local) -> None:
        """`values = values op number`, the number of each column or that of the register *name*."""
        if self.is_single:
            step(self.builder, BinaryScalar(op, values, values, name))
        else:
            step(self.builder, Binary(op, values, values, self.numbers[name].at(0, values.count)))


# ---- reference ----


def reference(
    x: Array,
    scale: Array,
    *,
    offset: Array | None = None,
    dst_dtype: str | None = None,
    src_dtype: str | None = None,  # noqa: ARG001
    spec: DeviceSpec | None = None,
) -> Array:
    """Whole arrays in plain numpy: y `(..., n)` of *dst_dtype*, float16 unless told otherwise.

    *spec* says what overflow does; None is an Atlas A2 or A3.
    """
    if x.dtype == np.int32:
        nibbles = (x[..., None] >> np.arange(0, 32, 4, dtype=np.int32)) & 0xF
        x = ((nibbles ^ 8) - 8).reshape(*x.shape[:-1], -1)
    target = dtype_named(dst_dtype or "float16")
    with np.errstate(over="ignore", invalid="ignore"):
        values = x.astype(np.float32)
        if offset is not None:
            values = values + offset.astype(np.float32)
        values = values * scale.astype(np.float32)
        if spec is not None and spec.half_overflow == "saturate":
            largest = float(np.finfo(np.float16).max)
            values = np.clip(np.where(np.isnan(values), 0, values), -largest, largest)
        return np.asarray(values.astype(target.numpy))


TORCH = TorchFunction(
    schema="npu_anti_quant(Tensor x, Tensor scale, *, Tensor? offset=None, "
    "int? dst_dtype=None, int? src_dtype=None) -> Tensor",
    aclnn=lambda _: "aclnnAscendAntiQuant",
    outputs=lambda given, _: ((_shape(given["x"]), given["dst_dtype"] or "float16"),),
    dtypes={"dst_dtype": {}, "src_dtype": {"qint8": "int8"}},
)


def _shape(x: TorchTensor) -> tuple[Any, ...]:
    """The shape of y, whose last dimension is eight times that of packed int4."""
    is_packed = x.dtype == "int32"
    return (*x.shape[:-1], INT4_PER_INT32 * x.shape[-1]) if is_packed else x.shape


OPERATOR = Operator(
    name="npu_anti_quant",
    kernel_type="AscendAntiQuant",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    torch=(TORCH,),
)
