"""The program that each core runs for npu_swiglu_quant.

swiglu takes all rows of a piece an instruction; they are smoothed and quantised row by row, with a
trip to the scalar unit for the largest number of each.

ops-nn@e5c3fa9 quant/swi_glu_quant/op_kernel/swi_glu_quant.h, _static.h and _base.h. Assumed: in
which order buffers lie.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Copy,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.cross_core import sync_all
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat, store
from npusim.ops.npu_swiglu_quant.contract import Problem
from npusim.ops.npu_swiglu_quant.tiling import Plan

__all__ = ["build"]

FLOATS_PER_BLOCK = 8
STARTED = 0
"""Flag of all cores: each has read the group_index."""

Groups = tuple[int, ...]
"""The group of each row."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose rows belong to the same groups share their program."""
    kernel = SwiGluQuant(spec, p, plan)
    programs: dict[Groups, Program] = {}
    blocks: list[Block] = []
    x, y, scale = _views(p, p.rows)
    whole = [GmView.vector(each.name, each.element, each.spec.size) for each in p.inputs[1:]]
    group_of, first = p.group_of, 0
    for core, rows in enumerate(plan.rows_of_core):
        groups = tuple(group_of[first : first + rows].tolist())
        if groups not in programs:
            programs[groups] = kernel.program(groups)
        bound = bindings(x[first:, :], y[first:, :], scale[:, first:], *whole)
        blocks.append(Block(core, "aiv", programs[groups], bound))
        first += rows
    return tuple(blocks)


def _views(p: Problem, rows: int) -> tuple[GmView, GmView, GmView]:
    """x `(rows, 2 x columns)`, y `(rows, columns)` and the scales `(rows,)`."""
    x = GmView.of("x", p.x.element, rows, 2 * p.columns)
    y = GmView.of("output", p.target, rows, p.columns)
    return x, y, GmView.vector("scale", FLOAT32, rows)


