"""Reductions along an axis that others follow: rows are added to rows.

x is `(outer, count, inner)` and the result `(outer, inner)`. Columns of *inner* are shared out, in
pieces of whole repeats; a core takes all rows of its piece, as many at a time as the unified buffer
has room for, and adds one after the other to what it has, or takes the larger. `argmax` keeps where
that was beside it. The vendor's kernels are built by a closed generator; all of this, and the order
of additions with it, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, RoundMode
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Binary,
    BinaryOp,
    BinaryScalar,
    Cast,
    Compare,
    Copy,
    Duplicate,
    Local,
    Select,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.reductions.contract import Problem

__all__ = ["Plan", "build", "share_of", "tile", "width_of"]

UNIT = 128
"""Elements that a piece is a multiple of: a repeat of 16 bits, two of 32."""
MOST = 2048
"""Elements of a piece; 8 KiB of float32."""
BYTE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Pieces of columns, dealt out in order, and rows at a time."""

    piece_columns: int
    pieces_per_core: int
    tile_rows: int


def width_of(spec: DeviceSpec, p: Problem) -> int:
    """Columns of a piece, so few that all cores have one, if there are as many."""
    each = ceil_div(p.rows * p.inner, len(spec.vector_cores))
    return min(align_up(each, UNIT), align_up(p.inner, UNIT), MOST)


def share_of(spec: DeviceSpec, p: Problem, width: int, *, spills: bool) -> tuple[int, int]:
    """Cores, and pieces of *width* columns for each; one core where what is stored *spills*."""
    count = p.rows * ceil_div(p.inner, width)
    share = ceil_div(count, 1 if spills else len(spec.vector_cores))
    return ceil_div(count, share), share


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Pieces in even shares, and as many rows as fit into the buffer."""
    width, element = width_of(spec, p), p.inputs[0].element
    out = p.output.element
    # What is stored beyond the end of a row belongs to the next one, of the same core.
    spills = out.nbytes(p.inner) % spec.transfer.store_granule_bytes > 0
    cores, share = share_of(spec, p, width, spills=spills)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - BLOCK_BYTES
    # Two tiles of rows come in, one is calculated with.
    row_bytes = 2 * element.nbytes(width) + FLOAT32.nbytes(width)
    # Two results go out of what is kept. Where it was and where this row is are kept beside it, and
    # a bit for each column.
    beside = 2 * FLOAT32.nbytes(width) + width // 8 if p.name == "argmax" else 0
    kept_bytes = 2 * out.nbytes(width) + FLOAT32.nbytes(width) + beside
    return Plan(
        block_dim=cores,
        reads_tiling=False,
        piece_columns=width,
        pieces_per_core=share,
        tile_rows=min(p.columns, align_down(room - kept_bytes, BLOCK_BYTES) // row_bytes),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core: its pieces, one after the other."""
    spans = list(product(range(p.rows), pieces(p.inner, plan.piece_columns)))
    element, y = p.inputs[0].element, GmView.of("output", p.output.element, p.rows, p.inner)
    bound = bindings(GmView.vector("x", element, p.inputs[0].spec.size), y)
    kernel, blocks = ColumnKernel(spec, p, plan), []
    for core in range(plan.block_dim):
        first = core * plan.pieces_per_core
        for row, (left, width) in spans[first : first + plan.pieces_per_core]:
            above = element.nbytes(row * p.columns * p.inner)
            x = GmView("x", element, p.columns, p.inner, p.inner, above)
            across = slice(left, left + width)
            kernel.piece(x[:, across], y[row : row + 1, across])
        blocks.append(Block(core, spec.vector_cores[core], kernel.builder.build(), bound))
    return tuple(blocks)


