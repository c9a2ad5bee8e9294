"""What the cube cores of all kernels of attention have in common: two products, tile by tile.

.. code-block:: text

    queries (rows, columns) @ keys (keys, columns)^T    -> scores (rows, keys)
    weights (rows, keys) @ values (keys, columns)       -> products (rows, columns)

Both leave L0C for a workspace in global memory, which vector cores read. In L0 are parts of 128 x
128 at most, two of each operand.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.dtypes import INT32, DType
from npusim.data.integers import ceil_div
from npusim.data.layout import c0
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, ScalarLoadGlobal
from npusim.kernel.core import TileQueue
from npusim.kernel.cube_core import CubeCore, L0Pair, sums_dtype
from npusim.kernel.matrices import L1Matrix, l0c_elements
from npusim.kernel.views import GmView

L0 = 128
"""Rows, columns and k of a product in L0."""
LINE_ENTRIES = 16
"""Entries of the block table in 64 bytes, a line of the scalar unit's cache."""


class Piece(NamedTuple):
    """Keys, or values, that lie a fixed distance apart."""

    keys: GmView
    """`(keys, columns)`."""
    entry: GmView | None = None
    """The entry of the block table that names their block."""
    is_cached: bool = False
    """Whether the scalar unit has read that line of the table before."""


class MatrixCore(CubeCore):
    """A cube core that multiplies matrices in L1 by way of L0 and L0C."""

    def __init__(self, name: str, spec: DeviceSpec, element: DType, *, alone: bool = False) -> None:
        super().__init__(name, spec, "aic", alone=alone)
        self.element = element

    def claim_l0(self) -> None:
        """Claim L0A, L0B and L0C; queues of L1 are claimed before."""
        self._l0 = L0Pair(self, self.element, L0, L0, L0)
        self.totals: TileQueue = self.l0c_queue(sums_dtype(self.element), L0, L0, 2)

    def load_rows(self, dst: Local, view: GmView, rows: int, row: int = 0) -> None:
        """*view* into L1, as rows from *row* on of the Nz matrix of so many *rows* in *dst*."""
        width = c0(self.element)
        # (view.rows, columns) -> Nz (columns / C0, rows, C0)
        count = ((ceil_div(view.columns, width) - 1) * rows + view.rows) * width
        self.load_nd2nz(dst.at(row * width, count), view, rows)

    def look_up(self, register: str, piece: Piece) -> None:
        """Read in the block table where *piece* lies, if it is in a page."""
        if piece.entry is not None:
            entry = piece.entry.operand
            self.emit(ScalarLoadGlobal(register, entry, INT32, piece.is_cached))

    def multiply(
        self, total: Local, a: L1Matrix, b: L1Matrix, shape: tuple[int, int, int], *, begins: bool
    ) -> None:
        """*total* begins with the product of *shape* (m, n, k), or gets it added."""
        sums = total[: l0c_elements(shape[0], shape[1])]
        self._l0.multiply(sums, a, b, shape, "zero" if begins else "accumulate")

    def drain(self, total: Local, result: GmView) -> None:
        """Move *total* from L0C to *result* in global memory, and free it."""
        self.totals.enque(total)
        total = self.totals.deque()
        self.fixpipe(result, total)
        self.totals.free(total)
