"""The templates multi_row and single_row: several rows an instruction.

The rows of a piece follow each other in the buffer, so an instruction takes all of them, but for
those that look for the largest magnitude of each. No number passes through the scalar unit, but for
multi_row in pieces of one row.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_{multi,single}_row.h. Assumed: where the
small buffers of single_row lie.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.data.integers import align_up
from npusim.isa import Binary, Local
from npusim.kernel import (
    BLOCK_BYTES,
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    Block,
    GmView,
    VectorCore,
    pieces,
)
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import SmoothScales, fill_constants, launch_pieces
from npusim.ops._row_quant import fold_rows, repeat_row, round_by_int16, spread_numbers

PER_ROW = 192
"""Elements that multi_row keeps room for, of what there is one of for each row."""
SPREAD_ROWS = 32
"""BroadCast takes so many rows at a time: what the 1152 bytes beyond its tensors have room for."""


def _find_maxima(core: VectorCore, result: Local, magnitudes: Local) -> None:
    """The largest of each row of *magnitudes* `(rows, columns)`, overwritten, to *result*."""
    firsts = fold_rows(core, magnitudes, result.count)
    core.barrier("vector")
    core.whole_reduce("max", result, firsts)


def _repeat_factors(core: VectorCore, plane: Local, factors: Local, blocks: Local) -> None:
    """Each of *factors* `(rows,)` to its row of *plane* `(rows, columns)`."""
    if factors.count == 1:
        # BroadCast of one number goes by way of the scalar unit.
        core.sync("vector", "scalar")
        core.get_value("factor", factors)
        core.sync("scalar", "vector")
        core.duplicate(plane, "factor")
        return
    columns = plane.count // factors.count
    for first, count in pieces(factors.count, SPREAD_ROWS):
        rows = plane[first * columns : (first + count) * columns]
        spread_numbers(core, rows, factors[first : first + count], blocks)


def multi_row(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Take as many rows as 255 repeats hold in fp32; all buffers are single."""
    columns, size = p.columns, plan.row_step * p.columns
    x_in = core.vecin(p.x.element, size)
    smooth = SmoothScales.claimed(core, p, columns) if p.smooth_scales else None
    all_values, all_work = (core.tile(FLOAT32, size) for _ in range(2))
    # A byte an element for int4 too.
    y_out, scale_out = core.vecout(INT8, size), core.vecout(FLOAT32, PER_ROW)
    absmax, factor = (core.tile(FLOAT32, PER_ROW) for _ in range(2))
    largest, inverse = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    blocks = core.tile(FLOAT32, SPREAD_ROWS * FLOATS_PER_BLOCK)

    begin = partial(fill_constants, core, p, smooth, largest, inverse)

    def smooth_rows(values: Local, work: Local, factors: Local) -> None:
        """*values* `(rows, columns)` times the smooth scales *factors*."""
        if values.count > columns:
            # BroadCast copies with an Or, whose other operand are zeros; Copy takes as long.
            core.duplicate(work[:FLOATS_PER_BLOCK], 0.0)
            repeat_row(core, work, factors)
            factors = work
        core.mul(values, values, factors)

    def piece(x: GmView, output: GmView, scale: GmView) -> None:
        rows, count = x.rows, x.rows * columns
        # (rows, columns) as fp32, and room for as many
        values, work = all_values[:count], all_work[:count]
        # A mask of 64 lanes, of which those behind the rows are never used.
        lanes = align_up(rows, FLOATS_PER_REPEAT)
        loaded = core.load_rows(x_in, x.flat)
        core.cast(values, loaded[:count])
        # All is in fp32: mte2 may load the next piece.
        x_in.free(loaded)
        if smooth is not None:
            smooth_rows(values, work, smooth.tile[:columns])
        core.abs(work, values)
        _find_maxima(core, absmax[:rows], work)
        core.div(factor[:lanes], largest.again(lanes), absmax[:lanes])
        _repeat_factors(core, work, factor[:rows], blocks)
        core.mul(work, values, work)
        halves = round_by_int16(core, work)
        out, scales = y_out.alloc(), scale_out.alloc()
        core.emit(Binary("mul", scales[:lanes], absmax[:lanes], inverse.again(lanes)))
        core.cast(out.as_dtype(p.target, count), halves, "trunc")
        core.store_rows(scale_out, scales, scale)
        core.store_rows(y_out, out, output.flat)

    return launch_pieces(core, p, plan, piece, begin)


def single_row(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Up to 16384 elements, in rows of 4096, 5120 or 10240.

    Without smooth scales the largest of fp16 elements are found in fp16.
    """
    most_rows, size = plan.row_step, plan.row_step * p.columns
    in_half = p.x.element is FLOAT16 and p.smooth_scales is None
    # Room for fp32; elements of 16 bits come into the upper half unless they stay 16 bits wide.
    x_in = core.vecin(FLOAT32, size)
    start = 0 if in_half else size
    y_out, scale_out = core.vecout(INT8, size), core.vecout(FLOAT32, FLOATS_PER_BLOCK)
    all_work = core.tile(FLOAT32, size)
    smooth = SmoothScales.claimed(core, p, p.columns) if p.smooth_scales else None
    all_halves = core.tile(FLOAT16, BLOCK_BYTES // FLOAT16.nbytes(1))
    absmax, factor = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
    blocks = core.tile(FLOAT32, most_rows * FLOATS_PER_BLOCK)

    def piece(x: GmView, output: GmView, scale: GmView) -> None:
        rows, count = x.rows, x.rows * x.columns
        loaded = x_in.alloc()
        narrow = loaded.as_dtype(x.dtype)[start : start + count]
        core.data_copy(narrow, x.flat.operand)
        x_in.enque(loaded)
        x_in.deque()
        values, plane, largest = all_work[:count], loaded[:count], absmax[:rows]
        core.cast(values, narrow)
        if in_half:
            halves = all_halves[:rows]
            core.abs(narrow, narrow)
            _find_maxima(core, halves, narrow)
            core.cast(largest, halves)
        else:
            if smooth is not None:
                repeat_row(core, plane, smooth.tile[: p.columns])
                core.mul(values, values, plane)
            core.abs(plane, values)
            _find_maxima(core, largest, plane)
        out, scales = y_out.alloc(), scale_out.alloc()
        # Which of the two comes first differs with the type, but not how long they take.
        core.duplicate(factor[:rows], p.largest)
        core.div(factor[:rows], factor[:rows], largest)
        core.mul(scales[:rows], largest, 1 / p.largest)
        spread_numbers(core, plane, factor[:rows], blocks)
        core.mul(values, values, plane)
        x_in.free(loaded)
        core.quantize(out.as_dtype(p.target, count), values)
        core.store_rows(scale_out, scales, scale)
        core.store_rows(y_out, out, output.flat)

    return launch_pieces(core, p, plan, piece, smooth.keep if smooth is not None else None)
