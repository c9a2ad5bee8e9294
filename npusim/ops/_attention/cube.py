"""The cube cores of all attention kernels: two products, tile by tile.

.. code-block:: text

    queries (rows, columns) @ keys (keys, columns)^T    -> scores (rows, keys)
    weights (rows, keys) @ values (keys, columns)       -> products (rows, columns)

Both leave L0C for a workspace in global memory, which vector cores read. L0 holds parts of at most
128 x 128, two of each operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from npusim.data.dtypes import INT32, DType
from npusim.data.integers import ceil_div
from npusim.data.layout import c0
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local, ScalarLoadGlobal
from npusim.kernel.core import TileQueue
from npusim.kernel.cube_core import CubeCore, L0Pair, MmadInit, sums_dtype
from npusim.kernel.matrices import L1Matrix, l0c_elements
from npusim.kernel.views import GmView
from npusim.ops._attention.problem import FRACTAL_COLUMNS

L0 = 128
"""Rows, columns and k of a product in L0."""
LINE_ENTRIES = 16
"""Entries of the block table in 64 bytes, a line of the scalar unit's cache."""


class Piece(NamedTuple):
    """Keys, or values, at a constant pitch."""

    keys: GmView
    """`(keys, columns)`, or in fractals `(columns / 16, keys x 16)`."""
    entry: GmView | None = None
    """The entry of the block table for their block."""
    is_cached: bool = False
    """Whether the scalar unit has read that line of the table before."""
    rotated: GmView | None = None
    """The rotary parts of keys, with the same layout."""
    is_nz: bool = False
    """Whether they are in fractals."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.keys.columns // FRACTAL_COLUMNS if self.is_nz else self.keys.rows

    def part(self, first: int, end: int) -> Piece:
        """Tokens *first* to *end*; their block has already been looked up for others."""
        keys, rotated = (self._cut(view, first, end) for view in (self.keys, self.rotated))
        assert keys is not None
        is_cached = self.is_cached or first > 0
        return Piece(keys, self.entry, is_cached, rotated, self.is_nz)

    def _cut(self, view: GmView | None, first: int, end: int) -> GmView | None:
        if view is None:
            return None
        if self.is_nz:
            return view[:, first * FRACTAL_COLUMNS : end * FRACTAL_COLUMNS]
        return view[first:end, :]

    def columns(self, first: int, end: int, *, is_rotated: bool = False) -> GmView:
        """Columns [first, end)."""
        view = self.rotated if is_rotated else self.keys
        assert view is not None
        if self.is_nz:
            return view[first // FRACTAL_COLUMNS : end // FRACTAL_COLUMNS, :]
        return view[:, first:end]


def within(found: tuple[Piece, ...], first: int, count: int) -> Iterator[tuple[int, Piece]]:
    """The parts of the consecutive *found* in [first, first + count), with their position there."""
    end = 0
    for piece in found:
        start, end = end, end + piece.tokens
        low, high = max(start, first), min(end, first + count)
        if low < high:
            yield low - first, piece.part(low - start, high - start)


def rows_within(views: tuple[GmView, ...], first: int, count: int) -> Iterator[tuple[int, GmView]]:
    """The parts of the stacked *views* in rows [first, first + count), with their place there."""
    end = 0
    for view in views:
        start, end = end, end + view.rows
        low, high = max(start, first), min(end, first + count)
        if low < high:
            yield low - first, view[low - start : high - start, :]


class MatrixCore(CubeCore):
    """A cube core that multiplies matrices in L1 through L0 and L0C."""

    def __init__(self, name: str, spec: DeviceSpec, element: DType, *, alone: bool = False) -> None:
        super().__init__(name, spec, "aic", alone=alone)
        self.element = element

    def claim_l0(self) -> None:
        """Claim L0A, L0B and L0C; queues in L1 must be claimed before."""
        self._l0 = L0Pair(self, self.element, L0, L0, L0)
        self.totals: TileQueue = self.l0c_queue(sums_dtype(self.element), L0, L0, 2)

    def load_rows(self, dst: Local, view: GmView, rows: int, row: int = 0) -> None:
        """Load *view* into L1, at row *row* of the Nz matrix of *rows* rows in *dst*."""
        width = c0(self.element)
        # (view.rows, columns) -> Nz (columns / C0, rows, C0)
        count = ((ceil_div(view.columns, width) - 1) * rows + view.rows) * width
        self.load_nd2nz(dst.at(row * width, count), view, rows)

    def load_fractals(self, dst: Local, view: GmView, rows: int, row: int = 0) -> None:
        """Load fractals, `(columns / 16, view.rows x 16)`, without conversion."""
        width = c0(self.element)
        count = (view.rows - 1) * rows * width + view.columns
        self.data_copy(dst.at(row * width, count), view.operand, rows * BLOCK_BYTES)

    def look_up(self, register: str, piece: Piece) -> None:
        """Read the block of *piece* from the block table, if it is in a page."""
        if piece.entry is not None:
            entry = piece.entry.operand
            self.emit(ScalarLoadGlobal(register, entry, INT32, piece.is_cached))

    def multiply(
        self,
        total: Local,
        a: L1Matrix,
        b: L1Matrix,
        shape: tuple[int, int, int],
        *,
        begins: bool,
        before: Callable[[], None] | None = None,
        unit_flag: bool = False,
    ) -> None:
        """Start *total* with the product of *shape* (m, n, k), or add the product to it.

        For *before* and *unit_flag* see :class:`~npusim.kernel.cube_core.L0Pair`.
        """
        sums = total[: l0c_elements(shape[0], shape[1])]
        init: MmadInit = "zero" if begins else "accumulate"
        self._l0.multiply(sums, a, b, shape, init, before=before, unit_flag=unit_flag)

    def drain(self, total: Local, result: GmView, *, atomic: bool = False) -> None:
        """Copy *total* from L0C to *result* in global memory, or add it there, and free it."""
        self.totals.enque(total)
        total = self.totals.deque()
        self.fixpipe(result, total, atomic=atomic)
        self.totals.free(total)
