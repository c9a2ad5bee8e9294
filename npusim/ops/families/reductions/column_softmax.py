"""Softmax along an axis that others follow: each element meets the numbers of its column.

x is `(outer, count, inner)`, and so is the result. Columns are shared out as those of sums are. A
core finds the largest of each column of its piece, then adds up the powers, then divides by their
sum. Pieces are made so narrow that all rows are in the unified buffer meanwhile, if a repeat of
them is; else they are loaded for each of the three, and the powers calculated twice. The vendor's
kernels are built by a closed generator; all of this, and the order of additions, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from npusim.data.dtypes import FLOAT16, FLOAT32, RoundMode
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Cast, Copy, Duplicate, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.reductions.columns import UNIT, share_of, width_of
from npusim.ops.families.reductions.contract import Problem

__all__ = ["Plan", "build", "tile"]

KEPT = 3
"""Rows that are kept of a piece, in float32: the largest, the sums, and one to calculate with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Pieces of columns, dealt out in order, and rows at a time."""

    piece_columns: int
    pieces_per_core: int
    tile_rows: int
    """All of them, if they are loaded once."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Pieces in even shares, of all rows if they fit into the buffer."""
    element, room = p.output.element, spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    room -= BLOCK_BYTES
    # Two tiles of rows come in, one is calculated with in float32, two go out.
    own = 0 if element is FLOAT32 else FLOAT32.nbytes(1)
    row_bytes, kept_bytes = 4 * element.nbytes(1) + own, KEPT * FLOAT32.nbytes(1)
    width = width_of(spec, p)
    all_rows = align_down(room // (p.columns * row_bytes + kept_bytes), UNIT)
    width = min(width, all_rows) if all_rows else width
    # Rows that are shorter than what is stored at least spill into the next ones of the same core.
    spills = element.nbytes(p.inner) < spec.transfer.store_granule_bytes
    cores, share = share_of(spec, p, width, spills=spills)
    return Plan(
        block_dim=cores,
        reads_tiling=False,
        piece_columns=width,
        pieces_per_core=share,
        tile_rows=min(p.columns, (room - kept_bytes * width) // (row_bytes * width)),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core: its pieces, one after the other."""
    element, size = p.output.element, p.output.size
    # A piece has as much as is stored at least, so that only rows shorter than that spill.
    least = ceil_div(spec.transfer.store_granule_bytes * 8, element.bits)
    spans = list(product(range(p.rows), pieces(p.inner, plan.piece_columns, least)))
    bound = bindings(*(GmView.vector(name, element, size) for name in ("x", "output")))
    kernel, blocks = ColumnSoftmax(spec, p, plan), []
    for core in range(plan.block_dim):
        first = core * plan.pieces_per_core
        for row, (left, width) in spans[first : first + plan.pieces_per_core]:
            above = element.nbytes(row * p.columns * p.inner)
            x, y = (
                GmView(name, element, p.columns, p.inner, p.inner, above)[:, left : left + width]
                for name in ("x", "output")
            )
            kernel.piece(x, y)
        blocks.append(Block(core, spec.vector_cores[core], kernel.builder.build(), bound))
    return tuple(blocks)


class ColumnSoftmax:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        self.element = p.output.element
        self.is_log = p.name == "log_softmax"
        # Softmax takes the largest off in float16, where the rows are that.
        self.dtype = FLOAT16 if self.element is FLOAT16 and not self.is_log else FLOAT32
        self.builder = builder = Builder(p.name, spec.cores[spec.vector_kinds[0]], spec.sync)
        width, rows = plan.piece_columns, plan.tile_rows
        tile_bytes = self.element.nbytes(rows * width)
        self.x = builder.queue("ub", tile_bytes, "mte2", "vector", 2)
        self.y = builder.queue("ub", tile_bytes, "vector", "mte3", 2)
        self.wide = None
        if self.element is not FLOAT32:
            self.wide = builder.claim("ub", FLOAT32.nbytes(rows * width))
        self.largest, self.total, self.spare = (
            builder.claim("ub", FLOAT32.nbytes(width)) for _ in range(KEPT)
        )
        self.writer = Writer(builder, spec)

    def piece(self, x: GmView, y: GmView) -> None:
        """*x* and *y*, both `(count, columns)`."""
        if x.rows <= self.plan.tile_rows:
            repeat(self.builder, self._whole, x, y)
            return
        tiles = [slice(a, a + count) for a, count in pieces(x.rows, self.plan.tile_rows)]
        for here in tiles:
            repeat(self.builder, self._find_largest, x[here, :], here.start == 0)
        for here in tiles:
            repeat(self.builder, self._add_up, x[here, :], here.start == 0)
        repeat(self.builder, self._close, x.columns)
        for here in tiles:
            repeat(self.builder, self._divide, x[here, :], y[here, :])

    # ---- stages ----

    def _whole(self, x: GmView, y: GmView) -> None:
        """All rows at once, loaded once."""
        slot, rows = self._load(x)
        self._largest_of(rows, x, is_first=True)
        values = self._apart(rows, x)
        self._total_of(values, x, is_first=True)
        self._close(x.columns)
        self._out(slot, values, y)

    def _find_largest(self, x: GmView, is_first: bool) -> None:
        slot, rows = self._load(x)
        self._largest_of(rows, x, is_first=is_first)
        self.x.free(slot)

    def _add_up(self, x: GmView, is_first: bool) -> None:
        slot, rows = self._load(x)
        self._total_of(self._apart(rows, x), x, is_first=is_first)
        self.x.free(slot)

    def _close(self, columns: int) -> None:
        """Make of the sums what is divided by, multiplied with or taken off."""
        total = self.total.of(FLOAT32, columns)
        if self.is_log:
            step(self.builder, Unary("ln", total, total))
        elif self.spec.arch == "2002":
            ones = self.spare.of(FLOAT32, columns)
            step(self.builder, Duplicate(ones, 1.0))
            step(self.builder, Binary("div", total, ones, total))

    def _divide(self, x: GmView, y: GmView) -> None:
        slot, rows = self._load(x)
        self._out(slot, self._apart(rows, x), y)

    # ---- steps ----

    def _load(self, x: GmView) -> tuple[Slot, Local]:
        """The rows of *x*, in the type in which the largest is taken off."""
        slot = load(self.builder, self.spec, self.x, x)
        rows = slot.of(self.element, x.rows * self._pitch(x))
        self.builder.barrier("vector")
        return slot, rows if self.element is self.dtype else self._widened(rows)

    def _widened(self, rows: Local) -> Local:
        assert self.wide is not None
        wide = self.wide.of(FLOAT32, rows.count)
        step(self.builder, Cast(wide, rows))
        return wide

    def _pitch(self, x: GmView) -> int:
        """Elements from row to row."""
        return align_up(x.columns, BLOCK_BYTES * 8 // self.element.bits)

    def _row(self, rows: Local, x: GmView, row: int) -> Local:
        return rows.at(row * self._pitch(x), x.columns)

    def _largest_of(self, rows: Local, x: GmView, *, is_first: bool) -> None:
        largest = self.largest.of(self.dtype, x.columns)
        for number in range(x.rows):
            row = self._row(rows, x, number)
            begins = is_first and number == 0
            step(
                self.builder, Copy(largest, row) if begins else Binary("max", largest, largest, row)
            )

    def _apart(self, rows: Local, x: GmView) -> Local:
        """*rows* less the largest, in float32; of softmax e to the power of that."""
        largest = self.largest.of(self.dtype, x.columns)
        for number in range(x.rows):
            row = self._row(rows, x, number)
            self.builder.emit(Binary("sub", row, row, largest))
        self.builder.barrier("vector")
        if self.dtype is not FLOAT32:
            rows = self._widened(rows)
        if not self.is_log:
            step(self.builder, Unary("exp", rows, rows))
        return rows

    def _total_of(self, values: Local, x: GmView, *, is_first: bool) -> None:
        total = self.total.of(FLOAT32, x.columns)
        for number in range(x.rows):
            row = self._row(values, x, number)
            if self.is_log:
                power = self.spare.of(FLOAT32, x.columns)
                step(self.builder, Unary("exp", power, row))
                row = power
            begins = is_first and number == 0
            step(self.builder, Copy(total, row) if begins else Binary("add", total, total, row))

    def _out(self, slot: Slot, values: Local, y: GmView) -> None:
        """Round what comes of *values* and the totals, and store it; *slot* is free then."""
        total = self.total.of(FLOAT32, y.columns)
        op: BinaryOp = "div"
        if self.is_log:
            op = "sub"
        elif self.spec.arch == "2002":
            op = "mul"
        out = self.y.alloc()
        found = values if self.wide else out.of(FLOAT32, values.count)
        for number in range(y.rows):
            row, dst = self._row(values, y, number), self._row(found, y, number)
            self.builder.emit(Binary(op, dst, row, total))
        if self.wide:
            # 310P has one conversion to fp16, and that rounds to nearest even as well.
            mode: RoundMode = "none" if self.spec.arch == "2002" else "rint"
            self.builder.barrier("vector")
            self.builder.emit(Cast(out.of(self.element, values.count), values, mode))
        self.x.free(slot)
        self.writer.store(self.y, out, y)
