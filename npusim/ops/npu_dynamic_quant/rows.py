"""The templates of A2 and A3 that process one row, or a part of one, per instruction.

db loads the next rows while it processes the present ones, and no value passes through the scalar
unit; base loads one row at a time, whose factor the scalar unit reads and divides. moe does the
same for pieces of rows, and loads other smooth scales when the group changes.

large and moe_large load a row twice, in parts: first for its largest magnitude, which the scalar
unit holds from part to part, then to be quantised with the factor of the row. large always loads
the next part ahead. moe_large has single buffers, smooth scales per group, and quantises the last
part at the end of the first pass, while it is still in the buffer.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel: dynamic_quant_base.h, dynamic_quant_db.h,
dynamic_quant.h, dynamic_quant_moe.h, dynamic_quant_large_shape_opt.h and
dynamic_quant_moe_large_shape.h. The scalar unit, which writes the scales of base and large, sets a
flag for their store, where the vendor's kernels rely on program order.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, zip_longest

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Binary, Cast, Local, WholeReduce
from npusim.kernel import (
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    Block,
    GmView,
    GmViews,
    Step,
    VectorCore,
)
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import parts_of, whole_blocks
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    fill_constants,
    launch_pieces,
    matrices,
    pieces_of_cores,
)
from npusim.ops._row_groups import Groups, GroupSearch
from npusim.ops._row_quant import (
    find_absmax,
    find_factor,
    find_max,
    fold_max,
    read_quotient,
    round_by_int16,
)

ROW_UNIT = 16
"""Rows of db and base are padded to a multiple of this many elements."""
NUMBERS = 128
"""Elements of the tensor of constants and per-row values."""


class Rows:
    """Buffers that db and base claim first: constants, room for a row twice, and smooth scales."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self.core, self.p, self.columns = core, p, p.columns
        numbers, padded = core.tile(FLOAT32, NUMBERS), align_up(p.columns, ROW_UNIT)
        self.largest, self.inverse, _, self.factor = (
            numbers[start : start + FLOATS_PER_BLOCK]
            for start in range(0, 4 * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
        )
        self.blocks = numbers[4 * FLOATS_PER_BLOCK :][: FLOATS_PER_BLOCK**2]
        """Eight copies of M of the row, and other results of Brcb."""
        # Full repeats: what lies behind the elements of the row is never used.
        self.whole = core.tile(FLOAT32, align_up(padded, FLOATS_PER_REPEAT))
        self.work = core.tile(FLOAT32, padded)
        self.smooth = self.narrow_smooth = None
        if p.smooth_scales is not None:
            self.smooth = core.tile(FLOAT32, padded)
            self.narrow_smooth = core.tile(p.x.element, padded)

    @property
    def values(self) -> Local:
        """The row in fp32."""
        return self.whole[: self.columns]

    def fetch_smooth(self) -> None:
        """Load the smooth scales, if there are any."""
        if self.narrow_smooth is None or self.smooth is None:
            return
        core, columns = self.core, self.columns
        core.fetch(self.narrow_smooth, GmView.vector("smooth_scales", self.p.x.element, columns))
        core.barrier("vector")
        core.cast(self.smooth[:columns], self.narrow_smooth[:columns])

    def smoothen(self) -> None:
        """Multiply the row by the smooth scales, if there are any."""
        if self.smooth is not None:
            self.core.mul(self.values, self.values, self.smooth[: self.columns])


class DoubleBuffered(Rows):
    """The steps of db, and its buffers."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        super().__init__(core, p)
        self.dtype = p.x.element
        self.x_pitch = whole_blocks(self.columns, self.dtype)
        self.y_pitch = whole_blocks(self.columns, p.target)
        self.x_in = core.vecin(self.dtype, plan.row_step * self.x_pitch, plan.depth)
        self.y_out = core.vecout(p.target, plan.row_step * self.y_pitch)
        self.scales = core.tile(FLOAT32, align_up(plan.row_step, FLOATS_PER_BLOCK))

    def begin(self) -> None:
        """Load constants, then the smooth scales."""
        fill_constants(self.core, self.p, self.largest, self.inverse)
        self.fetch_smooth()

    def fetch(self, x: GmView) -> None:
        """Start to load the rows *x*."""
        self.core.copy_in(self.x_in, x, self.x_pitch)

    def piece(self, output: GmView, scale: GmView) -> None:
        """Quantise the oldest rows that were fetched to *output*, and store their scales."""
        core, out = self.core, None
        loaded = self.x_in.deque()
        for row in range(output.rows):
            self.find_factor(loaded[row * self.x_pitch : row * self.x_pitch + self.columns])
            core.mul(self.whole, self.whole, self.factor.again(self.whole.count))
            halves = round_by_int16(core, self.values, self.work)
            # Allocated only when needed, while the last piece may still be stored.
            out = out or self.y_out.alloc()
            self.put(row, out[row * self.y_pitch : row * self.y_pitch + self.columns], halves)
        self.x_in.free(loaded)
        assert out is not None
        self.y_out.enque(out)
        self.y_out.deque()
        core.put_rows(out, output, self.y_pitch)
        core.data_copy(scale.operand, self.scales[: output.rows])
        self.y_out.free(out)

    def find_factor(self, x: Local) -> None:
        """Convert *x* `(columns,)` to fp32 in `values`, smoothed; eight copies of M and 127 / M."""
        core, work = self.core, self.work[: self.columns]
        if self.dtype is FLOAT16 and self.smooth is None:
            # In a separate buffer from x, which the vendor's kernel overwrites: no barrier is in
            # between.
            magnitudes = self.work.as_dtype(FLOAT16, 2 * self.work.count)[self.work.count :]
            magnitudes = magnitudes[: x.count]
            core.emit(Cast(self.values, x, "none"))
            core.abs(magnitudes, x)
            find_max(core, magnitudes[:1], magnitudes)
            # The whole row is widened again, for its first element.
            core.cast(work, magnitudes)
        else:
            core.widen(self.values, x)
            self.smoothen()
            find_absmax(core, work[:1], work, self.values)
        # The other seven are arbitrary: only the first of the blocks is used.
        core.brcb(self.blocks, self.work[:FLOATS_PER_BLOCK])
        core.div(self.factor, self.largest, self.blocks[:FLOATS_PER_BLOCK])

    def put(self, row: int, y: Local, halves: Local) -> None:
        """Write *halves* to *y*, and M / 127 of *row* by a mask of one lane; no barrier follows.

        What the next row overwrites first is no longer read.
        """
        here, lane = slice(row, row + 1), row % FLOATS_PER_BLOCK
        one = slice(lane, lane + 1)
        self.core.emit(
            Binary("mul", self.scales[here], self.blocks[one], self.inverse[one]),
            Cast(y, halves, "trunc"),
        )


def db(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Rows in whole blocks in the buffer, with the next ones loaded ahead."""
    rows = DoubleBuffered(core, p, plan)
    found, (x, *others) = pieces_of_cores(p, plan)
    loading, working = found.ahead
    return core.launch(
        Step(rows.fetch, (x,), found.core, loading, keeps_slots=True),
        Step(rows.piece, tuple(others), found.core, working, keeps_slots=True),
        begin=rows.begin,
    )


class SingleBuffered(Rows):
    """The steps of base, and its buffers."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        super().__init__(core, p)
        self.x_in = core.vecin(p.x.element, whole_blocks(p.columns, p.x.element), plan.depth)
        self.y_out = core.vecout(p.target, whole_blocks(p.columns, p.target))
        self.scale_out = core.vecout(FLOAT32, FLOATS_PER_BLOCK)
        core.claim_tails()

    def begin(self) -> None:
        """Load the smooth scales, then constants."""
        self.fetch_smooth()
        fill_constants(self.core, self.p, self.largest, self.inverse)

    def row(self, x: GmView, output: GmView, scale: GmView) -> None:
        """Quantise a row, whose tile is freed afterwards."""
        core, values, work = self.core, self.values, self.work[: self.columns]
        scales, loaded, out = self.scale_out.alloc(), core.load(self.x_in, x), self.y_out.alloc()
        core.widen(values, loaded[: self.columns])
        self.smoothen()
        find_absmax(core, work[:1], work, values)
        core.emit(Binary("div", work[:1], self.largest[:1], work[:1]))
        core.sync("vector", "scalar")
        core.get_value("factor", work[:1])
        core.alu("f32_div", "scale", 1.0, "factor")
        core.set_value(scales[:1], "scale")
        core.mul(values, values, "factor")
        halves = core.whole_halves(values, "round", work)
        core.emit(Cast(out[: self.columns], halves, "trunc"))
        self.y_out.enque(out)
        self.scale_out.enque(scales)
        core.sync("scalar", "mte3")
        self.x_in.free(loaded)
        self.y_out.deque()
        self.scale_out.deque()
        core.put_rows(out, output)
        core.data_copy(scale.operand, scales[:1])
        self.y_out.free(out)
        self.scale_out.free(scales)


def base(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One row at a time, all buffers single."""
    rows = SingleBuffered(core, p, plan)
    return launch_pieces(core, p, plan, rows.row, rows.begin)


def moe(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Pieces of whole rows, all buffers single."""
    rows, columns, dtype = plan.row_step, p.columns, p.x.element
    x_pitch, y_pitch = whole_blocks(columns, dtype), whole_blocks(columns, p.target)
    search, every = GroupSearch(core, p.groups), slice(columns)
    x_in, y_out = core.vecin(dtype, rows * x_pitch), core.vecout(p.target, rows * y_pitch)
    scale_out = core.tiles(FLOAT32, rows, "scalar", "mte3")
    smooth = SmoothScales.claimed(core, p, columns)
    values, work = (core.tile(FLOAT32, columns) for _ in range(2))
    largest, absmax = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    factors = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "vector", "scalar")
    reduction = Reduction(core, columns)
    core.claim_tails()

    def begin() -> None:
        search.begin()
        core.duplicate(largest, p.largest)

    def find_factor_of_row(scale: Local) -> None:
        """Compute 127 / M on the vector unit for register `factor`, its inverse for *scale*."""
        core.abs(work, values)
        reduction.find_largest(absmax, work)
        factor = read_quotient(core, factors, largest, absmax)
        core.alu("f32_div", "scale", 1.0, "factor")
        core.set_value(scale, "scale")
        factors.free(factor)

    def piece(x: GmView, output: GmView, scale: GmView, before: int, groups: Groups) -> None:
        loaded = core.load(x_in, x, x_pitch)
        # Every piece starts with the smooth scales of the last group of the previous one.
        smooth.take(every, before)
        out, scales = y_out.alloc(), scale_out.alloc()
        for row, group in enumerate(groups):
            search.advance(before, group)
            if group != before:
                smooth.take(every, group)
                before = group
            # (columns,) fp16 or bf16 -> fp32, smoothed
            core.widen(values, loaded[row * x_pitch : row * x_pitch + columns])
            core.mul(values, values, smooth.tile[:columns])
            find_factor_of_row(scales[row : row + 1])
            # (columns,) fp32 x factor -> int8 or int4
            core.mul(values, values, "factor")
            core.quantize(out[row * y_pitch : row * y_pitch + columns], values)
        x_in.free(loaded)
        core.store(y_out, out, output, y_pitch)
        core.store_rows(scale_out, scales, scale)

    return launch_pieces(core, p, plan, piece, begin)


# ---- rows in parts ----


class LongRows:
    """Buffers for parts of a row, and the steps for a part."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan, scales: int) -> None:
        """*scales* is the number of scales stored together."""
        self.core, self.p, self.columns = core, p, p.columns
        width, dtype = plan.column_step, p.x.element
        self.numbers = core.tile(FLOAT32, FLOATS_PER_BLOCK)
        self.values, self.work = (core.tile(FLOAT32, width) for _ in range(2))
        self.smooth_in = None
        if plan.template == "large" and p.smooth_scales is not None:
            self.smooth_in = core.vecin(dtype, whole_blocks(width, dtype), plan.depth)
        self.x_in = core.vecin(dtype, whole_blocks(width, dtype), plan.depth)
        self.y_out = core.vecout(p.target, whole_blocks(width, p.target), plan.depth)
        self.scale_out = core.tiles(FLOAT32, scales, "scalar", "mte3")
        core.claim_tails()

    def find_largest(self, values: Local, *, is_first: bool) -> None:
        """Write the running M of the row to register `largest`, after *values* `(width,)`.

        largest > part ? largest : part, on floats: an earlier NaN is lost.
        """
        core, work = self.core, self.work[: values.count]
        core.abs(work, values)
        core.emit(WholeReduce("max", work[:1], fold_max(core, work, rest_last=True)))
        core.sync("vector", "scalar")
        core.get_value("largest" if is_first else "part", work[:1])
        if not is_first:
            core.alu("f32_lt", "is_smaller", "part", "largest")
            core.alu("select", "largest", "is_smaller", "largest", "part")

    def divide(self, place: Local) -> None:
        """On the scalar unit: 127 / M into register `factor`, 1 / (127 / M) to *place* `(1,)`."""
        find_factor(self.core, "largest", self.p.largest, place)

    def quantise(self, out: Local, values: Local) -> None:
        """Write *values* `(width,)` times the factor of the row to *out*; no barrier follows."""
        self.core.mul(values, values, "factor")
        halves = self.core.whole_halves(values, "round", self.work)
        self.core.emit(Cast(out, halves, "trunc"))


class Parts(LongRows):
    """The steps of large: all buffers double, smooth scales loaded with every part."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        super().__init__(core, p, plan, align_up(plan.rows_of_core[0], FLOATS_PER_BLOCK))
        self.parts = parts_of(p.columns, plan.column_step)

    def fetch(self, x: GmView, part: slice) -> None:
        """Start to load columns *part* of x, and of the smooth scales."""
        core, dtype = self.core, self.p.x.element
        core.copy_in(self.x_in, x[:, part])
        if self.smooth_in is not None:
            smooth = GmView.vector("smooth_scales", dtype, self.columns)
            core.copy_in(self.smooth_in, smooth[:, part])

    def widened(self, loaded: Local, width: int) -> Local:
        """The part in tile *loaded*, `(width,)` as fp32, smoothed."""
        core, values, work = self.core, self.values[:width], self.work[:width]
        core.cast(values, loaded[:width])
        if self.smooth_in is not None:
            smooth = self.smooth_in.deque()
            core.cast(work, smooth[:width])
            core.mul(values, values, work)
            self.smooth_in.free(smooth)
        return values

    def row(self, x: GmView, output: GmView, scales: GmView, index: int, is_last: int) -> None:
        """Quantise row *index* of a core; the last one stores the core's *scales*."""
        core, parts, width = self.core, self.parts, self.columns
        if index == 0:
            self.fetch(x, parts[0])
            self.scale_out.alloc()
        for part, after in pairwise((*parts, parts[0])):
            self.fetch(x, after)
            loaded = self.x_in.deque()
            values = self.widened(loaded, part.stop - part.start)
            self.find_largest(values, is_first=part is parts[0])
            self.x_in.free(loaded)
        self.divide(self.scale_out.only[index : index + 1])
        next_row = replace(x, offset_bytes=x.offset_bytes + x.pitch_bytes)
        for part, after in zip_longest(parts, parts[1:]):
            if after is not None:
                self.fetch(x, after)
            elif not is_last:
                self.fetch(next_row, parts[0])
            width = part.stop - part.start
            loaded, out = self.x_in.deque(), self.y_out.alloc()
            self.quantise(out[:width], self.widened(loaded, width))
            self.y_out.enque(out)
            self.x_in.free(loaded)
            core.put_rows(self.y_out.deque(), output[:, part])
            self.y_out.free(out)
        if is_last:
            core.store_rows(self.scale_out, self.scale_out.only, scales)


def large(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Rows in parts, with the next one always loaded ahead; the scales of a core are one store."""
    rows, found = Parts(core, p, plan), RowPieces.of(plan.rows_of_core, 1)
    x, output, scale = matrices(p)
    rows_of_core = np.array(plan.rows_of_core, np.int64)
    count, first = rows_of_core[found.core], (np.cumsum(rows_of_core) - rows_of_core)[found.core]
    index = found.first - first
    scales = GmViews.of(scale, 0, first, 1, count)
    views = found.views(x), found.views(output), scales
    step = Step(rows.row, (*views, index, index == count - 1), found.core, keeps_slots=True)
    return core.launch(step)


def moe_large(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A row in parts, each loaded twice except the last one; all buffers single."""
    long, search = LongRows(core, p, plan, FLOATS_PER_BLOCK), GroupSearch(core, p.groups)
    smooth_in = core.vecin(FLOAT32, whole_blocks(plan.column_step, p.x.element))
    parts = parts_of(p.columns, plan.column_step)

    def widened(x: GmView, part: slice, group: int) -> Local:
        """Columns *part* of *x* `(1, columns)` as fp32, smoothed."""
        smooth, width = SmoothScales(core, p, smooth_in.alloc()), part.stop - part.start
        smooth.load(part, group)
        smooth_in.enque(smooth.tile)
        loaded, values = core.load(long.x_in, x[:, part]), long.values[:width]
        smooth_in.deque()
        factors = smooth.widen(width)
        core.widen(values, loaded[:width])
        core.mul(values, values, factors)
        long.x_in.free(loaded)
        smooth_in.free(smooth.tile)
        return values

    def store(values: Local, output: GmView) -> None:
        """Store *values* `(width,)` times the factor of the row to *output* `(1, width)`."""
        out = long.y_out.alloc()
        long.quantise(out[: values.count], values)
        core.store(long.y_out, out, output)

    def row(x: GmView, output: GmView, scale: GmView, before: int, groups: Groups) -> None:
        (group,) = groups
        search.advance(before, group)
        for part in parts:
            values = widened(x, part, group)
            long.find_largest(values, is_first=part is parts[0])
        scales = long.scale_out.alloc()
        long.divide(scales[:1])
        core.store_rows(long.scale_out, scales, scale)
        store(values, output[:, parts[-1]])
        # Second pass: load the other parts again.
        for part in parts[:-1]:
            store(widened(x, part, group), output[:, part])

    return launch_pieces(core, p, plan, row, search.begin)