class SwiGluQuant:
    """The kernel of one core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_swiglu_quant", spec.cores["aiv"], spec.sync)
        queue, claim, rows = self.builder.queue, self.builder.claim, plan.row_step
        element, row_bytes = p.x.element, FLOAT32.nbytes(p.columns)
        self.pitch = align_up(p.columns, BLOCK_BYTES // element.nbytes(1))
        """Elements from row to row in the buffer."""
        self.y_pitch_bytes = align_up(p.target.nbytes(p.columns), BLOCK_BYTES)
        count = rows * self.pitch
        self.a = queue("ub", element.nbytes(count), "mte2", "vector")
        self.b = queue("ub", element.nbytes(count), "mte2", "vector")
        self.y = queue("ub", rows * self.y_pitch_bytes, "vector", "mte3")
        self.scale = queue("ub", FLOAT32.nbytes(rows), "scalar", "mte3")
        self.values, self.work = (claim("ub", FLOAT32.nbytes(count)) for _ in range(2))
        self.smooth, self.offset = claim("ub", row_bytes), claim("ub", row_bytes)
        self.row, self.magnitudes = claim("ub", row_bytes), claim("ub", row_bytes)
        self.largest, self.absmax = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.factor = queue("ub", BLOCK_BYTES, "vector", "scalar")
        self.reduction = Reduction(self.builder, p.columns)
        self.index = claim("ub", INT32.nbytes(p.groups))
        self.group = 0
        """How far the scalar unit has looked in group_index."""
        self.writer = Writer(self.builder, spec)

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, piece by piece."""
        self._begin()
        x, y, scale = _views(self.p, len(groups))
        for row, count in pieces(len(groups), self.plan.row_step):
            here = slice(row, row + count)
            views = x[here, :], y[here, :], scale[:, here]
            repeat(self.builder, self._piece, *views, self.group, groups[here])
            self.group = max(self.group, groups[here][-1])
        return self.builder.build()

    def _begin(self) -> None:
        """Load group_index, sum counts up, and wait for all cores."""
        builder, p, self.group = self.builder, self.p, 0
        if p.group_index is not None:
            index = GmView.vector("group_index", INT32, p.groups)
            builder.data_copy(self.index.of(INT32, p.groups), index.operand)
            builder.sync("mte2", "scalar")
        if p.group_index is not None and p.holds_counts:
            builder.emit(ScalarAlu("add", "end", 0, 0))
            for group in range(p.groups):
                entry = self.index.of(INT32, 1, INT32.nbytes(group))
                builder.emit(
                    ScalarLoad("count", entry),
                    ScalarAlu("add", "end", "end", "count"),
                    ScalarStore(entry, "end"),
                )
        step(builder, Duplicate(self.largest.of(FLOAT32, FLOATS_PER_BLOCK), float(p.largest)))
        sync_all(builder, "mte3", "mte2", STARTED)

    def _piece(self, x: GmView, y: GmView, scale: GmView, before: int, groups: Groups) -> None:
        """*y* and *scale* `(rows,)` of *x*, whose rows belong to *groups*, the last to *before*."""
        self.group = before
        self._swiglu(x)
        # Every piece begins with the smooth scales of the group that the last one ended with.
        self._load_smooth()
        out, scales = self.y.alloc(), self.scale.alloc()
        for row, group in enumerate(groups):
            self._advance(group)
            values = self.row.of(FLOAT32, y.columns)
            source = self.values.of(FLOAT32, y.columns, FLOAT32.nbytes(row * self.pitch))
            step(self.builder, Copy(values, source))
            self._quantise(values, scales.of(FLOAT32, 1, FLOAT32.nbytes(row)), group)
            place = out.of(y.dtype, y.columns, row * self.y_pitch_bytes)
            to_quantised(self.builder, self.spec, place, values)
        self.writer.store(self.y, out, y, self.y_pitch_bytes)
        store(self.builder, self.scale, scales, scale)

    def _swiglu(self, x: GmView) -> None:
        """`(a / (exp(-a) + 1)) x b` of all rows of *x* `(rows, 2 x columns)` to `values`."""
        builder, columns, count = self.builder, self.p.columns, x.rows * self.pitch
        halves = x[:, :columns], x[:, columns:]
        active, other = halves if self.p.activate_left else halves[::-1]
        values, work = (slot.of(FLOAT32, count) for slot in (self.values, self.work))
        slot, waiting = (
            load(builder, self.spec, queue, view)
            for queue, view in ((self.a, active), (self.b, other))
        )
        self._widen(values, slot)
        self.a.free(slot)
        step(builder, BinaryScalar("mul", work, values, -1.0))
        step(builder, Unary("exp", work, work))
        step(builder, BinaryScalar("add", work, work, 1.0))
        step(builder, Binary("div", values, values, work))
        self._widen(work, waiting)
        self.b.free(waiting)
        step(builder, Binary("mul", values, values, work))

    def _widen(self, dst: Local, slot: Slot) -> None:
        """Numbers of x in fp32; those that are fp32 are copied."""
        source = slot.of(self.p.x.element, dst.count)
        if source.dtype is FLOAT32:
            step(self.builder, Copy(dst, source))
        else:
            to_float32(self.builder, dst, source)

    # ---- groups ----

    def _advance(self, group: int) -> None:
        """Look for the group of the next row, and load what belongs to it if it is another one."""
        if self.p.group_index is not None:
            last = min(group, self.p.groups - 1)
            if self.group <= last:
                # On the chip the row's number stands in a register; here it is known beforehand.
                first = self.index.of(INT32, 1, INT32.nbytes(self.group))
                body = (ScalarLoad("end", first, 4), ScalarAlu("lt", "inside", 0, "end"))
                self.builder.emit(ScalarLoop(1 + last - self.group, body))
        if group != self.group:
            self.group = group
            self._load_smooth()

    def _load_smooth(self) -> None:
        """Smooth scales and offsets of the current group."""
        if self.group >= self.p.groups:
            return
        builder, p = self.builder, self.p
        builder.sync("vector", "mte2")
        given = ((self.smooth, p.smooth_scales), (self.offset, p.offsets))
        for slot, operand in given:
            if operand is None:
                continue
            each = operand.spec.size // p.groups
            view = GmView.of(operand.name, FLOAT32, p.groups, each).row(self.group)
            builder.data_copy(slot.of(FLOAT32, each), view.operand)
        builder.sync("mte2", "vector")
        if self._has_numbers:
            builder.sync("mte2", "scalar")
            builder.emit(
                ScalarLoad("smooth", self.smooth.of(FLOAT32, 1)),
                ScalarLoad("offset", self.offset.of(FLOAT32, 1)),
            )

    @property
    def _has_numbers(self) -> bool:
        """Whether a group has one scale and one offset."""
        return not self.p.is_dynamic and len(self.p.smooth_scales.shape) == 1

    # ---- a row ----

    def _quantise(self, values: Local, scale: Local, group: int) -> None:
        """*values* `(columns,)` of *group* in place, not yet rounded, and their *scale* `(1,)`."""
        builder = self.builder
        if group < self.p.groups:
            self._apply_smooth(values)
        if not self.p.is_dynamic:
            builder.emit(ScalarAlu("add", "zero", 0, 0), ScalarStore(scale, "zero"))
            return
        magnitudes = self.magnitudes.of(FLOAT32, values.count)
        step(builder, Unary("abs", magnitudes, values))
        self.reduction.find_largest(self.absmax, magnitudes)
        slot = self.factor.alloc()
        factor, largest, absmax = (
            block.of(FLOAT32, FLOATS_PER_BLOCK) for block in (slot, self.largest, self.absmax)
        )
        builder.emit(Binary("div", factor, largest, absmax))
        self.factor.enque(slot)
        slot = self.factor.deque()
        builder.emit(ScalarLoad("factor", factor.at(0, 1)), ScalarStore(scale, "factor"))
        self.factor.free(slot)
        step(builder, BinaryScalar("mul", values, values, "factor"))

    def _apply_smooth(self, values: Local) -> None:
        """Times the scales of the group, and with quant_mode 0 plus its offsets."""
        builder, count = self.builder, values.count
        if self._has_numbers:
            step(builder, BinaryScalar("mul", values, values, "smooth"))
            step(builder, BinaryScalar("add", values, values, "offset"))
            return
        step(builder, Binary("mul", values, values, self.smooth.of(FLOAT32, count)))
        if not self.p.is_dynamic:
            step(builder, Binary("add", values, values, self.offset.of(FLOAT32, count)))
