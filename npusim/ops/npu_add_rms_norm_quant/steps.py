"""What the kernels of npu_add_rms_norm_quant have in common.

ops-nn@e5c3fa9 norm/add_rms_norm_quant/op_kernel; of the kernel for a single scale, of which only
the arithmetic is known here (norm/add_rms_norm_quant_v2), the schedule is assumed to be the same.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Cast,
    Local,
    ScalarAlu,
    ScalarLoad,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.adding import add, add_in_float32
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import float_bits, narrow, widen
from npusim.ops._rms_norm.sums import LANES
from npusim.ops.npu_add_rms_norm_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_quant.tiling import Plan

__all__ = ["QuantSteps", "vector_of", "views_of"]


def vector_of(operand: Operand) -> GmView:
    """An operand in global memory, as one row."""
    return GmView.vector(operand.name, operand.element, operand.spec.size)


def views_of(p: Problem) -> tuple[GmView, ...]:
    """x1, x2, the output, x and, with second scales, y2, `(rows, columns)`."""
    narrow_views = {
        name: GmView.of(name, p.x.element, p.rows, p.columns) for name in ("x1", "x2", "x")
    }
    outputs = [GmView.of(name, INT8, p.rows, p.columns) for name in ("output", "y2")]
    found = (narrow_views["x1"], narrow_views["x2"], outputs[0], narrow_views["x"])
    return (*found, outputs[1]) if p.scales[1] is not None else found


class QuantSteps:
    """The program of a core, small buffers, and steps that a row takes."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        name = "npu_add_rms_norm_quant"
        self.builder = Builder(name, spec.cores[spec.vector_kinds[0]], spec.sync)
        claim = self.builder.claim
        self.padded = whole_blocks(plan.column_step, p.x.element)
        self.lanes = claim("ub", FLOAT32.nbytes(LANES))
        self.scale, self.point = claim("ub", 2 * BLOCK_BYTES), claim("ub", 2 * BLOCK_BYTES)
        """The only ones, where they are no vectors."""
        is_late = plan.template == "single_n" or p.beta is not None
        self.is_rounded = is_late and not p.per_tensor
        self.in_half = p.x.element is FLOAT16 and not p.per_tensor
        """Whether fp16 is added and multiplied by gamma as such."""

    @property
    def quantisers(self) -> tuple[tuple[Operand, Operand | None], ...]:
        """Scales and zero points that are vectors, for the first output and for the second."""
        p = self.p
        if p.per_tensor:
            return ()
        pairs = zip(p.scales, p.zero_points, strict=True)
        return tuple((scale, point) for scale, point in pairs if scale is not None)

    # ---- vectors ----

    def fill_wide(self, slot: Slot, view: GmView) -> None:
        """Load *view* into *slot*, which has room for fp32: 16 bits into its upper half."""
        start = 0 if view.dtype in (FLOAT32, INT32) else slot.nbytes // 2
        part = Slot(slot.buffer, slot.offset_bytes + start, slot.nbytes - start, -1)
        fill(self.builder, self.spec, part, view)

    def wide(self, slot: Slot, view: GmView) -> Local:
        """What `fill_wide` brought, in fp32."""
        wide, count = slot.of(FLOAT32, view.columns), view.columns
        if view.dtype is INT32:
            step(self.builder, Cast(wide, slot.of(INT32, count)))
        elif view.dtype is not FLOAT32:
            step(self.builder, Cast(wide, slot.of(view.dtype, count, slot.nbytes // 2)))
        return wide

    def read_numbers(self) -> None:
        """The only scale and zero point: 1 / scale into register `inverse`, the other `point`."""
        if not self.p.per_tensor:
            return
        point = self.p.zero_points[0]
        assert point is not None
        pairs = ((self.scale, vector_of(self.p.scales[0])), (self.point, vector_of(point)))
        for slot, view in pairs:
            self.fill_wide(slot, view)
        self.builder.sync("mte2", "vector")
        scale, number = (self.wide(slot, view) for slot, view in pairs)
        self.builder.sync("vector", "scalar")
        self.builder.emit(
            ScalarLoad("scale", scale),
            ScalarAlu("f32_div", "inverse", float_bits(1), "scale"),
            ScalarLoad("point", number),
        )
        self.builder.sync("scalar", "vector")

    # ---- a row ----

    def add(self, out: Local, values: Local, addends: tuple[Local, Local], work: Local) -> None:
        """The sum of *addends* to *out*, and in fp32 to *values*, rounded or not."""
        where = self.builder, self.spec, out, values, addends, work
        if self.in_half:
            add(*where, is_rounded=True)
            return
        add_in_float32(*where)
        if self.is_rounded:
            widen(self.builder, values, out)

    def square(self, squares: Local, values: Local) -> None:
        """The squares of *values*, each times 1 / n."""
        step(self.builder, Binary("mul", squares, values, values))
        step(self.builder, BinaryScalar("mul", squares, squares, self.p.mean))

    def times_gamma(self, values: Local, gamma: Local, work: Local) -> None:
        """*values* times *gamma*, which fp16 rounds before and behind."""
        if self.in_half:
            halves = work.as_dtype(FLOAT16, values.count)
            narrow(self.builder, self.spec, halves, values)
            step(self.builder, Binary("mul", halves, halves, gamma))
            widen(self.builder, values, halves)
            return
        widen(self.builder, work, gamma)
        step(self.builder, Binary("mul", values, values, work))

    def plus_beta(self, values: Local, beta: Local, work: Local) -> None:
        """*values* plus *beta*."""
        widen(self.builder, work, beta)
        step(self.builder, Binary("add", values, values, work))

    def quantise(
        self, out: Local, dst: Local, values: Local, scale: Local | None, point: Local | None
    ) -> None:
        """*values* scaled to *dst* and narrowed to int8 *out*; without *scale* by registers."""
        builder = self.builder
        if scale is None:
            step(builder, BinaryScalar("mul", dst, values, "inverse"))
            step(builder, BinaryScalar("add", dst, dst, "point"))
        else:
            step(builder, Binary("div" if self.p.divides else "mul", dst, values, scale))
            if point is not None:
                step(builder, Binary("add", dst, dst, point))
        to_quantised(builder, self.spec, out, dst)
