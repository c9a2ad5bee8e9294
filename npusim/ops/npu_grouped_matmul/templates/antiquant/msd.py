"""The template msd: float rows written as two digits of int8, multiplied by the weight as it is.

.. code-block:: text

    vector cores  the largest magnitude M and the sum of each row, or of a part of it; all wait
                  d1 = away(x * (127 / M)), d2 = away((x * (127 / M) - d1) * 254); all wait
    cube cores    digits @ weight, int32, to a workspace
    vector cores  y = ((f32(C1) + f32(C2) * (1 / 254)) * (M / 127) + offset * sum) * scale + bias

This is done for up to twelve groups at a time, as few as give all cube cores a block. One vector
core starts beside each cube core, and finishes its blocks up to three behind it. The order in which
ReduceSum adds up a row, 64 numbers as a tree of neighbours, and then what came of them the same
way, is assumed; so is that the parts of a row's largest magnitude lie beside each other, where the
kernel has the copy to global memory keep the larger one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    Cast,
    Duplicate,
    Fixpipe,
    Local,
    ScalarAlu,
    ScalarLoad,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, GmTile
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_dynamic_quant.row_steps import float_bits
from npusim.ops.npu_grouped_matmul.groups import Group
from npusim.ops.npu_grouped_matmul.msd import Split, blocks_of, splits
from npusim.ops.npu_grouped_matmul.operands import Operands, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.antiquant.weights import AntiquantPlan
from npusim.ops.npu_grouped_matmul.templates.plan import Part, base_tile, cores_of, reason

__all__ = ["build", "tile"]

FILLED, READ, SPLIT, ALL_VECTORS = range(4)
"""Flags: a block of products is there; it was read; the digits are; all vector cores wait."""
LANES = 64
FIRST, SECOND = 127.0, 254.0
AHEAD = 3
"""Blocks that a cube core is ahead of its vector core at most."""
ROWS = 8
"""Of a block that a vector core finishes at a time (assumed)."""


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Base tiles of digits, whose rows are two for each of x."""
    k, n = p.weight_shape(0)
    blocks = blocks_of(p.rows, k, n, turned=p.trans_weight)
    core = spec.cores["aic"]
    messages_bytes = (core.l1_bytes or 0) - core.usable_bytes("l1")
    base = base_tile(spec, INT8, 2 * p.rows, width=blocks.columns, table_bytes=messages_bytes)
    cores = cores_of(spec)
    each = FLOAT32.nbytes(p.rows)
    return AntiquantPlan(
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
        ub_rows=ROWS,
        ub_columns=blocks.columns,
        round_n=0,
    )  # fmt: skip


class Item(NamedTuple):
    """A part of a row of x, for one vector core."""

    row: int
    k: int
    length: int
    part: int
    """Its number, of so many *parts* of the row."""
    parts: int