class ColumnKernel:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.element = p.inputs[0].element
        # The largest of numbers is one of them, so that float16 stays what it is.
        is_exact = p.name == "amax" and self.element is FLOAT16
        self.dtype = FLOAT16 if is_exact else FLOAT32
        self.builder = builder = Builder(p.name, spec.cores[spec.vector_kinds[0]], spec.sync)
        width, rows = plan.piece_columns, plan.tile_rows
        self.x = builder.queue("ub", self.element.nbytes(rows * width), "mte2", "vector", 2)
        self.y = builder.queue("ub", p.output.element.nbytes(width), "vector", "mte3", 2)
        self.wide = None
        if self.element is not self.dtype:
            self.wide = builder.claim("ub", FLOAT32.nbytes(rows * width))
        self.total = builder.claim("ub", FLOAT32.nbytes(width))
        self.places = Places(builder, width) if p.name == "argmax" else None
        self.writer = Writer(builder, spec)

    def piece(self, x: GmView, y: GmView) -> None:
        """*x* `(count, columns)`, *y* `(1, columns)`."""
        for top, count in pieces(x.rows, self.plan.tile_rows):
            repeat(self.builder, self._rows, x[top : top + count, :], top == 0)
        repeat(self.builder, self._finish, y)

    def _rows(self, x: GmView, is_first: bool) -> None:
        """Add the rows of *x* to the total, or begin it with the first of them."""
        slot = load(self.builder, self.spec, self.x, x)
        lanes = BLOCK_BYTES * 8 // self.element.bits
        pitch = align_up(x.columns, lanes)
        rows = slot.of(self.element, x.rows * pitch)
        self.builder.barrier("vector")
        if self.wide:
            wide = self.wide.of(FLOAT32, rows.count)
            step(self.builder, Cast(wide, rows))
            rows = wide
        if self.p.name == "mean":
            # Scaled first, then added up.
            step(self.builder, BinaryScalar("mul", rows, rows, 1 / self.p.columns))
        # Bits of a comparison are whole bytes: what fills a block up was loaded too.
        width = align_up(x.columns, BYTE_BITS) if self.places else x.columns
        for row in range(x.rows):
            added = rows.at(row * pitch, width)
            if is_first and row == 0:
                step(self.builder, Copy(self.total.of(self.dtype, width), added))
                if self.places:
                    self.places.begin(width)
            else:
                self._add(added)
        self.x.free(slot)

    def _add(self, row: Local) -> None:
        """Add *row* to the total, or take the larger of both."""
        total = self.total.of(self.dtype, row.count)
        if self.places:
            self.places.keep_larger(total, row)
        op: BinaryOp = "add" if self.p.name in ("sum", "mean") else "max"
        step(self.builder, Binary(op, total, total, row))

    def _finish(self, y: GmView) -> None:
        """Round the total, and store it."""
        # 310P has one conversion to fp16, and that rounds to nearest even as well.
        mode: RoundMode = "none" if self.spec.arch == "2002" else "rint"
        out = self.y.alloc()
        dst, total = out.of(y.dtype, y.columns), self.total.of(self.dtype, y.columns)
        if self.places:
            found = self.places.finish(total, self.p.columns - 1)
            self.builder.emit(Cast(dst, found, "trunc"))
        else:
            is_same = self.element is self.dtype
            self.builder.emit(Copy(dst, total) if is_same else Cast(dst, total, mode))
        self.writer.store(self.y, out, y)


class Places:
    """Where the largest of each column was, counted in float32."""

    def __init__(self, builder: Builder, width: int) -> None:
        self.builder = builder
        self.at, self.here = (builder.claim("ub", FLOAT32.nbytes(width)) for _ in range(2))
        self.mask = builder.claim("ub", width // 8)

    def begin(self, columns: int) -> None:
        """It is in row 0, which this one is."""
        for slot in (self.at, self.here):
            self.builder.emit(Duplicate(slot.of(FLOAT32, _whole(columns)), 0.0))
        self.builder.barrier("vector")

    def keep_larger(self, largest: Local, row: Local) -> None:
        """Go on to the next row, *row*, and keep it where it is larger than *largest*."""
        count = _whole(row.count)
        at, here = self.at.of(FLOAT32, count), self.here.of(FLOAT32, count)
        mask = self.mask.of(UINT8, count // 8)
        self.builder.emit(BinaryScalar("add", here, here, 1.0))
        # What fills the columns up is compared as well, and left out of the result.
        step(self.builder, Compare("gt", mask, _filled(row), _filled(largest)))
        step(self.builder, Select(at, mask, here, at))

    def finish(self, largest: Local, last: int) -> Local:
        """The places, or *last* where *largest* is NaN."""
        count = _whole(largest.count)
        at, mask = self.at.of(FLOAT32, count), self.mask.of(UINT8, count // 8)
        step(self.builder, Compare("eq", mask, _filled(largest), _filled(largest)))
        step(self.builder, Select(at, mask, at, float(last)))
        return at.at(0, largest.count)


def _whole(columns: int) -> int:
    """Columns filled up to whole repeats, which a comparison takes."""
    return align_up(columns, REPEAT_BYTES * 8 // FLOAT32.bits)


def _filled(row: Local) -> Local:
    """*row* with what fills it up to whole repeats."""
    return Local(row.buffer, row.offset_bytes, FLOAT32, _whole(row.count))
