"""Products that are computed later, several tiles as one.

What the fixpipe writes to global memory need not be there before something reads or writes these
bytes, or the launch ends. So a product of operands that nobody writes waits for others with the
same factor, whichever core they are of: an exact one for those of the same columns and other rows,
as BLAS takes less time for one tall product than for many flat ones; one of few rows for those of
the same rows and other columns, as little of it is BLAS. Each number is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.few_rows import add_few_rows
from npusim.data.int_product import int_product
from npusim.data.product import CubeOrder
from npusim.isa import Global
from npusim.values.matrices import Factor, Panels, joined

__all__ = ["Late", "Place"]

MOST_ROWS = 512
"""Rows of an exact product: more make it hardly faster (measured)."""
MOST_COLUMNS = 1024
"""Columns of a product of few rows, likewise."""
MOST_WAITING = 1024
"""Products that wait at once."""


class Place(NamedTuple):
    """Rows of a matrix in the bytes of a tensor, all within its pitch."""

    tensor: int
    """The identity of its bytes."""
    pitch: int
    """Bytes from row to row of the matrix."""
    top: int
    bottom: int
    """One past the last row."""
    left: int
    """First byte of a row."""
    right: int

    @classmethod
    def of(cls, where: Global, data: object, base_bytes: int) -> Place | None:
        """What *where* is of *data*, whose name begins at *base_bytes*; None if a row is cut."""
        pitch = where.stride_bytes
        if not pitch:
            return None
        top, left = divmod(base_bytes + where.offset_bytes, pitch)
        right = left + where.burst_bytes
        if right > pitch:
            return None
        return cls(id(data), pitch, top, top + where.bursts, left, right)


class _Waiting(NamedTuple):
    left: Factor
    right: Factor
    put: Callable[[Array], None]
    """Takes the product."""

    @property
    def is_exact(self) -> bool:
        return self.left.matrix.dtype.kind == "i"

    @property
    def shared(self) -> Factor:
        """The factor that those have in common with which it is computed."""
        return self.right if self.is_exact else self.left

    @property
    def own(self) -> Factor:
        """The other one."""
        return self.left if self.is_exact else self.right

    @property
    def extent(self) -> int:
        """Rows or columns of its own."""
        return int(self.own.matrix.shape[0 if self.is_exact else 1])


class Late:
    """Products of one launch that wait."""

    def __init__(self, panels: Panels, order: CubeOrder = "k16") -> None:
        self._panels, self._order = panels, order
        self._waiting: list[_Waiting] = []
        self._places = np.empty((MOST_WAITING, 4), np.int64)
        """Where they go: first row, one past the last, first byte, one past the last."""
        self._tensor: tuple[int, int] | None = None
        """Tensor and pitch of all of these."""

    def add(self, place: Place, left: Factor, right: Factor, put: Callable[[Array], None]) -> None:
        """Let `put(product)` write to *place* later; what waits for the same bytes goes first."""
        self.make_way(place)
        if len(self._waiting) == MOST_WAITING or self._tensor != (place.tensor, place.pitch):
            self.flush()
        self._tensor = place.tensor, place.pitch
        self._places[len(self._waiting)] = place[2:]
        self._waiting.append(_Waiting(left, right, put))

    def make_way(self, place: Place | None) -> None:
        """Compute all if some may write to *place*, which is used now; None is anywhere."""
        if not self._waiting:
            return
        if place is None or self._tensor != (place.tensor, place.pitch):
            self.flush()
            return
        tops, bottoms, lefts, rights = self._places[: len(self._waiting)].T
        rows = (tops < place.bottom) & (bottoms > place.top)
        if (rows & (lefts < place.right) & (rights > place.left)).any():
            self.flush()

    def flush(self) -> None:
        """Compute all."""
        waiting, self._waiting = self._waiting, []
        with np.errstate(all="ignore"):
            for run in _runs(waiting):
                self._compute(run)

    def _compute(self, run: list[_Waiting]) -> None:
        """One product for all of *run*."""
        first, axis = run[0], 0 if run[0].is_exact else 1
        own = joined([each.own for each in run], axis)
        product: Array
        if first.is_exact:
            product = int_product(self._panels.single(own), self._panels.single(first.right))
        else:
            left = first.left.matrix
            product = np.zeros((left.shape[0], own.matrix.shape[1]), np.float32)
            add_few_rows(left, own.matrix, product, self._order)
        edges = np.cumsum([each.extent for each in run])[:-1]
        for each, part in zip(run, np.split(product, edges, axis), strict=True):
            each.put(part)


def _runs(waiting: list[_Waiting]) -> Iterator[list[_Waiting]]:
    """Those with the same shared factor, up to so many rows or columns; neighbours in memory come
    together."""
    # Runs of the same rows come one after the other, so that their panel is at hand.
    keyed = sorted(waiting, key=lambda each: (each.shared.key(), each.own.address))
    runs: list[list[_Waiting]] = []
    for _, alike in groupby(keyed, lambda each: each.shared.key()):
        run: list[_Waiting] = []
        length = 0
        for each in alike:
            most = MOST_ROWS if each.is_exact else MOST_COLUMNS
            is_alike = run and run[-1].own.matrix.dtype == each.own.matrix.dtype
            length += each.extent
            if not is_alike or length > most:
                run, length = [], each.extent
                runs.append(run)
            run.append(each)
    yield from sorted(runs, key=lambda run: run[0].left.address)
