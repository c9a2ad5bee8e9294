"""Reductions along an axis that others follow: rows are added to rows.

x is `(outer, count, inner)` and the result `(outer, inner)`. Columns of *inner* are shared out, in
pieces of whole repeats; a core takes all rows of its piece, as many at a time as the unified buffer
has room for, and adds one after the other to what it has, or takes the larger. The vendor's kernels
are built by a closed generator; all of this, and the order of additions with it, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from npusim.data.dtypes import FLOAT16, FLOAT32, RoundMode
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Cast, Copy
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.reductions.contract import Problem

__all__ = ["Plan", "build", "tile"]

UNIT = 128
"""Elements that a piece is a multiple of: a repeat of 16 bits, two of 32."""
MOST = 2048
"""Elements of a piece; 8 KiB of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Pieces of columns, dealt out in order, and rows at a time."""

    piece_columns: int
    pieces_per_core: int
    tile_rows: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Pieces so narrow that all cores have one, if there are as many columns."""
    cores, element = len(spec.vector_cores), p.output.element
    each = ceil_div(p.rows * p.inner, cores)
    width = min(align_up(each, UNIT), align_up(p.inner, UNIT), MOST)
    if element.nbytes(p.inner) % spec.transfer.store_granule_bytes:
        # What is stored beyond the end of a row belongs to the next one, of the same core.
        cores = 1
    count = p.rows * ceil_div(p.inner, width)
    share = ceil_div(count, cores)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - BLOCK_BYTES
    # Two tiles of rows come in, one is calculated with; results are one more row each of them.
    row_bytes = 2 * element.nbytes(width) + FLOAT32.nbytes(width)
    return Plan(
        block_dim=ceil_div(count, share),
        reads_tiling=False,
        piece_columns=width,
        pieces_per_core=share,
        tile_rows=min(p.columns, align_down(room, BLOCK_BYTES) // row_bytes - 1),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core: its pieces, one after the other."""
    spans = list(product(range(p.rows), pieces(p.inner, plan.piece_columns)))
    element = p.output.element
    y = GmView.of("output", element, p.rows, p.inner)
    bound = bindings(GmView.vector("x", element, p.inputs[0].spec.size), y)
    blocks = []
    for core in range(plan.block_dim):
        kernel = ColumnKernel(spec, p, plan)
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
        self.element = p.output.element
        # The largest of numbers is one of them, so that float16 stays what it is.
        is_exact = p.name == "amax" and self.element is FLOAT16
        self.dtype = FLOAT16 if is_exact else FLOAT32
        self.builder = builder = Builder(p.name, spec.cores[spec.vector_kinds[0]], spec.sync)
        width, rows = plan.piece_columns, plan.tile_rows
        self.x = builder.queue("ub", self.element.nbytes(rows * width), "mte2", "vector", 2)
        self.y = builder.queue("ub", self.element.nbytes(width), "vector", "mte3", 2)
        self.wide = None
        if self.element is not self.dtype:
            self.wide = builder.claim("ub", FLOAT32.nbytes(rows * width))
        self.total = builder.claim("ub", FLOAT32.nbytes(width))
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
        total = self.total.of(self.dtype, x.columns)
        for row in range(x.rows):
            added = rows.at(row * pitch, x.columns)
            if is_first and row == 0:
                step(self.builder, Copy(total, added))
            else:
                op = Binary("max" if self.p.name == "amax" else "add", total, total, added)
                step(self.builder, op)
        self.x.free(slot)

    def _finish(self, y: GmView) -> None:
        """Round the total, and store it."""
        # 310P has one conversion to fp16, and that rounds to nearest even as well.
        mode: RoundMode = "none" if self.spec.arch == "2002" else "rint"
        out = self.y.alloc()
        dst, total = out.of(self.element, y.columns), self.total.of(self.dtype, y.columns)
        is_same = self.element is self.dtype
        self.builder.emit(Copy(dst, total) if is_same else Cast(dst, total, mode))
        self.writer.store(self.y, out, y)
