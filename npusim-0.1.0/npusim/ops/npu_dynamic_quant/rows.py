"""The templates of A2 and A3 that take a row, or a part of one, an instruction.

db loads the next rows while it works on these, and no number passes through the scalar unit; base
loads a row at a time, whose factor the scalar unit reads and divides once more. moe does so for
pieces of rows, and loads the smooth scales of another group when it comes.

large and moe_large load a row twice, in parts: first for its largest magnitude, which the scalar
unit keeps from part to part, then to be quantised with the factor of the row. large has the next
part always on its way. moe_large has single buffers, smooth scales of groups, and quantises the
last part at the end of the first pass, while it is still in the buffer.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel: dynamic_quant_db.h, dynamic_quant.h,
dynamic_quant_moe.h, dynamic_quant_large_shape_opt.h and dynamic_quant_moe_large_shape.h. Assumed:
in which order their buffers lie, and that base keeps a row until it has been quantised.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Binary, Cast, Local
from npusim.kernel import FLOATS_PER_BLOCK, FLOATS_PER_REPEAT, Block, GmView, VectorCore
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import parts_of, whole_blocks
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    fill_constants,
    launch_pieces,
)
from npusim.ops._row_groups import Groups, GroupSearch
from npusim.ops._row_quant import find_absmax, find_factor, find_max, read_quotient, round_by_int16


def db(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Rows of whole blocks in the buffer, one after the other."""
    rows, columns, dtype = plan.row_step, p.columns, p.x.element
    x_pitch, y_pitch = whole_blocks(columns, dtype), whole_blocks(columns, p.target)
    x_in = core.vecin(dtype, rows * x_pitch, plan.depth)
    y_out = core.vecout(p.target, rows * y_pitch)
    scale_out = core.vecout(FLOAT32, align_up(rows, FLOATS_PER_BLOCK))
    smooth = SmoothScales.claimed(core, p, columns) if p.smooth_scales else None
    # Whole repeats: what lies behind the elements of the row is never used.
    whole, work = (core.tile(FLOAT32, align_up(columns, FLOATS_PER_REPEAT)) for _ in range(2))
    values = whole[:columns]
    absmax, factor = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    # M of the row eight times, and what else Brcb spreads.
    blocks = core.tile(FLOAT32, FLOATS_PER_BLOCK**2)
    largest, inverse = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    core.claim_tails()

    begin = partial(fill_constants, core, p, smooth, largest, inverse)

    def find_factor_of_row(x: Local) -> None:
        """*x* `(columns,)` as fp32 to `values`, smoothed; M and 127 / M eight times each."""
        found = absmax
        if dtype is FLOAT16 and smooth is None:
            found = _absmax_in_half(core, values, work, x)
        else:
            core.widen(values, x)
            if smooth is not None:
                core.mul(values, values, smooth.tile[:columns])
            find_absmax(core, absmax[:1], work[:columns], values)
        # The other seven are what they are: of the blocks only the first is used.
        core.brcb(blocks, found)
        core.div(factor, largest, blocks[:FLOATS_PER_BLOCK])

    def piece(x: GmView, output: GmView, scale: GmView) -> None:
        loaded = core.load(x_in, x, x_pitch)
        for row in range(x.rows):
            find_factor_of_row(loaded[row * x_pitch : row * x_pitch + columns])
            core.mul(whole, whole, factor.again(whole.count))
            halves = round_by_int16(core, values, work)
            if row == 0:
                # Not before they are needed, when the last piece may be on its way out.
                out, scales = y_out.alloc(), scale_out.alloc()
            # M / 127, picked by a mask of one lane. No barrier follows.
            here, lane = slice(row, row + 1), row % FLOATS_PER_BLOCK
            one = slice(lane, lane + 1)
            core.emit(Binary("mul", scales[here], blocks[one], inverse[one]))
            # No barrier: what the next row overwrites first, nobody reads any more.
            y = out[row * y_pitch : row * y_pitch + columns]
            core.emit(Cast(y, halves, "trunc"))
        x_in.free(loaded)
        core.store(y_out, out, output, y_pitch)
        core.store_rows(scale_out, scales, scale)

    return launch_pieces(core, p, plan, piece, begin)


def _absmax_in_half(core: VectorCore, values: Local, work: Local, x: Local) -> Local:
    """*x* `(columns,)` as fp32 to *values*, and its M to the first of the block returned."""
    # Apart from x, which the vendor's kernel overwrites: no barrier is between the two.
    magnitudes = work.as_dtype(FLOAT16)[work.count : work.count + x.count]
    with core.independent():
        core.cast(values, x)
        core.abs(magnitudes, x)
    find_max(core, magnitudes[:1], magnitudes)
    # All of the row is widened again, for its first element.
    core.cast(work[: x.count], magnitudes)
    return work[:FLOATS_PER_BLOCK]


