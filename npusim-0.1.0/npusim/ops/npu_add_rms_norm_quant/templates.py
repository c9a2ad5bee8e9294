"""The templates of npu_add_rms_norm_quant: what the vendor's kernels do with the rows of a core.

ops-nn@e5c3fa9 norm/add_rms_norm_quant/op_kernel; of the kernel for a single scale, of which only
the arithmetic is known here (norm/add_rms_norm_quant_v2), the schedule is assumed to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from npusim.data.tensor import Operand
from npusim.kernel import (
    FLOAT16,
    FLOAT32,
    INT8,
    GmView,
    Local,
    TileQueue,
)
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._rms_norm.core import NormCore, Residual, Rounding, upper_half


class OptionalVectors(NamedTuple):
    """The operands that need not be given, or arrays in their place."""

    zero_points1: Any
    beta: Any
    scales2: Any
    zero_points2: Any

    def are_for_one_scale(self, x1: Any, gamma: Any, scales1: Any, *, divides: bool) -> bool:
        """Whether the kernel for a single scale takes the call.

        ops-nn@e5c3fa9 norm/add_rms_norm_quant_v2/op_host/op_api/aclnn_add_rms_norm_quant_v2.cpp.
        """
        columns, points = x1.shape[-1], self.zero_points1
        is_one = scales1.shape == (1,) and points is not None and points.shape == (1,)
        is_alone = self.beta is not None and self.scales2 is None and self.zero_points2 is None
        return is_one and is_alone and divides and gamma.shape in ((columns,), (1, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(norm.Problem):
    """A checked call."""

    scales1: Operand
    optional: OptionalVectors
    divides: bool
    """Whether elements are divided by the scales, not multiplied."""
    per_tensor: bool
    """Whether the kernel for a single scale takes the call."""

    @property
    def quantisers(self) -> tuple[tuple[Operand, Operand | None], ...]:
        """Scales and zero points that are vectors, for the first output and for the second."""
        if self.per_tensor:
            return ()
        points1, _, scales2, points2 = self.optional
        first = self.scales1, points1
        return (first,) if scales2 is None else (first, (scales2, points2))


Tiles = dict[Operand, Local]
"""Vectors in the buffer: gamma and beta as they are, scales and zero points in fp32."""


class Quantiser:
    """What is done to a row once its root is known, and small buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        self.core, self.p = core, p
        self.padded = whole_blocks(plan.column_step, p.x.element)
        self.lanes = core.lanes()
        self.scale, self.point = core.blocks(2), core.blocks(2)
        """The only ones, where they are no vectors."""
        self.in_half = p.x.element is FLOAT16 and not p.per_tensor
        """Whether fp16 is added and multiplied by gamma as such."""
        is_late = plan.template == "single_n" or p.optional.beta is not None
        self.rounding = Rounding(is_exact=not is_late or p.per_tensor, in_half=self.in_half)

    # ---- vectors ----

    def fill(self, tile: Local, operand: Operand, part: slice = slice(None)) -> None:
        """Load columns *part* of *operand* to the end of *tile*, which may be wider."""
        core, view = self.core, norm.vector_of(operand)[:, part]
        core.fill(upper_half(tile, view.dtype), view)

    def widen(self, tile: Local, operand: Operand, part: slice = slice(None)) -> None:
        """What `fill` brought, to the type of *tile* and to its start."""
        view = norm.vector_of(operand)[:, part]
        if view.dtype is not tile.dtype:
            loaded = upper_half(tile, view.dtype)
            self.core.cast(tile[: view.columns], loaded[: view.columns])

    def fetch(self, tiles: Tiles) -> None:
        """Load vectors for good: the vector pipe waits for them."""
        for operand, tile in tiles.items():
            self.fill(tile, operand)
        self.core.sync("mte2", "vector")
        for operand, tile in tiles.items():
            self.widen(tile, operand)

    def begin(self) -> None:
        """The only scale and zero point: 1 / scale into register `inverse`, the other `point`."""
        core, p = self.core, self.p
        if p.per_tensor:
            self.fetch({p.scales1: self.scale, p.optional.zero_points1: self.point})
            core.sync("vector", "scalar")
            core.get_value("scale", self.scale[:1])
            core.alu("f32_div", "inverse", 1.0, "scale")
            core.get_value("point", self.point[:1])
            core.sync("scalar", "vector")

    def first_vectors(self, scales_in: TileQueue, room: Local) -> Tiles:
        """The first scales, which are on their way, and zero points, which are loaded only now."""
        core, scales, points = self.core, self.p.scales1, self.p.optional.zero_points1
        found = {scales: scales_in.deque()}
        self.widen(found[scales], scales)
        if points is not None:
            core.sync("vector", "mte2")
            found[points] = room
            self.fill(room, points)
            core.sync("mte2", "vector")
            self.widen(room, points)
        return found

    # ---- a row ----

    def times_gamma(self, values: Local, gamma: Local, work: Local) -> None:
        """*values* times register `root` and *gamma*; fp16 is rounded before and behind."""
        core = self.core
        core.mul(values, values, "root")
        if self.in_half:
            halves = work.as_dtype(FLOAT16, values.count)
            core.cast(halves, values)
            core.mul(halves, halves, gamma[: values.count])
            core.cast(values, halves)
        else:
            core.cast(work, gamma[: values.count])
            core.mul(values, values, work)

    def plus_beta(self, values: Local, tiles: Tiles, work: Local) -> None:
        """*values* plus beta, if there is one."""
        if self.p.optional.beta is not None:
            self.core.cast(work, tiles[self.p.optional.beta][: values.count])
            self.core.add(values, values, work)

    def quantise(self, out: Local, dst: Local, values: Local, tiles: Tiles, number: int) -> Local:
        """*values* scaled to *dst* and narrowed to int8, as output *number*, in the tile *out*.

        A single scale is in registers.
        """
        core, out = self.core, out.as_dtype(INT8, values.count)
        if self.p.per_tensor:
            core.mul(dst, values, "inverse")
            core.add(dst, dst, "point")
        else:
            scale, point = self.p.quantisers[number]
            (core.div if self.p.divides else core.mul)(dst, values, tiles[scale][: values.count])
            if point is not None:
                core.add(dst, dst, tiles[point][: values.count])
        core.quantize(out, dst)
        return out


