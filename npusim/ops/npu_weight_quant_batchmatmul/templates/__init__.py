"""The kernels of npu_weight_quant_batchmatmul: `tile` and `build` of each, and shared code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.isa import Duplicate
from npusim.kernel.matrices import GmMatrix, GmTiles
from npusim.kernel.plane import REPEAT
from npusim.kernel.rows import pieces
from npusim.kernel.steps import GmViews, StageCall
from npusim.kernel.tiles import Piece, Pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem


class RingSlot(NamedTuple):
    """The slot of a ring for one step; the ring is filled and read half by half."""

    view: GmView
    waits: bool
    """Whether the step is the first in a half that was filled before: it must have been read."""
    releases: bool
    """Whether the step is the last in a half that will be refilled: its readers set a flag."""


def ring_slot(ring: GmView, slots: int, index: int, count: int) -> RingSlot:
    """The slot for step *index* of *count* in *ring*, which has *slots*, one below the other."""
    # (slots x rows, columns): slots are stacked and used in turn
    half, rows = slots // 2, ring.rows // slots
    top = index % slots * rows
    return RingSlot(
        view=ring[top : top + rows, :],
        waits=index >= slots and index % half == 0,
        releases=(index + 1) % half == 0 and index + 1 + half < count,
    )


def rectangles(shape: tuple[int, int], core: tuple[int, int], base: tuple[int, int]) -> Pieces:
    """The base tiles of each core; all sizes are `(m, n)`, cores and tiles along n come first.

    >>> rectangles((16, 200), (16, 128), (16, 64)).core.tolist()
    [0, 0, 1, 1]
    """
    tops, lefts = (range(0, shape[axis], core[axis]) for axis in (0, 1))
    return Pieces.dealt(
        [
            [
                Piece(0, top + row, left + column, rows, columns)
                for row, rows in pieces(min(core[0], shape[0] - top), base[0])
                for column, columns in pieces(min(core[1], shape[1] - left), base[1])
            ]
            for top in tops
            for left in lefts
        ]
    )


def arguments_of(
    p: Problem, x: GmMatrix, weight: GmMatrix, tiles: Pieces, *vectors: GmView | None
) -> tuple[GmTiles | GmViews | None, ...]:
    """Rows of *x*, columns of *weight* and of *vectors*, and the output of each of *tiles*."""
    output, of_n = p.output_view, (tiles.column, 1, tiles.columns)
    return (
        x.tiles(tiles.row, tiles.rows),
        weight.tiles(tiles.column, tiles.columns),
        GmViews.of(output, tiles.row, tiles.column, tiles.rows, tiles.columns),
        *(None if each is None else GmViews.of(each, 0, *of_n) for each in vectors),
    )


class Zeros:
    """Fills float32 *name* of *count* elements with zeros: an even part for each of *cores*."""

    def __init__(self, core: VectorCore, name: str, count: int, cores: int, max_bytes: int) -> None:
        """*max_bytes* of zeros are stored at a time."""
        self.core, self._sums = core, GmView.vector(name, FLOAT32, count)
        # (count,) fp32, an equal part of whole repeats for each core
        self._part = align_up(ceil_div(count, cores), REPEAT)
        self._zeros = core.tile(FLOAT32, min(self._part, max_bytes // FLOAT32.nbytes(1)))

    def write(self, index: int) -> Iterator[StageCall]:
        """Fill the part of vector core index *index*."""
        part = self._sums[:, index * self._part : (index + 1) * self._part]
        if part.columns:
            yield (self._fill,)
        # The same zeros are stored repeatedly: nothing overwrites them.
        for first, count in pieces(part.columns, self._zeros.count):
            yield self._store, part[:, first : first + count]

    def _fill(self) -> None:
        self.core.emit(Duplicate(self._zeros, 0.0))
        self.core.sync("vector", "mte3")

    def _store(self, sums: GmView) -> None:
        self.core.data_copy(sums.operand, self._zeros[: sums.columns])