class Batches:
    """The groups of a call as they are worked on together."""

    def __init__(self, p: Problem, plan: AntiquantPlan) -> None:
        k, n = p.weight_shape(0)
        self.p, self.plan, self.k = p, plan, k
        blocks = blocks_of(p.rows, k, n, turned=p.trans_weight)
        rows = tuple(group.m for group in p.groups)
        self.splits = splits(rows, k, n, blocks, plan.block_dim)
        self.count = 1 + max((split.batch for split in self.splits), default=-1)

    def of(self, batch: int) -> list[tuple[Group, Split]]:
        pairs = zip(self.p.groups, self.splits, strict=True)
        return [(group, split) for group, split in pairs if split.batch == batch]

    def items(self, batch: int, core: int) -> Iterator[Item]:
        """What core number *core* writes the digits of."""
        for group, split in self.of(batch):
            if core not in split.cores:
                continue
            place = core - split.cores.start
            if split.piece_k == self.k:
                for row in share(group.m, len(split.cores), place):
                    yield Item(group.row + row, 0, self.k, 0, 1)
            elif place * split.piece_k < self.k:
                first, parts = place * split.piece_k, ceil_div(self.k, split.piece_k)
                for row in range(group.m):
                    width = min(split.piece_k, self.k - first)
                    yield Item(group.row + row, first, width, place, parts)

    def shares(self, batch: int) -> list[list[Part]]:
        """The blocks of each core, rows counted in x."""
        found: list[list[Part]] = [[] for _ in range(self.plan.block_dim)]
        index = 0
        for group, _ in self.of(batch):
            for row, rows in pieces(group.m, self.plan.tile.m // 2):
                for column, columns in pieces(group.n, self.plan.single_n):
                    part = Part(group, row, column, rows, columns)
                    found[index % self.plan.block_dim].append(part)
                    index += 1
        return found


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and one vector core a group."""
    batches = Batches(p, plan)
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    shares = [batches.shares(batch) for batch in range(batches.count)]
    names = bound(p) | {name: Binding(name) for name in plan.workspaces}
    return mixed_launch(
        plan.block_dim,
        lambda _: names,
        lambda core: cube.program([each[core] for each in shares]),
        lambda core, _: vector.program(core, batches, [each[core] for each in shares]),
        vector_cores=1,
    )


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan, self.operands = p, plan, Operands(p)
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync)
        self.k, self.n = p.weight_shape(0)
        self.digits = GmMatrix("digits", INT8, 2 * p.rows, self.k, k_is_first=False)
        group = p.groups[0]
        _, weight = self.operands.matrices(Part(group, 0, 0, group.m, group.n))
        self.feeds = GmFeed(self.builder, self.digits), GmFeed(self.builder, weight)
        self.writer = CubeWriter(self.builder, plan.tile, *self.feeds, self.k)

    def program(self, batches: list[list[Part]]) -> Program:
        """The blocks of each batch, once its digits are there."""
        builder, numbers = self.builder, count()
        for group in self.p.groups:
            self.operands.read_entry(builder, group.index)
        for parts in batches:
            repeat(builder, builder.cross_core_wait_flag, "group", "mte2", SPLIT)
            for part in parts:
                if next(numbers) >= AHEAD:
                    repeat(builder, builder.cross_core_wait_flag, "group", "fixpipe", READ)
                self._write(part)
                repeat(builder, builder.cross_core_set_flag, "group", "fixpipe", FILLED)
        return builder.build()

    def _write(self, part: Part) -> None:
        """The products of a block, a base tile after the other."""
        row = part.group.row + part.row
        products = GmView.of("products", INT32, 2 * self.p.rows, self.n)
        for column, columns in pieces(part.columns, self.plan.tile.n):
            own = part._replace(column=part.column + column, columns=columns)
            matrices = self.operands.matrices(own)
            _, weight = self.operands.tiles(own, matrices)
            digits = self.digits.tile(2 * row, 2 * part.rows)
            rows = slice(2 * row, 2 * (row + part.rows))
            here = products[rows, own.column : own.column + columns]
            repeat(self.builder, self._tile, digits, weight, here, matrices[1])

    def _tile(self, digits: GmTile, weight: GmTile, products: GmView, matrix: GmMatrix) -> None:
        """*products* `(2 rows, columns)` of (2 rows, k) times (k, columns)."""
        self.feeds[1].gm_matrix = matrix
        slot = self.writer.product(digits.extent, weight.extent, digits.k)
        rows_padded = align_up(products.rows, FRACTAL_ROWS)
        total = slot.of(INT32, rows_padded * align_up(products.columns, FRACTAL_ROWS))
        # L0C (columns / 16, rows_padded, 16) int32 -> (2 rows, columns) int32
        size = products.rows, products.columns, rows_padded
        self.writer.drain(slot, Fixpipe(products.operand, total, *size, INT32))


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan, self.operands = p, plan, Operands(p)
        self.builder = builder = Builder("npu_grouped_matmul", spec.cores["aiv"], spec.sync)
        k = p.weight_shape(0)[0]
        self.digits = DigitRows(builder, p, k, plan.block_dim)
        builder.reset_buffers()
        self.finish = Finish(builder, p, plan)

    def program(self, core: int, batches: Batches, shares: list[list[Part]]) -> Program:
        """The digits of each batch, then the output of this core's blocks of it."""
        builder = self.builder
        for group in self.p.groups:
            self.operands.read_entry(builder, group.index)
        for batch, parts in enumerate(shares):
            items = tuple(batches.items(batch, core))
            self.digits.measure(items)
            repeat(builder, sync_all, builder, "mte3", "mte2", ALL_VECTORS)
            self.digits.write(items)
            builder.end_stage()
            repeat(builder, sync_all, builder, "mte3", "mte2", ALL_VECTORS, SPLIT)
            for part in parts:
                repeat(builder, builder.cross_core_wait_flag, "group", "mte2", FILLED)
                self.finish.write(part)
                repeat(builder, builder.cross_core_set_flag, "group", "mte2", READ)
            builder.end_stage()
        return builder.build()


class DigitRows:
    """Rows of x on a vector core: measured first, then written as digits."""

    def __init__(self, builder: Builder, p: Problem, k: int, cores: int) -> None:
        self.builder, self.p, self.k, self.cores = builder, p, k, cores
        element = p.types.x
        self.x = builder.queue("ub", element.nbytes(k), "mte2", "vector")
        self.values = builder.claim("ub", FLOAT32.nbytes(k))
        self.work = builder.claim("ub", FLOAT32.nbytes(k))
        self.half = builder.claim("ub", FLOAT16.nbytes(k))
        self.out = builder.queue("ub", INT8.nbytes(k), "vector", "mte3")
        self.parts = builder.queue("ub", FLOAT32.nbytes(LANES), "mte2", "vector")
        self.partial = builder.claim("ub", FLOAT32.nbytes(4 * LANES))
        self.number = builder.queue("ub", BLOCK_BYTES, "vector", "mte3")

    def _views(self, item: Item) -> tuple[GmView, GmView, GmView, GmView, GmView, GmView]:
        """x, what is known of its part, and of the row, and its digits."""
        p = self.p
        x = GmView.of("x", p.types.x, p.rows, self.k)[
            item.row : item.row + 1, item.k : item.k + item.length
        ]
        most, total = (
            GmView.of(name, FLOAT32, p.rows, self.cores)[item.row : item.row + 1, : item.parts]
            for name in ("most_parts", "sum_parts")
        )
        row_most, row_sum = (
            GmView.vector(name, FLOAT32, p.rows)[:, item.row : item.row + 1]
            for name in ("most", "sum")
        )
        digits = GmView.of("digits", INT8, 2 * p.rows, self.k)[
            2 * item.row : 2 * item.row + 2, item.k : item.k + item.length
        ]
        return x, most, total, row_most, row_sum, digits

    def measure(self, items: tuple[Item, ...]) -> None:
        """The largest magnitude and the sum of each part."""
        for item in items:
            x, most, total, *_ = self._views(item)
            here = slice(item.part, item.part + 1)
            repeat(self.builder, self._measure, x, most[:, here], total[:, here])

    def _measure(self, x: GmView, most: GmView, total: GmView) -> None:
        builder, values = self.builder, self._load(x)
        work = self.work.of(FLOAT32, x.columns)
        step(builder, Unary("abs", work, values))
        for op, numbers, view in (("max", work, most), ("sum", values, total)):
            self._store_number("max" if op == "max" else "sum", numbers, view)

    def write(self, items: tuple[Item, ...]) -> None:
        """The digits of each part; of the first one also what is known of the row."""
        for item in items:
            views = self._views(item)
            repeat(self.builder, self._write, *views, item.part == 0)

    def _write(
        self,
        x: GmView,
        most: GmView,
        total: GmView,
        row_most: GmView,
        row_sum: GmView,
        digits: GmView,
        is_first: bool,
    ) -> None:
        """*digits* `(2, count)` of *x* `(1, count)`."""
        builder = self.builder
        largest = self._of_parts("max", most)
        builder.sync("vector", "scalar")
        builder.emit(
            ScalarLoad("most", largest.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "factor", float_bits(FIRST), "most"),
        )
        builder.sync("scalar", "vector")
        if is_first:
            store(builder, self.number, largest, row_most)
            store(builder, self.number, self._of_parts("sum", total), row_sum)
        else:
            self.number.enque(largest)
            self.number.free(self.number.deque())
        values = self._load(x)
        step(builder, BinaryScalar("mul", values, values, "factor"))
        rounded = self._store_digit(values, digits[:1, :])
        step(builder, Binary("sub", values, values, rounded))
        step(builder, BinaryScalar("mul", values, values, SECOND))
        self._store_digit(values, digits[1:, :])

    def _load(self, x: GmView) -> Local:
        """*x* in fp32."""
        slot, values = load(self.builder, self.x, x), self.values.of(FLOAT32, x.columns)
        to_float32(self.builder, values, slot.of(x.dtype, x.columns))
        self.x.free(slot)
        return values

    def _store_digit(self, values: Local, digit: GmView) -> Local:
        """Round *values*, ties away from zero, and store them; returns them rounded."""
        builder, rounded = self.builder, self.work.of(FLOAT32, values.count)
        step(builder, Cast(rounded, values, "round"))
        half = self.half.of(FLOAT16, values.count)
        step(builder, Cast(half, rounded, "rint"))
        out = self.out.alloc()
        step(builder, Cast(out.of(INT8, values.count), half, "rint"))
        store(builder, self.out, out, digit)
        return rounded

    def _store_number(self, op: Literal["max", "sum"], values: Local, view: GmView) -> None:
        """The largest of *values*, or their sum, to *view*."""
        out = self.number.alloc()
        self._reduce(op, out.of(FLOAT32, 1), values)
        store(self.builder, self.number, out, view)

    def _of_parts(self, op: Literal["max", "sum"], view: GmView) -> Slot:
        """The same of what is known of the parts of a row; the rest of a block is 0."""
        builder, count_8 = self.builder, align_up(view.columns, 8)
        slot = self.parts.alloc()
        if count_8 > view.columns:
            step(builder, Duplicate(slot.of(FLOAT32, count_8), 0.0))
            builder.sync("vector", "mte2")
        builder.data_copy(slot.of(FLOAT32, view.columns), view.operand)
        self.parts.enque(slot)
        slot = self.parts.deque()
        out = self.number.alloc()
        step(builder, WholeReduce(op, out.of(FLOAT32, 1), slot.of(FLOAT32, count_8)))
        self.parts.free(slot)
        return out

    def _reduce(self, op: Literal["max", "sum"], out: Local, values: Local) -> None:
        """*values*, whole repeats of them, to one number, a tree of each repeat at a time."""
        repeats = values.count // LANES
        if repeats == 1:
            step(self.builder, WholeReduce(op, out, values))
            return
        whole = align_up(repeats, LANES) if repeats > LANES else repeats
        partial = self.partial.of(FLOAT32, whole)
        if whole > repeats:
            step(self.builder, Duplicate(partial, 0.0))
        step(self.builder, WholeReduce(op, partial.at(0, repeats), values))
        self._reduce_few(op, out, partial)

    def _reduce_few(self, op: Literal["max", "sum"], out: Local, partial: Local) -> None:
        if partial.count > LANES:
            fewer = partial.count // LANES
            second = self.partial.of(FLOAT32, fewer, FLOAT32.nbytes(3 * LANES))
            step(self.builder, WholeReduce(op, second, partial))
            partial = second
        step(self.builder, WholeReduce(op, out, partial))


class Finish:
    """From products of both digits to the output, some rows of some columns at a time."""

    def __init__(self, builder: Builder, p: Problem, plan: AntiquantPlan) -> None:
        self.builder, self.p, self.plan, self.operands = builder, p, plan, Operands(p)
        width = plan.ub_columns
        count = ROWS * width
        self.products = [builder.queue("ub", INT32.nbytes(count), "mte2", "vector") for _ in (0, 1)]
        self.work = builder.claim("ub", FLOAT32.nbytes(count))
        self.out = builder.queue("ub", p.types.x.nbytes(count), "vector", "mte3", 2)
        self.raw = builder.queue("ub", FLOAT32.nbytes(width), "mte2", "vector")
        self.numbers = [builder.claim("ub", FLOAT32.nbytes(width)) for _ in range(3)]
        self.rows = [builder.queue("ub", BLOCK_BYTES, "mte2", "scalar") for _ in (0, 1)]

    def write(self, part: Part) -> None:
        """The output of a block."""
        p, operands, top = self.p, self.operands, part.group.row + part.row
        products = GmView.of("products", INT32, 2 * p.rows, part.group.n)
        for column, columns in pieces(part.columns, self.plan.ub_columns):
            own = part._replace(column=part.column + column, columns=columns)
            of_n = slice(own.column, own.column + columns)
            repeat(
                self.builder,
                self._columns,
                products[2 * top : 2 * (top + part.rows), of_n],
                operands.output(own),
                GmView.vector("most", FLOAT32, p.rows)[:, top : top + part.rows],
                GmView.vector("sum", FLOAT32, p.rows)[:, top : top + part.rows],
                operands.columns(p.antiquant_offset, own),
                operands.columns(p.antiquant_scale, own),
                operands.columns(p.bias, own),
            )

    def _columns(
        self,
        products: GmView,
        output: GmView,
        most: GmView,
        total: GmView,
        offset: GmView,
        scale: GmView,
        bias: GmView | None,
    ) -> None:
        """*output* `(rows, columns)` of *products* `(2 rows, columns)`."""
        views = (offset, scale) if bias is None else (offset, scale, bias)
        numbers = [self._take(slot, x) for slot, x in zip(self.numbers, views, strict=False)]
        pitch = products.pitch
        both = GmView(
            *(products.name, INT32, output.rows, 2 * pitch, 2 * pitch, products.offset_bytes)
        )
        for row, rows in pieces(output.rows, ROWS):
            here = slice(row, row + rows)
            halves = both[here, : output.columns], both[here, pitch : pitch + output.columns]
            self._rows(halves, output[here, :], most[:, here], total[:, here], numbers)

    def _take(self, slot: Slot, view: GmView) -> Local:
        """Numbers of the columns, as fp32."""
        raw = load(self.builder, self.raw, view)
        wide = slot.of(FLOAT32, view.columns)
        if view.dtype is FLOAT32:
            step(self.builder, BinaryScalar("mul", wide, raw.of(FLOAT32, view.columns), 1.0))
        else:
            to_float32(self.builder, wide, raw.of(view.dtype, view.columns))
        self.raw.free(raw)
        return wide

    def _rows(
        self,
        halves: tuple[GmView, GmView],
        output: GmView,
        most: GmView,
        total: GmView,
        numbers: list[Local],
    ) -> None:
        """Some rows of both digits' products, `(rows, columns)` each."""
        builder, width = self.builder, align_up(output.columns, LANES)
        size = output.rows * width
        first, second = (
            load(builder, queue, half, pitch=width)
            for queue, half in zip(self.products, halves, strict=True)
        )
        values, work = first.of(FLOAT32, size), self.work.of(FLOAT32, size)
        # int32 -> fp32; c1 + c2 / 254
        step(builder, Cast(values, first.of(INT32, size), "none"))
        step(builder, Cast(work, second.of(INT32, size), "none"))
        self.products[1].free(second)
        step(builder, BinaryScalar("mul", work, work, 1 / SECOND))
        step(builder, Binary("add", values, values, work))
        of_rows = [load(builder, q, x) for q, x in zip(self.rows, (most, total), strict=True)]
        for row in range(output.rows):
            self._row(values.at(row * width, output.columns), row, of_rows, numbers)
        for queue, slot in zip(self.rows, of_rows, strict=True):
            queue.free(slot)
        result = self.out.alloc()
        step(builder, Cast(result.of(output.dtype, size), values, "rint"))
        self.products[0].free(first)
        store(builder, self.out, result, output, pitch=width)

    def _row(self, values: Local, row: int, of_rows: list[Slot], numbers: list[Local]) -> None:
        """`((values * (M / 127)) + offset * sum) * scale [+ bias]`."""
        builder, (offset, scale, *bias) = self.builder, numbers
        start = FLOAT32.nbytes(row)
        builder.emit(
            ScalarLoad("most", of_rows[0].of(FLOAT32, 1, start)),
            ScalarAlu("f32_div", "share", "most", float_bits(FIRST)),
            ScalarLoad("total", of_rows[1].of(FLOAT32, 1, start)),
        )
        step(builder, BinaryScalar("mul", values, values, "share"))
        step(builder, Axpy(values, offset, "total"))
        step(builder, Binary("mul", values, values, scale))
        for each in bias:
            step(builder, Binary("add", values, values, each))