def normal(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row at a time. All vectors stay in the buffer, scales and zero points in fp32.

    Without second scales x2 is loaded where the squares come later. The queue of the first output
    carries x, and then y; all queues are single.
    """
    steps, dtype, second = Quantiser(core, p, plan), p.x.element, p.optional.scales2
    padded = steps.padded
    values, squares = core.tile(FLOAT32, padded), core.tile(FLOAT32, padded)
    total, ones = core.blocks(), core.blocks()
    x_in = core.vecin(dtype, padded)
    x2_tile = upper_half(squares, dtype) if second is None else core.tile(dtype, padded)
    y_out = core.vecout(dtype, padded)
    y2_out = [core.vecout(INT8, padded) for _ in p.quantisers[1:]]
    tiles = {each: core.tile(dtype, padded) for each in ops.present(p.gamma, p.optional.beta)}
    tiles |= {each: core.tile(FLOAT32, padded) for each in ops.present(*chain(*p.quantisers))}
    core.claim_tails()
    rounding = steps.rounding
    residual = Residual(core, x_in, x2_tile, y_out, values, squares, rounding, frees=False)

    def begin() -> None:
        steps.fetch(tiles)
        steps.begin()

    def row(x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        values, work = residual(x1, x2, x)
        core.root_of_row(total[:1], values, work, ones, steps.lanes)
        core.read_root(total[:1])
        steps.times_gamma(values, tiles[p.gamma], work)
        steps.plus_beta(values, tiles, work)
        for queue, view in zip(y2_out, y2, strict=True):
            core.store(queue, steps.quantise(queue.alloc(), work, values, tiles, 1), view)
        # The next row may come; with second scales where the squares are nothing is loaded.
        x_in.free(x_in.only)
        core.store(y_out, steps.quantise(y_out.alloc(), values, values, tiles, 0), output)

    return norm.Kernel(row, begin)


def single_n(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """The one row of a core. x and y leave from where x1 was, gamma comes where x2 was.

    The first scales are loaded while squares are added up, their zero points where the squares
    were; beta, second scales and zero points before the row.
    """
    steps, dtype, optional = Quantiser(core, p, plan), p.x.element, p.optional
    padded, count = steps.padded, p.columns
    values, squares = core.tile(FLOAT32, padded)[:count], core.tile(FLOAT32, padded)
    total, ones = core.blocks()[:1], core.blocks()
    room = core.claim("ub", dtype.nbytes(padded))
    with core.on_top_of(room):
        x1_in = core.vecin(dtype, padded)
    with core.on_top_of(room):
        y_out = core.vecout(dtype, padded)
    x2_in = core.vecin(dtype, padded)
    # Of fp32 as they come, else widened.
    scales_in = core.vecin(FLOAT32, padded)
    second = ops.present(*chain(*p.quantisers[1:]))
    kept = {each: core.tile(dtype, padded) for each in ops.present(optional.beta)}
    kept |= {each: core.tile(FLOAT32, padded) for each in second}
    y2_out = [core.vecout(INT8, padded) for _ in p.quantisers[1:]]
    work = squares[:count]

    def begin() -> None:
        if kept:
            steps.fetch(kept)
        steps.begin()

    def row(x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        addends = core.load(x1_in, x1)[:count], core.load(x2_in, x2)[:count]
        out = y_out.alloc()[:count]
        core.add_and_round(out, values, addends, work, steps.rounding)
        x1_in.free(addends[0])
        x2_in.free(addends[1])
        gamma = core.load(x2_in, norm.vector_of(p.gamma))
        core.store_rows(y_out, out, x)
        if not p.per_tensor:
            scales = scales_in.alloc()
            steps.fill(scales, p.scales1)
            scales_in.enque(scales)
        core.root_of_row(total, values, work, ones, None if steps.in_half else steps.lanes)
        core.read_root(total)
        steps.times_gamma(values, gamma, work)
        x2_in.free(gamma)
        steps.plus_beta(values, kept, work)
        for queue, view in zip(y2_out, y2, strict=True):
            core.store_rows(queue, steps.quantise(queue.alloc(), work, values, kept, 1), view)
        out = y_out.alloc()
        first = {} if p.per_tensor else steps.first_vectors(scales_in, squares)
        out = steps.quantise(out, values, values, first, 0)
        if first:
            scales_in.free(first[p.scales1])
        core.store_rows(y_out, out, output)

    return norm.Kernel(row, begin)


def split_d(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, loaded and added twice; all buffers are single.

    First the sums of up to 64 rows, a piece of all of them after the other; then 1 / root of all;
    then a piece of every vector, and of all rows once more. x is stored both times, and all pipes
    wait around each store of y.
    """
    steps, dtype, rows = Quantiser(core, p, plan), p.x.element, plan.row_step
    padded = steps.padded
    x_in, y_out = core.vecin(dtype, 2 * padded), core.vecout(dtype, padded)
    y2_out = [core.vecout(INT8, padded) for _ in p.quantisers[1:]]
    values, squares = core.tile(FLOAT32, padded), core.tile(FLOAT32, padded)
    # A piece of each vector, one behind the other.
    vectors = dict.fromkeys(ops.present(p.gamma, p.optional.beta), dtype)
    vectors |= dict.fromkeys(ops.present(*chain(*zip(*p.quantisers, strict=True))), FLOAT32)
    vectors_in = core.vecin(INT8, sum(kind.nbytes(padded) for kind in vectors.values()))
    blocks = core.blocks(rows)
    roots_tile, sums = core.tile(FLOAT32, rows), core.tile(FLOAT32, rows)
    core.claim_tails()
    second, rounding = x_in.only[padded:], steps.rounding
    residual = Residual(core, x_in, second, y_out, values, squares, rounding, frees=True)
    parts = plan.parts(p.columns)

    def group(x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        roots = roots_tile[: x.rows]
        residual.roots_of_parts(roots, (steps.lanes, blocks, sums), parts, x1, x2, x)
        for part in parts:
            loaded = vectors_in.alloc()
            tiles = load_vectors(loaded, part)
            for row in range(x.rows):
                here = slice(row, row + 1), part
                core.read_root(roots[row : row + 1])
                values, work = residual(x1[here], x2[here], x[here])
                steps.times_gamma(values, tiles[p.gamma], work)
                steps.plus_beta(values, tiles, work)
                for queue, view in zip(y2_out, y2, strict=True):
                    store(queue, steps.quantise(queue.alloc(), work, values, tiles, 1), view[here])
                store(y_out, steps.quantise(y_out.alloc(), values, values, tiles, 0), output[here])
            vectors_in.free(loaded)

    def store(queue: TileQueue, out: Local, view: GmView) -> None:
        core.barrier()
        core.store(queue, out, view)
        core.barrier()

    def load_vectors(loaded: Local, part: slice) -> Tiles:
        """Columns *part* of every vector, in *loaded*."""
        tiles, start = {}, 0
        for operand, kind in vectors.items():
            tiles[operand] = loaded[start : start + kind.nbytes(padded)].as_dtype(kind)
            start += kind.nbytes(padded)
            steps.fill(tiles[operand], operand, part)
        vectors_in.enque(loaded)
        vectors_in.deque()
        for operand, tile in tiles.items():
            steps.widen(tile, operand, part)
        return tiles

    return norm.Kernel(group, steps.begin)


TEMPLATES: norm.Templates = {
    "single_n": single_n,
    "normal": normal,
    "split_d": split_d,
}
