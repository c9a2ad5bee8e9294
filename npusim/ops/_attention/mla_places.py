"""The layout of FIA-MLA's data in global memory: latent keys and their rotary parts.

.. code-block:: text

    half 0     256 columns of latent keys, 32 rotary ones         for queries likewise
    half 1     32 rotary columns, 256 of latent keys

A cache in fractals, `(blocks, 1, columns / 16, block_size, 16)`, has the tokens of 16 columns
adjacent, so that they are copied to L1 unchanged. Views of it have a row for each 16 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32, DType
from npusim.kernel.steps import Column, column_of
from npusim.kernel.views import GmView
from npusim.ops._attention.fia_tiling import RowTile
from npusim.ops._attention.places import Memory, Part, Target


class Columns(NamedTuple):
    """Columns of a token in one copy."""

    is_rotated: bool
    first: int
    size: int


class Sum(NamedTuple):
    """Place where products accumulate, as numbers, so that a call does not shift it like a view.

    Pipe mte2 loads there what mte3 stores, and if all calls use the same bytes, the order is
    checked only once.
    """

    turn: int
    row: int
    rows: int

    def part(self, row: int, rows: int) -> Sum:
        """Some of the rows."""
        return Sum(self.turn, self.row + row, rows)


HALVES = (
    (Columns(False, 0, 256), Columns(True, 0, 32)),
    (Columns(True, 32, 32), Columns(False, 256, 256)),
)
"""The columns of latent keys, and of queries, in the order in which the cube sums them."""
HALF_COLUMNS = 288


class LatentMemory(Memory):
    """The tensors and workspaces of a schedule of latent keys.

    Products of all tiles of a row of tiles accumulate in one place.
    """

    @cached_property
    def _types(self) -> dict[str, DType]:
        return {"scores": FLOAT32, "weights": self.factor, "product": FLOAT32}

    def queries_of(self, tile: RowTile) -> tuple[tuple[GmView, ...], ...]:
        """The rows of *tile* and their rotary parts, as few matrices as possible each."""
        return tuple(map(_merged, super().queries_of(tile)))

    def products(self, parts: Sequence[Part]) -> Column:
        """Where the products of *parts* accumulate: two rows of tiles have separate places."""
        return column_of([self.sum_of(x) for x in parts], self.product)

    def sum_of(self, part: Part) -> Sum:
        """The same as numbers."""
        return Sum(part.tile.turn % 2, part.row, part.rows)

    def product(self, turn: int, row: int, rows: int) -> GmView:
        """*rows* of a product, from *row* on."""
        return self.slot("product", turn, rows, self.width, row)

    def target(self, tile: RowTile, row: int, rows: int) -> Target:
        """The destination of rows [row, row + rows) of *tile*."""
        found = super().target(tile, row, rows)
        return found._replace(outputs=_merged(found.outputs))


def _merged(views: Iterable[GmView]) -> tuple[GmView, ...]:
    """*views* of equally many columns, merged if their rows are evenly spaced."""
    found: list[GmView] = []
    for view in views:
        last = found[-1] if found else None
        if last is not None:
            apart = view.offset_bytes - last.offset_bytes
            pitch = apart // last.rows // view.dtype.nbytes(1)
            is_even = apart == last.rows * view.dtype.nbytes(pitch) and pitch >= view.columns
            fits = all(x.rows == 1 or x.pitch == pitch for x in (last, view))
            if last.columns == view.columns and is_even and fits:
                rows = last.rows + view.rows
                found[-1] = GmView(
                    view.name, view.dtype, rows, view.columns, pitch, last.offset_bytes
                )
                continue
        found.append(view)
    return tuple(found)
