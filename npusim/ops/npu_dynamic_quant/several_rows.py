"""The templates multi_row and single_row: several rows per instruction.

The rows of a piece are contiguous in the buffer, so an instruction covers all of them, except those
that find the largest magnitude of each. No value passes through the scalar unit, except in
multi_row with pieces of one row.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_{multi,single}_row.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.data.integers import align_up
from npusim.isa import Local
from npusim.kernel import (
    BLOCK_BYTES,
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    Block,
    GmView,
    Step,
    VectorCore,
    pieces,
)
from npusim.kernel.broadcast import broadcast_numbers, broadcast_row, repeat_row, spread_numbers
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    fill_constants,
    launch_pieces,
    pieces_of_cores,
)
from npusim.ops._row_quant import fold_rows, round_by_int16

TENSOR_UNIT = 32
"""The tensors of multi_row have room for a multiple of this many elements."""
PER_ROW = 192
"""Elements of each per-row vector for which multi_row has room."""
SPREAD_ROWS = 32
"""Rows per BroadCast: the 1152 bytes beyond its tensors have room for this many."""


def _find_maxima(
    core: VectorCore, result: Local, magnitudes: Local, *, waits: bool = False
) -> None:
    """Write the maximum of each row of *magnitudes* `(rows, columns)`, overwritten, to *result*.

    *waits* writes one more barrier, behind all rows.
    """
    firsts = fold_rows(core, magnitudes, result.count)
    if waits:
        core.barrier("vector")
    core.whole_reduce("max", result, firsts)


def multi_row(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Process as many rows as 255 repeats hold in fp32; all buffers are single."""
    rows = SeveralRows(core, p, plan)
    found, views = pieces_of_cores(p, plan)
    return core.launch(Step(rows.piece, (*views, found.is_first), found.core), begin=rows.begin)


