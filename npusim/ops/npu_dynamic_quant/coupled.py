"""The programs of 310P's AI cores for npu_dynamic_quant: all in fp16, a scalar trip a row.

.. code-block:: text

    M = max|x|                       fp16; on 310P NaN counts as 0 and infinity as 65504
    y = fit(round(x * f16(127 / M)))  fp16, ties away from zero
    scale = M * f32(1 / 127)

Sources: ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_{align,unalign,
unalign_large}_310p.h. That the scalar unit saturates where 127 / M is beyond fp16 is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    BinaryScalar,
    Cast,
    Local,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import float_bits, matrices
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core that has rows; cores with as many rows share their program."""
    kind = LongRows if plan.template == "unaligned_large" else Patches
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, output, scale = matrices(p)
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        if rows and rows not in programs:
            programs[rows] = kind(spec, p, plan).program(rows)
        if rows:
            bound = bindings(x[first:, :], output[first:, :], scale[:, first:])
            blocks.append(Block(core, "ai_core", programs[rows], bound))
        first += rows
    return tuple(blocks)


class HalfSteps:
    """The buffers of a core, and what it does with a row in fp16."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_dynamic_quant", spec.cores["ai_core"], spec.sync)
        queue, rows = self.builder.queue, plan.row_step
        # Rows of whole blocks of int8, and so of x.
        self.x_pitch, self.y_pitch = (x.nbytes(plan.column_step) for x in (FLOAT16, INT8))
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.magnitudes = self.builder.claim("ub", self.x_pitch)
        self.absmax = queue("ub", BLOCK_BYTES, "vector", "scalar")
        self.found = queue("ub", FLOAT32.nbytes(rows), "scalar", "vector")
        """M of each row of a patch, in fp32."""
        scale_bytes = align_up(FLOAT32.nbytes(rows), BLOCK_BYTES)
        self.scale = queue("ub", scale_bytes, "vector", "mte3")
        self.writer = Writer(self.builder, spec)

    def read_absmax(self, x: Local) -> None:
        """The largest magnitude of *x* `(width,)` into register `half`, as the bits of an fp16."""
        slot, magnitudes = self.absmax.alloc(), self.magnitudes.of(FLOAT16, x.count)
        step(self.builder, Unary("abs", magnitudes, x))
        absmax = slot.of(FLOAT16, 1)
        step(self.builder, Reduce("max", absmax, magnitudes))
        self.absmax.enque(slot)
        slot = self.absmax.deque()
        self.builder.emit(ScalarLoad("half", absmax))
        self.absmax.free(slot)

    def find_factor(self) -> None:
        """From register `half`: M in fp32 into `largest`, 127 / M in fp16 into `factor`."""
        self.builder.emit(
            ScalarAlu("f16_to_f32", "largest", "half"),
            ScalarAlu("f32_div", "factor", float_bits(127), "largest"),
            ScalarAlu("f32_to_f16", "factor", "factor"),
            # A row of zeros keeps them: its factor would be infinite.
            ScalarAlu("eq", "zero", "half", 0),
            ScalarAlu("select", "factor", "zero", 0, "factor"),
        )

    def quantise(self, y: Local, x: Local) -> None:
        """*x* `(width,)` times register `factor`, in its place, and rounded into *y*."""
        step(self.builder, BinaryScalar("mul", x, x, "factor"))
        step(self.builder, Cast(y, x, "round"))

    def store_scales(self, found: Slot, scale: GmView) -> None:
        """M / 127 of all rows of a patch to *scale* `(rows,)`."""
        self.found.enque(found)
        found, out = self.found.deque(), self.scale.alloc()
        # (rows,) M -> (rows,) scales
        absmax, scales = (slot.of(FLOAT32, scale.columns) for slot in (found, out))
        self.builder.emit(BinaryScalar("mul", scales, absmax, 1 / 127))
        self.found.free(found)
        self.writer.store(self.scale, out, scale)


class Patches:
    """The templates aligned and unaligned: whole rows, the next patch loaded before this one."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.steps = HalfSteps(spec, p, plan)

    def program(self, rows: int) -> Program:
        """*rows* rows, patch by patch."""
        steps = self.steps
        x, output, scale = matrices(steps.p)
        patches = [slice(row, row + count) for row, count in pieces(rows, steps.plan.row_step)]
        self._load(x[patches[0], :])
        for here, after in zip(patches, [*patches[1:], None], strict=True):
            if after is not None:
                self._load(x[after, :])
            self._patch(steps.x.deque(), output[here, :], scale[:, here])
        return steps.builder.build()

    def _load(self, x: GmView) -> None:
        slot = self.steps.x.alloc()
        fill(self.steps.builder, self.steps.spec, slot, x)
        self.steps.x.enque(slot)

    def _patch(self, slot: Slot, output: GmView, scale: GmView) -> None:
        """*output* `(rows, columns)` and *scale* `(rows,)` of the rows of x in *slot*."""
        steps, columns = self.steps, output.columns
        out, found = steps.y.alloc(), steps.found.alloc()
        for row in range(output.rows):
            x = slot.of(FLOAT16, columns, row * steps.x_pitch)
            steps.read_absmax(x)
            steps.find_factor()
            store = ScalarStore(found.of(FLOAT32, 1, FLOAT32.nbytes(row)), "largest")
            steps.builder.emit(store)
            # (columns,) fp16 x factor -> int8
            steps.quantise(out.of(INT8, columns, row * steps.y_pitch), x)
        steps.x.free(slot)
        steps.writer.store(steps.y, out, output)
        steps.store_scales(found, scale)


