"""The templates db, base and moe: an instruction a row.

db loads the next rows while it works on these, and no number passes through the scalar unit; base
loads a row at a time, whose factor the scalar unit reads and divides once more. moe does so for
pieces of rows, and loads the smooth scales of another group when it comes.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_db.h, dynamic_quant.h and
dynamic_quant_moe.h. Assumed: in which order their buffers lie, and that base keeps a row until it
has been quantised.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Binary, Cast, Local
from npusim.kernel import FLOATS_PER_BLOCK, FLOATS_PER_REPEAT, Block, GmView, VectorCore
from npusim.kernel.reduction import Reduction
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    fill_constants,
    launch_pieces,
    pitch_of,
)
from npusim.ops._row_groups import Groups, GroupSearch
from npusim.ops._row_quant import find_absmax, find_max, round_by_int16

__all__ = ["base", "db", "moe"]


def db(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Rows of whole blocks in the buffer, one after the other."""
    rows, columns, dtype = plan.row_step, p.columns, p.x.element
    x_pitch, y_pitch = pitch_of(dtype, columns), pitch_of(p.target, columns)
    x_in, y_out = (
        core.vecin(dtype, rows * x_pitch, plan.depth),
        core.vecout(p.target, rows * y_pitch),
    )
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

    def find_factor(x: Local) -> None:
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
            find_factor(loaded[row * x_pitch : row * x_pitch + columns])
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
    x_in = core.vecin(p.x.element, pitch_of(p.x.element, columns), plan.depth)
    y_out = core.vecout(p.target, pitch_of(p.target, columns))
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
    x_pitch, y_pitch = pitch_of(dtype, columns), pitch_of(p.target, columns)
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

    def find_factor(scale: Local) -> None:
        """127 / M, by the vector unit, into register `factor`; its inverse to *scale* `(1,)`."""
        core.abs(work, values)
        reduction.find_largest(absmax, work)
        factor = factors.alloc()
        core.emit(Binary("div", factor, largest, absmax))
        factors.enque(factor)
        factor = factors.deque()
        core.get_value("factor", factor[:1])
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
            find_factor(scales[row : row + 1])
            # (columns,) fp32 x factor -> int8 or int4
            core.mul(values, values, "factor")
            core.quantize(out[row * y_pitch : row * y_pitch + columns], values)
        x_in.free(loaded)
        core.store(y_out, out, output, y_pitch)
        core.store_rows(scale_out, scales, scale)

    return launch_pieces(core, p, plan, piece, begin)
