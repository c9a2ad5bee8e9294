"""The templates large and moe_large: a row in parts.

They are loaded twice: first for the largest magnitude of the row, which the scalar unit keeps from
part to part, then to be quantised with the factor of the row. large has the next part always on its
way. moe_large has single buffers, smooth scales of groups, and quantises the last part at the end
of the first pass, while it is still in the buffer.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_large_shape_opt.h and
dynamic_quant_moe_large_shape.h.
"""

from __future__ import annotations

from itertools import zip_longest

from npusim.data.dtypes import FLOAT32
from npusim.isa import Local
from npusim.kernel import FLOATS_PER_BLOCK, Block, GmView, VectorCore
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    launch_pieces,
    parts_of,
    pitch_of,
)
from npusim.ops._row_groups import Groups, GroupSearch
from npusim.ops._row_quant import find_absmax, find_factor

__all__ = ["large", "moe_large"]


class LongRows:
    """Buffers for parts of a row, and the steps that a part takes."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        width, dtype = plan.column_step, p.x.element
        self.x_in = core.vecin(dtype, pitch_of(dtype, width), plan.depth)
        self.y_out = core.vecout(p.target, pitch_of(p.target, width), plan.depth)
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
        smooth_in = core.vecin(dtype, pitch_of(dtype, plan.column_step), plan.depth)

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
    smooth_in = core.vecin(FLOAT32, pitch_of(p.x.element, plan.column_step))
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
