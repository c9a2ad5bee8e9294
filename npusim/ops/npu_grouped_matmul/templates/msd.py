"""The template msd: float rows split into two digits of int8, multiplied by the stored weight.

.. code-block:: text

    vector cores  the largest magnitude M and the sum of each row, or of a part of it; all wait
                  d1 = away(x * (127 / M)), d2 = away((x * (127 / M) - d1) * 254); all wait
    cube cores    digits @ weight, int32, to a workspace
    vector cores  y = ((f32(C1) + f32(C2) * (1 / 254)) * (M / 127) + offset * sum) * scale + bias

This is done for up to twelve groups at a time, as few as give all cube cores a block. Each cube
core has one vector core, which finishes its blocks up to three blocks behind it. Assumed: the order
in which ReduceSum adds up a row, 64 elements pairwise as a tree and the results likewise; and that
the partial maxima of a row are adjacent, where the kernel lets the copy to global memory store the
larger one.

ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_antiquant_a16w8_msd.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from npusim.data.dtypes import FLOAT32, INT8, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel import (
    FLOATS_PER_BLOCK,
    Block,
    CubeCore,
    GmMatrix,
    GmTile,
    GmView,
    GmViews,
    Matmul,
    Step,
    VectorCore,
    pieces,
    share,
    sync_all,
)
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.plane import REPEAT, Plane
from npusim.kernel.steps import Integers
from npusim.ops._digits import EIGHT_BITS, DigitRows
from npusim.ops.npu_grouped_matmul.choice import Split, blocks_of, splits
from npusim.ops.npu_grouped_matmul.parts import (
    Matrices,
    Parts,
    bound,
    matrices_of,
    read_list,
)
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import Plan, base_tile, cores_of, reason

FILLED, READ, SPLIT, ALL_VECTORS = range(4)
"""Flags: a block of products is ready; it was read; the digits are ready; all vector cores wait."""
FIRST, SECOND = EIGHT_BITS.factors
AHEAD = 3
"""The most blocks that a cube core is ahead of its vector core."""
ROWS = 8
"""Rows of a block that a vector core finishes at a time (assumed)."""
Reduction = Literal["max", "sum"]


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Base tiles of digits, with two rows for each of x."""
    (k, n), blocks = p.weight_shape(0), blocks_of(p)
    core = spec.cores["aic"]
    messages_bytes = (core.l1_bytes or 0) - core.usable_bytes("l1")
    base = base_tile(spec, INT8, 2 * p.rows, width=blocks.columns, table_bytes=messages_bytes)
    cores = cores_of(spec)
    each = FLOAT32.nbytes(p.rows)
    return Plan(
        block_dim=cores,
        template="msd",
        reason=reason(p),
        is_mix=True,
        workspaces={
            "digits": 2 * p.rows * k, "products": INT32.nbytes(2 * p.rows * n),
            "most_parts": cores * each, "sum_parts": cores * each, "most": each, "sum": each,
        },
        tile=base,
        single_n=blocks.single_n,
    )  # fmt: skip


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build a cube core and one vector core in each group."""
    cores = plan.block_dim
    of_groups = splits(p, cores)
    batch = np.array([split.batch for split in of_groups], np.int64)
    sizes = plan.tile.m // 2, plan.single_n, cores, plan.tile.n
    parts = Parts.dealt(p, *sizes, by_row=True, batch=batch)
    parts = replace(parts, order=_order(batch[parts.group], 4, parts.number))
    cube, vector = CubeCore("npu_grouped_matmul", spec), VectorCore("npu_grouped_matmul", spec)
    every = np.mgrid[: 1 + batch.max(initial=-1), :cores].reshape(2, -1)
    names = bound(p, *plan.workspaces)
    return launch_mixed(
        cores,
        CoreSteps(cube, _cube_steps(cube, p, plan, parts, every)),
        CoreSteps(vector, _vector_steps(vector, p, plan, parts, every, _items(p, of_groups))),
        lambda _: names,
        vector_cores=1,
    )


def _order(batch: Integers, phase: int, place: Integers | int = 0) -> Integers:
    """The order of the items in a *phase* of a batch, by their *place* in it."""
    return (batch * 8 + phase) * 2**32 + place


def _items(p: Problem, of_groups: list[Split]) -> Integers:
    """The cores that write the digits of parts of rows of x, `(7, items)`.

    The batch and the vector core; the row, first k and length of the part; its index and the count.
    """
    k, found = p.weight_shape(0)[0], []
    for split, m, top in zip(of_groups, p.groups.m.tolist(), p.groups.row.tolist(), strict=True):
        for place, core in enumerate(split.cores):
            rows, first, parts = range(m), place * split.piece_k, ceil_div(k, split.piece_k)
            if parts == 1:
                rows, first, place = share(m, len(split.cores), place), 0, 0
            length = min(split.piece_k, k - first)
            if length > 0:
                found += [(split.batch, core, top + x, first, length, place, parts) for x in rows]
    return np.array(found, np.int64).reshape(-1, 7).T


def _cube_steps(
    core: CubeCore, p: Problem, plan: Plan, parts: Parts, every: Integers
) -> tuple[Step, ...]:
    """Let cube cores multiply the blocks of each batch, once its digits are there."""
    k, n = p.weight_shape(0)
    digits, weight = GmMatrix("digits", INT8, 2 * p.rows, k, False), matrices_of(p, 0, 0)[1]
    cube = Matmul(core, plan.tile, digits, weight, k)
    products = GmView.of("products", INT32, 2 * p.rows, n)

    def tile(a: GmTile, b: GmTile, products: GmView, matrices: Matrices) -> None:
        """*products* `(2 rows, columns)` of (2 rows, k) times (k, columns)."""
        cube.use(digits, matrices[1])
        cube.fixpipe(products, cube.multiply(a.extent, b.extent, a.k))

    def arguments(own: Parts) -> tuple[Any, ...]:
        top = 2 * (p.groups.row[own.group] + own.row)
        here = GmViews.of(products, top, own.column, 2 * own.rows, own.columns)
        return own.digits(digits), own.weight, here, own.matrices

    first, last = _edges(parts, plan)
    block = np.cumsum(first)
    ahead = first & (block - block[np.searchsorted(parts.core, parts.core)] >= AHEAD)
    batch, cores = every
    wait_digits = partial(core.cross_core_wait_flag, "group", "mte2", SPLIT)
    wait_read = partial(core.cross_core_wait_flag, "group", "fixpipe", READ)
    set_filled = partial(core.cross_core_set_flag, "group", "fixpipe", FILLED)
    return (
        read_list(p, core, plan.block_dim),
        Step(wait_digits, (), cores, _order(batch, 0)),
        Step(wait_read, (), parts.core[ahead], parts.order[ahead]),
        *parts.steps(tile, arguments),
        Step(set_filled, (), parts.core[last], parts.order[last]),
    )


def _edges(parts: Parts, plan: Plan) -> tuple[Any, Any]:
    """Whether each tile is the first of its block, and the last, as masks."""
    end = parts.column + parts.columns
    is_last = (end % plan.single_n == 0) | (end == parts.p.groups.n[parts.group])
    return parts.column % plan.single_n == 0, is_last


def _vector_steps(
    core: VectorCore, p: Problem, plan: Plan, parts: Parts, every: Integers, items: Integers
) -> tuple[Step, ...]:
    """Let vector cores write the digits of each batch, then the output of each core's blocks."""
    rows, cores, (k, n) = _DigitRows(core, p), plan.block_dim, p.weight_shape(0)
    core.reset_buffers()
    finish = _Finish(core, p, plan)
    batch, owner, row, first_k, length, part, count = items
    x = GmViews.of(GmView.of("x", p.types.x, p.rows, k), row, first_k, 1, length)
    of_parts = [GmView.of(name, FLOAT32, p.rows, cores) for name in ("most_parts", "sum_parts")]
    of_rows = [GmView.vector(name, FLOAT32, p.rows) for name in ("most", "sum")]
    digits, products = (
        GmView.of(name, dtype, 2 * p.rows, width)
        for name, dtype, width in (("digits", INT8, k), ("products", INT32, n))
    )
    measured = x, *(GmViews.of(view, row, part, 1, 1) for view in of_parts)
    written = (
        x,
        *(GmViews.of(view, row, 0, 1, count) for view in of_parts),
        *(GmViews.of(view, 0, row, 1, 1) for view in of_rows),
        GmViews.of(digits, 2 * row, first_k, 2, length),
        part == 0,
    )

    def signal_digits() -> None:
        core.end_stage()
        sync_all(core, "mte3", "mte2", ALL_VECTORS, SPLIT)

    def arguments(own: Parts) -> tuple[Any, ...]:
        top = p.groups.row[own.group] + own.row
        return (
            GmViews.of(products, 2 * top, own.column, 2 * own.rows, own.columns),
            own.output,
            *(GmViews.of(view, 0, top, 1, own.rows) for view in of_rows),
            *map(own.of_columns, (p.antiquant_offset, p.antiquant_scale, p.bias)),
        )

    first, last = _edges(parts, plan)
    wait_filled = partial(core.cross_core_wait_flag, "group", "mte2", FILLED)
    set_read = partial(core.cross_core_set_flag, "group", "mte2", READ)
    wait_for_all = partial(sync_all, core, "mte3", "mte2", ALL_VECTORS)
    return (
        read_list(p, core, cores),
        Step(rows.measure, measured, owner, _order(batch, 0)),
        Step(wait_for_all, (), every[1], _order(every[0], 1)),
        Step(rows.write, written, owner, _order(batch, 2)),
        Step(signal_digits, (), every[1], _order(every[0], 3)),
        Step(wait_filled, (), parts.core[first], parts.order[first]),
        *parts.steps(finish.columns, arguments),
        Step(set_read, (), parts.core[last], parts.order[last]),
        Step(core.end_stage, (), every[1], _order(every[0], 5)),
    )