class SeveralRows:
    """The steps of multi_row, and its buffers."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, columns, size = core, p, p.columns, plan.row_step * p.columns
        self.x = core.tile(p.x.element, align_up(size, TENSOR_UNIT))
        self.smooth = SmoothScales.claimed(core, p, columns) if p.smooth_scales else None
        self.values, self.work = (core.tile(FLOAT32, align_up(size, TENSOR_UNIT)) for _ in range(2))
        # One byte per element, for int4 too.
        self.y = core.tile(INT8, align_up(size, TENSOR_UNIT))
        self.scales, self.absmax, self.factor = (core.tile(FLOAT32, PER_ROW) for _ in range(3))
        self.largest, self.inverse = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
        self.blocks = core.tile(FLOAT32, SPREAD_ROWS * FLOATS_PER_BLOCK)

    def begin(self) -> None:
        """Load constants, and the smooth scales; no barrier follows."""
        fill_constants(self.core, self.p, self.largest, self.inverse)
        if self.smooth is not None:
            self.smooth.keep()

    def piece(self, x: GmView, output: GmView, scale: GmView, is_first: int) -> None:
        """Quantise rows that are loaded together; all but the first of the core wait for stores."""
        core, rows, count = self.core, x.rows, x.rows * x.columns
        # (rows, columns) as fp32, and scratch of the same size
        values, work = self.values[:count], self.work[:count]
        # A mask of 64 lanes, of which those behind the rows are never used.
        lanes = align_up(rows, FLOATS_PER_REPEAT)
        core.fetch(self.x, x.flat)
        core.cast(values, self.x[:count])
        # Everything is in fp32 now: mte2 may load the next piece.
        core.sync("vector", "mte2")
        self.smoothen(values, work)
        core.abs(work, values)
        _find_maxima(core, self.absmax[:rows], work)
        core.div(self.factor[:lanes], self.largest.again(lanes), self.absmax[:lanes])
        self.repeat_factors(work, self.factor[:rows])
        core.mul(work, values, work)
        halves = round_by_int16(core, work)
        if not is_first:
            core.sync("mte3", "vector")
        y = self.y.as_dtype(self.p.target, count)
        with core.independent():
            core.mul(self.scales[:lanes], self.absmax[:lanes], self.inverse.again(lanes))
            core.cast(y, halves, "trunc")
        core.sync("vector", "mte3")
        core.data_copy(scale.operand, self.scales[:rows])
        core.data_copy(output.flat.operand, y)

    def smoothen(self, values: Local, work: Local) -> None:
        """Multiply *values* `(rows, columns)` by the smooth scales, if there are any."""
        core, columns = self.core, self.p.columns
        if self.smooth is None:
            return
        factors = self.smooth.tile[:columns]
        if values.count > columns:
            broadcast_row(core, work, factors, self.blocks)
            core.barrier("vector")
            factors = work
        core.mul(values, values, factors)

    def repeat_factors(self, plane: Local, factors: Local) -> None:
        """Copy each of *factors* `(rows,)` to its row of *plane* `(rows, columns)`."""
        columns = plane.count // factors.count
        for first, count in pieces(factors.count, SPREAD_ROWS):
            rows = plane[first * columns : (first + count) * columns]
            broadcast_numbers(self.core, rows, factors[first : first + count], self.blocks)
        self.core.barrier("vector")


class LongRows:
    """The steps of single_row, and its buffers."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, size = core, p, plan.row_step * p.columns
        self.in_half = p.x.element is FLOAT16 and p.smooth_scales is None
        eights = align_up(plan.row_step, FLOATS_PER_BLOCK) * FLOATS_PER_BLOCK
        # Room for fp32; 16-bit elements go to the upper half unless they remain 16 bits wide.
        self.x_in, self.start = core.vecin(FLOAT32, size), 0 if self.in_half else size
        scales_bytes = FLOAT32.nbytes(plan.row_step) + BLOCK_BYTES
        # y, followed by the scales.
        self.y_out, self.scales_start = core.vecout(INT8, size + scales_bytes), size
        self.work = core.tile(FLOAT32, size)
        self.blocks, self.factor = core.tile(FLOAT32, eights), core.tile(FLOAT32, eights)
        self.smooth = SmoothScales.claimed(core, p, p.columns) if p.smooth_scales else None

    def begin(self) -> None:
        """Load the smooth scales."""
        if self.smooth is not None:
            self.smooth.keep()
            self.core.barrier("vector")

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """Quantise rows that are loaded together."""
        core, rows, count = self.core, x.rows, x.rows * x.columns
        loaded = self.x_in.alloc()
        narrow = loaded.as_dtype(x.dtype)[self.start : self.start + count]
        core.data_copy(narrow, x.flat.operand)
        self.x_in.enque(loaded)
        self.x_in.deque()
        wide, work, factor = loaded[:count], self.work[:count], self.factor[:rows]
        found = self.absmax_in_half if self.in_half else self.absmax
        largest = found(wide, work, narrow)
        out = self.y_out.alloc()
        scales = out[self.scales_start :].as_dtype(FLOAT32, rows)
        if self.in_half:
            core.cast(scales, largest)
            largest = scales
        else:
            core.mul(scales, largest, 1 / self.p.largest)
        core.duplicate(factor, self.p.largest)
        core.div(factor, factor, largest)
        if self.in_half:
            core.mul(scales, scales, 1 / self.p.largest)
        values, plane = (work, wide) if self.in_half else (wide, work)
        spread_numbers(core, plane, factor, self.blocks)
        core.mul(work, values, plane)
        self.x_in.free(loaded)
        core.quantize(out.as_dtype(self.p.target, count), work, ("round", "trunc"))
        self.y_out.enque(out)
        out = self.y_out.deque()
        core.data_copy(scale.operand, scales)
        core.data_copy(output.flat.operand, out.as_dtype(self.p.target, count))
        self.y_out.free(out)

    def absmax_in_half(self, wide: Local, work: Local, narrow: Local) -> Local:
        """Convert fp16 *narrow* to fp32 in *work*; M of each row in fp16, in the buffer of x."""
        core = self.core
        core.cast(work, narrow)
        core.abs(narrow, narrow)
        largest = narrow[: wide.count // self.p.columns]
        _find_maxima(core, largest, narrow, waits=True)
        return largest

    def absmax(self, wide: Local, work: Local, narrow: Local) -> Local:
        """Convert *narrow* to fp32 in *wide*, smoothed; M of each row, at the start of *work*."""
        core, columns = self.core, self.p.columns
        core.cast(wide, narrow)
        if self.smooth is not None:
            repeat_row(core, work, self.smooth.tile[:columns])
            core.mul(wide, wide, work)
        core.abs(work, wide)
        largest = work[: wide.count // columns]
        _find_maxima(core, largest, work, waits=True)
        return largest


def single_row(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Up to 16384 elements, in rows of 4096, 5120 or 10240.

    Without smooth scales the maxima of fp16 elements are found in fp16.
    """
    rows = LongRows(core, p, plan)
    return launch_pieces(core, p, plan, rows.piece, rows.begin)