def base(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One row at a time, all buffers single."""
    columns = p.columns
    x_in = core.vecin(p.x.element, whole_blocks(columns, p.x.element), plan.depth)
    y_out = core.vecout(p.target, whole_blocks(columns, p.target))
    scale_out = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3")
    smooth = SmoothScales.claimed(core, p, columns) if p.smooth_scales else None
    values, work = (core.tile(FLOAT32, columns) for _ in range(2))
    absmax, largest = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    factors = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "vector", "scalar")
    core.claim_tails()

    begin = partial(fill_constants, core, p, smooth, largest)

    def row(x: GmView, output: GmView, scale: GmView) -> None:
        loaded = core.load(x_in, x)
        core.widen(values, loaded[:columns])
        if smooth is not None:
            core.mul(values, values, smooth.tile[:columns])
        x_in.free(loaded)
        find_absmax(core, absmax[:1], work, values)
        factor = factors.alloc()
        core.emit(Binary("div", factor[:1], largest[:1], absmax[:1]))
        factors.enque(factor)
        factor, scales = factors.deque(), scale_out.alloc()
        core.get_value("factor", factor[:1])
        core.alu("f32_div", "scale", 1.0, "factor")
        core.set_value(scales[:1], "scale")
        factors.free(factor)
        core.mul(values, values, "factor")
        out = y_out.alloc()
        core.quantize(out[:columns], values)
        core.store(y_out, out, output)
        core.store_rows(scale_out, scales, scale)

    return launch_pieces(core, p, plan, row, begin)


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
        """127 / M, by the vector unit, into register `factor`; its inverse to *scale* `(1,)`."""
        core.abs(work, values)
        reduction.find_largest(absmax, work)
        factor = read_quotient(core, factors, largest, absmax)
        core.alu("f32_div", "scale", 1.0, "factor")
        core.set_value(scale, "scale")
        factors.free(factor)

    def piece(x: GmView, output: GmView, scale: GmView, before: int, groups: Groups) -> None:
        loaded = core.load(x_in, x, x_pitch)
        # Every piece begins with the smooth scales of the group that the last one ended with.
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
    """Buffers for parts of a row, and the steps that a part takes."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        width, dtype = plan.column_step, p.x.element
        self.x_in = core.vecin(dtype, whole_blocks(width, dtype), plan.depth)
        self.y_out = core.vecout(p.target, whole_blocks(width, p.target), plan.depth)
        self.scale_out = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3")
        self.values, self.work = (core.tile(FLOAT32, width) for _ in range(2))
        self.absmax = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "vector", "scalar")
        core.claim_tails()

    def find_largest(self, values: Local, *, is_first: bool) -> None:
        """M of the row so far into register `largest`, after *values* `(width,)`."""
        core, absmax = self.core, self.absmax.alloc()
        find_absmax(core, absmax[:1], self.work[: values.count], values)
        self.absmax.enque(absmax)
        absmax = self.absmax.deque()
        core.get_value("largest" if is_first else "part", absmax[:1])
        self.absmax.free(absmax)
        if not is_first:
            # largest > part ? largest : part, of floats: a NaN before is lost. Magnitudes are in
            # the order of their bits, but a NaN is larger than nothing.
            core.alu("lt", "is_smaller", "part", "largest")
            core.alu("lt", "is_nan", float("inf"), "largest")
            core.alu("select", "is_smaller", "is_nan", 0, "is_smaller")
            core.alu("select", "largest", "is_smaller", "largest", "part")

    def divide(self, scale: GmView) -> None:
        """By the scalar unit: 127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
        scales = self.scale_out.alloc()
        find_factor(self.core, "largest", self.p.largest, scales[:1])
        self.core.store_rows(self.scale_out, scales, scale)

    def quantise(self, values: Local, output: GmView) -> None:
        """*values* `(width,)` times the factor of the row to *output* `(1, width)`."""
        out = self.y_out.alloc()
        self.core.mul(values, values, "factor")
        self.core.quantize(out[: values.count], values)
        self.core.store(self.y_out, out, output)


def large(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """All buffers double, smooth scales loaded with every part."""
    long, dtype = LongRows(core, p, plan), p.x.element
    parts, x_in = parts_of(p.columns, plan.column_step), long.x_in
    smooth_in = None
    if p.smooth_scales is not None:
        smooth_in = core.vecin(dtype, whole_blocks(plan.column_step, dtype), plan.depth)

    def fetch(x: GmView, part: slice) -> None:
        """Begin to load columns *part* of x, and of the smooth scales."""
        core.copy_in(x_in, x[:, part])
        if smooth_in is not None:
            core.copy_in(smooth_in, GmView.vector("smooth_scales", dtype, p.columns)[:, part])

    def widened(width: int) -> Local:
        """The oldest part that was fetched, `(width,)` as fp32, smoothed."""
        values, work = long.values[:width], long.work[:width]
        loaded = x_in.deque()
        core.cast(values, loaded[:width])
        x_in.free(loaded)
        if smooth_in is not None:
            smooth = smooth_in.deque()
            core.cast(work, smooth[:width])
            smooth_in.free(smooth)
            core.mul(values, values, work)
        return values

    def row(x: GmView, output: GmView, scale: GmView) -> None:
        fetch(x, parts[0])
        passes = [(part, False) for part in parts] + [(part, True) for part in parts]
        for (part, is_second), after in zip_longest(passes, passes[1:]):
            if after is not None:
                fetch(x, after[0])
            values = widened(part.stop - part.start)
            if is_second:
                long.quantise(values, output[:, part])
                continue
            long.find_largest(values, is_first=part is parts[0])
            if part is parts[-1]:
                long.divide(scale)

    return launch_pieces(core, p, plan, row)


def moe_large(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A row in parts, loaded twice but for the last one; all buffers single."""
    long, search = LongRows(core, p, plan), GroupSearch(core, p.groups)
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

    def row(x: GmView, output: GmView, scale: GmView, before: int, groups: Groups) -> None:
        (group,) = groups
        search.advance(before, group)
        for part in parts:
            values = widened(x, part, group)
            long.find_largest(values, is_first=part is parts[0])
        long.divide(scale)
        long.quantise(values, output[:, parts[-1]])
        # Second pass: the others are loaded again.
        for part in parts[:-1]:
            long.quantise(widened(x, part, group), output[:, part])

    return launch_pieces(core, p, plan, row, search.begin)