# ---- vector cores ----


class _DigitRows(DigitRows):
    """Rows of x on a vector core: measured first, then written as digits."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        super().__init__(core, p.types.x, EIGHT_BITS, 1, p.weight_shape(0)[0], "rint")
        self.parts_in = core.vecin(FLOAT32, REPEAT)
        self.partial = core.tile(FLOAT32, 4 * REPEAT)
        self.value_out = core.vecout(FLOAT32, FLOATS_PER_BLOCK)

    def measure(self, x: GmView, most: GmView, total: GmView) -> None:
        """Find the largest magnitude and the sum of a part `(1, count)`."""
        plane = self._load(x)
        work = self.work(plane).whole()
        self.core.abs(work, plane.whole())
        self._store_value("max", work, most)
        self._store_value("sum", plane.whole(), total)

    def write(
        self,
        x: GmView,
        most: GmView,
        total: GmView,
        row_most: GmView,
        row_sum: GmView,
        digits: GmView,
        is_first: bool,
    ) -> None:
        """Write *digits* `(2, count)` of *x* `(1, count)`; with the first part also row values."""
        core = self.core
        largest = self._of_parts("max", most)
        core.sync("vector", "scalar")
        core.get_value("most", largest[:1])
        core.alu("f32_div", "factor", FIRST, "most")
        core.sync("scalar", "vector")
        if is_first:
            core.store_rows(self.value_out, largest, row_most)
            core.store_rows(self.value_out, self._of_parts("sum", total), row_sum)
        else:
            self.value_out.enque(largest)
            self.value_out.free(self.value_out.deque())
        self.split(self._load(x), digits[:1, :], digits[1:, :], first="factor")

    def _load(self, x: GmView) -> Plane:
        """Load *x* as fp32."""
        loaded, plane = self.core.load_rows(self.x_in, x), Plane(self._plane, 1, x.columns)
        self.core.widen(plane.whole(), loaded[: x.columns])
        self.x_in.free(loaded)
        return plane

    def _store_value(self, op: Reduction, values: Local, view: GmView) -> None:
        """Store the largest of *values*, or their sum, to *view*."""
        result = self.value_out.alloc()
        self._reduce(op, result[:1], values)
        self.core.store_rows(self.value_out, result, view)

    def _of_parts(self, op: Reduction, view: GmView) -> Local:
        """Reduce the stored values of a row's parts likewise; the rest of a block is 0."""
        core, count = self.core, align_up(view.columns, FLOATS_PER_BLOCK)
        parts = self.parts_in.alloc()
        if count > view.columns:
            core.duplicate(parts[:count], 0.0)
            core.sync("vector", "mte2")
        core.data_copy(parts[: view.columns], view.operand)
        self.parts_in.enque(parts)
        parts, result = self.parts_in.deque(), self.value_out.alloc()
        core.whole_reduce(op, result[:1], parts[:count])
        self.parts_in.free(parts)
        return result

    def _reduce(self, op: Reduction, result: Local, values: Local) -> None:
        """Reduce *values*, in whole repeats, to one, each repeat pairwise as a tree."""
        core, repeats = self.core, values.count // REPEAT
        if repeats == 1:
            core.whole_reduce(op, result, values)
            return
        partial = self.partial[: align_up(repeats, REPEAT) if repeats > REPEAT else repeats]
        if partial.count > repeats:
            core.duplicate(partial, 0.0)
        core.whole_reduce(op, partial[:repeats], values)
        if partial.count > REPEAT:
            fewer = self.partial.at(3 * REPEAT, partial.count // REPEAT)
            core.whole_reduce(op, fewer, partial)
            partial = fewer
        core.whole_reduce(op, result, partial)


class _Finish:
    """From products of both digits to the output, some rows of some columns at a time."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, width = core, plan.tile.n
        count = ROWS * width
        self.products_in = [core.vecin(INT32, count) for _ in range(2)]
        self.work = core.tile(FLOAT32, count)
        self.out = core.vecout(p.types.x, count, depth=2)
        self.raw_in = core.vecin(FLOAT32, width)
        self.vectors = [core.tile(FLOAT32, width) for _ in range(3)]
        self.values_in = [core.tiles(FLOAT32, FLOATS_PER_BLOCK, "mte2", "scalar") for _ in range(2)]

    def columns(
        self,
        products: GmView,
        output: GmView,
        most: GmView,
        total: GmView,
        offset: GmView,
        scale: GmView,
        bias: GmView | None,
    ) -> None:
        """Compute *output* `(rows, columns)` from *products* `(2 rows, columns)`."""
        views = (offset, scale) if bias is None else (offset, scale, bias)
        vectors = [self._take(tile, x) for tile, x in zip(self.vectors, views, strict=False)]
        pitch = products.pitch
        both = GmView(
            *(products.name, INT32, output.rows, 2 * pitch, 2 * pitch, products.offset_bytes)
        )
        for row, rows in pieces(output.rows, ROWS):
            here = slice(row, row + rows)
            halves = both[here, : output.columns], both[here, pitch : pitch + output.columns]
            self._rows(halves, output[here, :], (most[:, here], total[:, here]), vectors)

    def _take(self, tile: Local, view: GmView) -> Local:
        """Load parameters of the columns, as fp32."""
        core, wide = self.core, tile[: view.columns]
        loaded = core.load_rows(self.raw_in, view)
        if view.dtype is FLOAT32:
            core.mul(wide, loaded[: view.columns], 1.0)
        else:
            core.widen(wide, loaded.as_dtype(view.dtype, view.columns))
        self.raw_in.free(loaded)
        return wide

    def _rows(
        self,
        halves: tuple[GmView, GmView],
        output: GmView,
        of_rows: tuple[GmView, GmView],
        vectors: Sequence[Local],
    ) -> None:
        """Process rows of both digits' products, `(rows, columns)` each."""
        core, width = self.core, align_up(output.columns, REPEAT)
        size = output.rows * width
        first, second = (
            core.load_rows(queue, half, pitch=width)
            for queue, half in zip(self.products_in, halves, strict=True)
        )
        values, work = first.as_dtype(FLOAT32, size), self.work[:size]
        # int32 -> fp32; c1 + c2 / 254
        core.cast(values, first[:size])
        core.cast(work, second[:size])
        self.products_in[1].free(second)
        core.mul(work, work, 1 / SECOND)
        core.add(values, values, work)
        loaded = [core.load_rows(q, x) for q, x in zip(self.values_in, of_rows, strict=True)]
        for row in range(output.rows):
            self._row(values.at(row * width, output.columns), row, loaded, vectors)
        for queue, tile in zip(self.values_in, loaded, strict=True):
            queue.free(tile)
        result = self.out.alloc()
        core.cast(result[:size], values, "rint")
        self.products_in[0].free(first)
        core.store_rows(self.out, result, output, pitch=width)

    def _row(
        self, values: Local, row: int, of_rows: Sequence[Local], vectors: Sequence[Local]
    ) -> None:
        """`((values * (M / 127)) + offset * sum) * scale [+ bias]`."""
        core, (offset, scale, *bias) = self.core, vectors
        core.get_value("most", of_rows[0][row : row + 1])
        core.alu("f32_div", "share", "most", FIRST)
        core.get_value("total", of_rows[1][row : row + 1])
        core.mul(values, values, "share")
        core.axpy(values, offset, "total")
        core.mul(values, values, scale)
        for each in bias:
            core.add(values, values, each)