class LongRows:
    """The template unaligned_large: eight rows at a time, in parts of 4096 columns.

    What is left of the columns is quantised with the first pass; the parts before are loaded again,
    a row at a time.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.steps = HalfSteps(spec, p, plan)
        self.step = plan.column_step

    def program(self, rows: int) -> Program:
        """*rows* rows, patch by patch."""
        steps = self.steps
        x, output, scale = matrices(steps.p)
        for row, count in pieces(rows, steps.plan.row_step):
            here = slice(row, row + count)
            views = x[here, :], output[here, :], scale[:, here]
            repeat(steps.builder, self._patch, *views)
        return steps.builder.build()

    def _patch(self, x: GmView, output: GmView, scale: GmView) -> None:
        """*output* and *scale* `(rows,)` of *x*, both `(rows, columns)`."""
        steps, found = self.steps, self.steps.found.alloc()
        whole = x.columns // self.step * self.step
        parts = [slice(start, start + self.step) for start in range(0, whole, self.step)]
        for part in parts:
            slot = load(steps.builder, steps.spec, steps.x, x[:, part])
            for row in range(x.rows):
                self._take_absmax(slot, row, self.step, found, is_first=part.start == 0)
            steps.x.free(slot)
        if whole < x.columns:
            self._quantise_rest(x[:, whole:], output[:, whole:], found)
        for part in parts:
            for row in range(x.rows):
                here = slice(row, row + 1), part
                self._quantise_row(x[here], output[here], found, row)
        self._finish(found, scale)

    def _take_absmax(
        self, slot: Slot, row: int, width: int, found: Slot, *, is_first: bool = False
    ) -> None:
        """M so far of a *row* of the part in *slot*, as the bits of an fp16, to *found*."""
        steps = self.steps
        steps.read_absmax(slot.of(FLOAT16, width, row * FLOAT16.nbytes(width)))
        kept = found.of(FLOAT32, 1, FLOAT32.nbytes(row))
        if not is_first:
            # Bits of magnitudes are in the order of their numbers.
            steps.builder.emit(
                ScalarLoad("before", kept), ScalarAlu("max", "half", "half", "before")
            )
        steps.builder.emit(ScalarStore(kept, "half"))

    def _factor_of(self, found: Slot, row: int) -> None:
        self.steps.builder.emit(ScalarLoad("half", found.of(FLOAT32, 1, FLOAT32.nbytes(row))))
        self.steps.find_factor()

    def _quantise_rest(self, x: GmView, output: GmView, found: Slot) -> None:
        """The last columns, which complete M, *x* to *output*, both `(rows, width)`."""
        steps, width = self.steps, x.columns
        slot, out = load(steps.builder, steps.spec, steps.x, x), steps.y.alloc()
        for row in range(x.rows):
            self._take_absmax(slot, row, width, found)
            self._factor_of(found, row)
            here = slot.of(FLOAT16, width, row * FLOAT16.nbytes(width))
            steps.quantise(out.of(INT8, width, row * INT8.nbytes(width)), here)
        steps.x.free(slot)
        steps.writer.store(steps.y, out, output)

    def _quantise_row(self, x: GmView, output: GmView, found: Slot, row: int) -> None:
        """A part of a row, *x* to *output*, both `(1, width)`."""
        steps, width = self.steps, x.columns
        slot = load(steps.builder, steps.spec, steps.x, x)
        self._factor_of(found, row)
        out = steps.y.alloc()
        steps.quantise(out.of(INT8, width), slot.of(FLOAT16, width))
        steps.x.free(slot)
        steps.writer.store(steps.y, out, output)

    def _finish(self, found: Slot, scale: GmView) -> None:
        """The M of all rows as numbers, and from them the scales."""
        for row in range(scale.columns):
            self._factor_of(found, row)
            kept = found.of(FLOAT32, 1, FLOAT32.nbytes(row))
            self.steps.builder.emit(ScalarStore(kept, "largest"))
        self.steps.store_scales(found, scale)
