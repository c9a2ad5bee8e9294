"""Cores, tiles and programs of reductions along rows.

Rows are shared out evenly; as many as fit twice into the unified buffer, with what comes of them,
are a tile. A row goes through its steps by itself, each behind a barrier. A reduction adds, or
takes the larger, of halves: what lies behind the largest power of two is folded onto the beginning,
then one half onto the other until one repeat is left, which one instruction reduces. A number of a
row meets the row as the block that Brcb made of it. Where the largest is, is the smallest index of
those that equal it.

The vendor's kernels are built by a closed generator; that they take rows one after the other, and
halves, is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, DType, RoundMode
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Binary,
    BinaryOp,
    BinaryScalar,
    Broadcast,
    Cast,
    CompareScalar,
    Copy,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Select,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops.families.reductions.contract import Problem

__all__ = ["Plan", "RowKernel", "build", "cores_of", "fits", "tile"]

BRCB_LANES = 8
"""Elements that Brcb takes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Runs of rows, some at a time."""

    rows_per_core: int
    tile_rows: int
    depth: int
    """Buffers of the rows that come in, and of those that go out."""


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Even runs of rows; raises OpError where not one row fits into the buffer."""
    cores = cores_of(spec, p)
    each = ceil_div(p.rows, cores)
    room, row_bytes = _room_bytes(spec, p), _row_bytes(p)
    if not fits(spec, p):
        Contract(p.name, spec).fail(
            f"a row must fit into the unified buffer, not have {p.columns} elements: longer ones "
            f"are not simulated; split it"
        )
    depth = 2 if room >= 2 * row_bytes else 1
    return Plan(
        block_dim=ceil_div(p.rows, each),
        reads_tiling=False,
        rows_per_core=each,
        tile_rows=min(each, room // (depth * row_bytes)),
        depth=depth,
    )


def cores_of(spec: DeviceSpec, p: Problem) -> int:
    """How many cores may take rows."""
    out_columns = p.columns if p.keeps_shape else 1
    if p.output.element.nbytes(out_columns) < spec.transfer.store_granule_bytes:
        # Such rows spill into the next ones when they are stored, so one core takes them all.
        return 1
    return len(spec.vector_cores)


def fits(spec: DeviceSpec, p: Problem) -> bool:
    """Whether the unified buffer has room for a row and what is calculated with it."""
    return _room_bytes(spec, p) >= _row_bytes(p)


def _room_bytes(spec: DeviceSpec, p: Problem) -> int:
    """For rows that come in and go out."""
    return spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - _fixed_bytes(p)


def _row_bytes(p: Problem) -> int:
    return _pitch_bytes(p) + _out_bytes(p)


def _pitch_bytes(p: Problem) -> int:
    """From row to row of x in the buffer."""
    return align_up(p.inputs[0].element.nbytes(p.columns), BLOCK_BYTES)


def _out_bytes(p: Problem) -> int:
    """From row to row of the result."""
    return _pitch_bytes(p) if p.keeps_shape else BLOCK_BYTES


def _width(p: Problem) -> int:
    """Elements of a row, filled up to whole blocks of any type."""
    if p.name == "argmax":
        # A comparison takes whole repeats.
        return align_up(p.columns, REPEAT_BYTES * 8 // FLOAT32.bits)
    return align_up(p.columns, BLOCK_BYTES * 8 // FLOAT16.bits)


def _fixed_bytes(p: Problem) -> int:
    """What a reduction overwrites, a row in float32, a number of the row and its blocks."""
    rows = 1 if _ends_in_float32(p) else 2
    # The indices as float32, and a bit for each.
    beside = FLOAT32.nbytes(_width(p)) + _mask_bytes(p) if p.name == "argmax" else 0
    return rows * FLOAT32.nbytes(_width(p)) + (BRCB_LANES + 1) * BLOCK_BYTES + beside


def _mask_bytes(p: Problem) -> int:
    """A bit for each element of a row."""
    return align_up(_width(p) // 8, BLOCK_BYTES)


def _ends_in_float32(p: Problem) -> bool:
    """Whether the result is a row of float32, which is calculated with where it is."""
    return p.keeps_shape and p.output.element is FLOAT32


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, y = _views(p, p.rows)
    for row, rows in pieces(p.rows, plan.rows_per_core):
        if rows not in programs:
            programs[rows] = RowKernel(spec, p, plan).program(rows)
        core, bound = len(blocks), bindings(x[row:, :], y[row:, :])
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
    return tuple(blocks)


def _views(p: Problem, rows: int) -> tuple[GmView, GmView]:
    x = GmView.of("x", p.inputs[0].element, rows, p.columns)
    columns = p.columns if p.keeps_shape else 1
    return x, GmView.of("output", p.output.element, rows, columns)


class RowKernel:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = builder = Builder(p.name, spec.cores[spec.vector_kinds[0]], spec.sync)
        self.element = p.inputs[0].element
        rows = plan.tile_rows
        self.x = builder.queue("ub", rows * _pitch_bytes(p), "mte2", "vector", plan.depth)
        self.y = builder.queue("ub", rows * _out_bytes(p), "vector", "mte3", plan.depth)
        row_bytes = FLOAT32.nbytes(_width(p))
        self.values = None if _ends_in_float32(p) else builder.claim("ub", row_bytes)
        self.folded = builder.claim("ub", row_bytes)
        self.number = builder.claim("ub", BLOCK_BYTES)
        self.blocks = builder.claim("ub", BRCB_LANES * BLOCK_BYTES)
        self.indices = self.mask = None
        if p.name == "argmax":
            self.indices = builder.claim("ub", row_bytes)
            self.mask = builder.claim("ub", _mask_bytes(p))
        self.row = self.folded.of(FLOAT32, p.columns)
        """Where a row is calculated with in float32; of each row, where the last one was."""
        self.writer = Writer(builder, spec)

    def program(self, rows: int) -> Program:
        x, y = _views(self.p, rows)
        self.begin()
        for first, count in pieces(rows, self.plan.tile_rows):
            here = slice(first, first + count), slice(None)
            repeat(self.builder, self._tile, x[here], y[here])
        return self.builder.build()

    def begin(self) -> None:
        """Fill what rows are calculated with that is the same for all of them."""
        if self.indices:
            assert self.values is not None
            # A comparison reads what fills a row up too.
            step(self.builder, Duplicate(self.values.of(FLOAT32, _width(self.p)), 0.0))
            self._count(self.indices)

    def _count(self, indices: Slot) -> None:
        """Fill *indices* with 0, 1, 2 and so on: eight by hand, and then as many again."""
        for index in range(BRCB_LANES):
            bits = int(np.float32(index).view(np.int32))
            self.builder.emit(ScalarAlu("add", "index", bits))
            self.builder.emit(ScalarStore(indices.of(FLOAT32, 1, FLOAT32.nbytes(index)), "index"))
        self.builder.sync("scalar", "vector")
        count, width = BRCB_LANES, _width(self.p)
        while count < width:
            more = min(count, width - count)
            dst = indices.of(FLOAT32, more, FLOAT32.nbytes(count))
            step(self.builder, BinaryScalar("add", dst, indices.of(FLOAT32, more), float(count)))
            count += more

    def _tile(self, x: GmView, y: GmView) -> None:
        """*x* `(rows, columns)`; *y* the same, or `(rows, 1)`."""
        slot, out = load(self.builder, self.spec, self.x, x), self.y.alloc()
        for row in range(x.rows):
            src = slot.of(x.dtype, x.columns, row * _pitch_bytes(self.p))
            dst = out.of(y.dtype, y.columns, row * _out_bytes(self.p))
            # The row before may still be read from where this one writes.
            self.builder.barrier("vector")
            self.row = self.values.of(FLOAT32, x.columns) if self.values else dst
            ROWS[self.p.name](self, dst, src)
        self.x.free(slot)
        self.writer.store(self.y, out, y, _out_bytes(self.p))

    # ---- steps of a row ----

    def wide(self, src: Local) -> Local:
        """*src* as float32."""
        if src.dtype is FLOAT32:
            return src
        step(self.builder, Cast(self.row, src))
        return self.row

    def narrow(self, dst: Local, src: Local) -> None:
        """*src*, float32, as the type of *dst*, to nearest even."""
        # 310P has one conversion to fp16, and that rounds to nearest even as well.
        mode: RoundMode = "none" if self.spec.arch == "2002" else "rint"
        if dst.dtype is not FLOAT32:
            step(self.builder, Cast(dst, src, mode))
        elif dst != src:
            step(self.builder, Copy(dst, src))

    def reduced(self, op: Literal["sum", "max", "min"], src: Local) -> Local:
        """The sum, the largest or the smallest of *src*, a number."""
        step(self.builder, Copy(self.folded.of(src.dtype, src.count), src))
        return self.fold(op, src.dtype, src.count)

    def fold(self, op: Literal["sum", "max", "min"], dtype: DType, count: int) -> Local:
        """The same of the *count* elements in `folded`, which are overwritten."""
        folded = self.folded.of(dtype, count)
        lanes = REPEAT_BYTES * 8 // dtype.bits
        both: BinaryOp = "add" if op == "sum" else op
        while count > lanes:
            half = 1 << (count - 1).bit_length() - 1
            low, high = folded.at(0, count - half), folded.at(half, count - half)
            step(self.builder, Binary(both, low, low, high))
            count = half
        number = self.number.of(dtype, 1)
        step(self.builder, WholeReduce(op, number, folded.at(0, count)))
        return number

    def place_of_largest(self, src: Local) -> Local:
        """Where the largest of *src* is first, or the last place, in float32.

        It leaves the largest itself, in float32, in the register of that name.
        """
        assert self.indices is not None
        assert self.mask is not None
        builder, width = self.builder, _width(self.p)
        if src.dtype is FLOAT32:
            step(builder, Copy(self.row, src))
        else:
            self.wide(src)
        largest = self.reduced("max", self.row)
        builder.sync("vector", "scalar")
        builder.emit(ScalarLoad("largest", largest))
        builder.sync("scalar", "vector")
        # What fills the row up is compared as well, and left out by the fold.
        row = Local("ub", self.row.offset_bytes, FLOAT32, width)
        mask = self.mask.of(UINT8, width // 8)
        step(builder, CompareScalar("eq", mask, row, "largest"))
        folded, last = self.folded.of(FLOAT32, width), float(src.count - 1)
        step(builder, Select(folded, mask, self.indices.of(FLOAT32, width), last))
        return self.fold("min", FLOAT32, src.count)

    def with_number(self, op: BinaryOp, dst: Local, src: Local, number: Local) -> None:
        """`dst = src op number`, each element with the block that Brcb makes of the number."""
        dtype = src.dtype
        lanes = BLOCK_BYTES * 8 // dtype.bits
        blocks = self.blocks.of(dtype, BRCB_LANES * lanes)
        eight = Local("ub", number.offset_bytes, dtype, BRCB_LANES)
        step(self.builder, Broadcast(blocks, eight))
        repeats = src.count // (8 * lanes) * 8 * lanes
        rest = align_up(src.count - repeats, lanes)
        for start, count in ((0, repeats), (repeats, rest)):
            if count:
                to, part = (
                    Local("ub", x.offset_bytes + dtype.nbytes(start), dtype, count)
                    for x in (dst, src)
                )
                one = Local("ub", blocks.offset_bytes, dtype, count, 0, 0)
                self.builder.emit(Binary(op, to, part, one))
        self.builder.barrier("vector")

    def in_float32(self, src: Local, number: Local) -> Local:
        """`src - number`, in the type of both, as float32."""
        if src.dtype is FLOAT32:
            self.with_number("sub", self.row, src, number)
        else:
            self.with_number("sub", src, src, number)
            step(self.builder, Cast(self.row, src))
        return self.row


# ---- what a row becomes ----


def _sum(kernel: RowKernel, dst: Local, src: Local) -> None:
    kernel.narrow(dst, kernel.reduced("sum", kernel.wide(src)))


def _mean(kernel: RowKernel, dst: Local, src: Local) -> None:
    # Scaled first, then added up.
    step(kernel.builder, BinaryScalar("mul", kernel.row, kernel.wide(src), 1 / src.count))
    kernel.narrow(dst, kernel.reduced("sum", kernel.row))


def _amax(kernel: RowKernel, dst: Local, src: Local) -> None:
    if src.dtype is FLOAT16:
        step(kernel.builder, Copy(dst, kernel.reduced("max", src)))
    else:
        kernel.narrow(dst, kernel.reduced("max", kernel.wide(src)))


def _argmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    step(kernel.builder, Cast(dst, kernel.place_of_largest(src), "trunc"))


def _softmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    # The largest is taken off in float16, where the row is that.
    row = src if src.dtype is FLOAT16 else kernel.wide(src)
    values = kernel.in_float32(row, kernel.reduced("max", row))
    step(kernel.builder, Unary("exp", values, values))
    total = kernel.reduced("sum", values)
    if kernel.spec.arch == "2002":
        ones = kernel.blocks.of(FLOAT32, 1)
        step(kernel.builder, Duplicate(ones, 1.0))
        step(kernel.builder, Binary("div", total, ones, total))
        kernel.with_number("mul", values, values, total)
    else:
        kernel.with_number("div", values, values, total)
    kernel.narrow(dst, values)


def _log_softmax(kernel: RowKernel, dst: Local, src: Local) -> None:
    wide = kernel.wide(src)
    largest = kernel.reduced("max", wide)
    if src.dtype is not FLOAT16:
        # By default the largest is looked for among the numbers rounded to float16.
        half = kernel.folded.of(FLOAT16, 1)
        kernel.narrow(half, largest)
        step(kernel.builder, Cast(largest, half))
    kernel.with_number("sub", kernel.row, wide, largest)
    step(kernel.builder, Unary("exp", kernel.folded.of(FLOAT32, src.count), kernel.row))
    total = kernel.fold("sum", FLOAT32, src.count)
    step(kernel.builder, Unary("ln", total, total))
    kernel.with_number("sub", kernel.row, kernel.row, total)
    kernel.narrow(dst, kernel.row)


ROWS: dict[str, Callable[[RowKernel, Local, Local], None]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "argmax": _argmax,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
"""Operator -> what writes the steps of a row: the result `(columns,)` or `(1,)`, and the row."""
