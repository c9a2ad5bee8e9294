"""A cube core that multiplies x by a weight which its two vector cores hand over in pieces.

A *strip* is some rows of x times the columns of one piece, over the core's share of k: a piece
after the other goes into L1, is cut for L0, and meets every row tile of the strip there, so that
each tile of L0C gets its steps of k in ascending order (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Local, Mmad
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, l1_bytes, load_data
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.templates.ring import FILLED, READ, Ring

__all__ = ["Cell", "StripTile", "StripWriter"]


@dataclass(frozen=True, slots=True)
class StripTile:
    """Sizes of what a cube core works on."""

    rows: int
    """Of x in a strip, at most."""
    m: int
    n: int
    k: int
    """L0A gets m x k, L0B k x n, L0C m x n."""
    load_n: int
    load_k: int
    """Of a piece of the weight, in a copy into L1."""
    is_resident: bool
    """Whether x stays in L1, all of the core's k; its rows are then one strip."""
    l0c_depth: int
    """At least the tiles of a strip whose k comes in several copies."""


class Cell(NamedTuple):
    """A tile of L0C: rows [row, row + m) of the strip, columns [column, column + n)."""

    row: int
    m: int
    column: int
    n: int


class _Held(NamedTuple):
    """An operand in L1: extents (rows or columns, k) of what is there, and where to read."""

    slot: Slot
    feed: GmFeed
    extents: tuple[int, int]
    origin: int
    k: int


Drain = Callable[[Cell, Local, int], None]
"""Writes what becomes of a tile: its numbers in L0C `(rows, n)`, and the rows that lie there."""


class StripWriter:
    """Writes strips for one cube core."""

    def __init__(self, builder: Builder, tile: StripTile, x: GmMatrix, ring: Ring, k: int) -> None:
        """*k* is the largest share of a core. Raises ProgramError where buffers do not fit."""
        self.builder, self.tile, self.ring = builder, tile, ring
        self._x = GmFeed(builder, x)
        self._weights = [
            GmFeed(builder, ring.gm_matrix(f"ring{slot}")) for slot in range(ring.slots)
        ]
        if tile.is_resident:
            self._room = builder.claim("l1", l1_bytes(x.dtype, tile.rows, k, False))
        else:
            nbytes = l1_bytes(x.dtype, tile.m, tile.load_k, False)
            self._left = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        nbytes = l1_bytes(x.dtype, tile.load_n, tile.load_k, ring.layout == "ND")
        self._right = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        m, n = align_up(tile.m, 16), align_up(tile.n, 16)
        self._l0 = builder.queue("l0a", x.dtype.nbytes(m * tile.k), "mte1", "cube", 2)
        self._l0b = {
            event: builder.claim("l0b", x.dtype.nbytes(n * tile.k)) for event in self._l0.events
        }
        self._l0c = builder.queue("l0c", 4 * m * n, "cube", "fixpipe", tile.l0c_depth)

    def fetch(self, rows: int, k: int) -> None:
        """Bring the x that stays, *rows* x *k*, into L1."""
        self._x.load(self._room, 0, k, rows)
        self.builder.sync("mte2", "mte1")

    def strip(
        self, held: tuple[int, int], rows: int, columns: int, start: int, k: int, slot: int,
        drain: Drain,
    ) -> None:  # fmt: skip
        """Multiply *rows* of x by *columns* of the weight over *k*, its first piece in *slot*.

        Where x stays, *held* of it, rows and k, is in L1, and the strip's k begins at *start*.
        """
        tile, totals = self.tile, dict[Cell, Slot]()
        for index, (first, depth) in enumerate(pieces(k, self.ring.depth)):
            feed = self._weights[(slot + index) % self.ring.slots]
            self.builder.cross_core_wait_flag("group", "mte2", FILLED)
            loads = [
                (inner, count, column, width)
                for inner, count in pieces(depth, tile.load_k)
                for column, width in pieces(columns, tile.load_n)
            ]
            for load, (inner, count, column, width) in enumerate(loads, 1):
                copy = self._right.alloc()
                feed.load(copy, inner, count, width, column)
                if load == len(loads):
                    self.builder.cross_core_set_flag("group", "mte2", READ)
                self._right.enque(copy)
                copy = self._right.deque()
                at = first + inner
                for row, m in pieces(rows, tile.m):
                    left = self._reach(held, row, m, start + at, count)
                    for inside, n in pieces(width, tile.n):
                        cell = Cell(row, m, column + inside, n)
                        if at == 0:
                            totals[cell] = self._l0c.alloc()
                        right = _Held(copy, feed, (width, count), inside, 0)
                        self._multiply(totals[cell], left, right, cell, count, at == 0)
                        if at + count == k:
                            self._drain(totals[cell], cell, drain)
                    if not tile.is_resident:
                        self._left.free(left.slot)
                self._right.free(copy)

    def _reach(self, held: tuple[int, int], row: int, m: int, k: int, count: int) -> _Held:
        """The x of a row tile."""
        if self.tile.is_resident:
            return _Held(self._room, self._x, held, row, k)
        slot = self._left.alloc()
        self._x.load(slot, k, count, m, row)
        self._left.enque(slot)
        return _Held(self._left.deque(), self._x, (m, count), 0, 0)

    def _multiply(
        self, total: Slot, left: _Held, right: _Held, cell: Cell, count: int, is_first: bool
    ) -> None:
        """Add the product of *count* of k to *total*, or begin it."""
        dst = _numbers(total, cell)
        for step, depth in pieces(count, self.tile.k):
            slot = self._l0.alloc()
            a = self._load_data(slot, left, step, cell.m, depth)
            b = self._load_data(self._l0b[slot.event], right, step, cell.n, depth)
            self._l0.enque(slot)
            slot = self._l0.deque()
            init: Literal["zero", "accumulate"] = "zero" if is_first and step == 0 else "accumulate"
            self.builder.emit(Mmad(dst, a, b, cell.m, cell.n, depth, init))
            self._l0.free(slot)

    def _load_data(self, dst: Slot, held: _Held, step: int, extent: int, depth: int) -> Local:
        at = held.origin, held.k + step
        return load_data(self.builder, dst, held.slot, held.feed, held.extents, at, (extent, depth))

    def _drain(self, total: Slot, cell: Cell, drain: Drain) -> None:
        self._l0c.enque(total)
        total = self._l0c.deque()
        drain(cell, _numbers(total, cell), align_up(cell.m, 16))
        self._l0c.free(total)


def _numbers(total: Slot, cell: Cell) -> Local:
    return total.of(FLOAT32, align_up(cell.m, 16) * align_up(cell.n, 16))
