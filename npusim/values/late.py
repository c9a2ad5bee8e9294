"""Deferred products, so that several tiles are computed as one.

Results that the fixpipe writes to global memory are needed only when something reads or writes
these bytes, or when the launch ends. So a product of operands that are never written waits for
others with the same factor, on any core. An exact product is joined with those of the same columns
and other rows, since BLAS is faster for one tall product than for many flat ones; a product of few
rows with those of the same rows and other columns, since little of it is BLAS. The results are the
same bit for bit.
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
"""Most rows of an exact product: more make it hardly faster (measured)."""
MOST_COLUMNS = 1024
"""Most columns of a product of few rows, likewise."""
MOST_WAITING = 1024
"""Most products that wait at once."""


class Place(NamedTuple):
    """Rows of a matrix in the bytes of a tensor, each within one pitch."""

    tensor: int
    """Identity of its bytes."""
    pitch: int
    """Bytes from row to row."""
    top: int
    bottom: int
    """One past the last row."""
    left: int
    """First byte of a row."""
    right: int

    @classmethod
    def of(cls, where: Global, data: object, base_bytes: int) -> Place | None:
        """The rows of *data* at *where*, with the name at *base_bytes*; None if a row is cut."""
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
    """Called with the product."""

    @property
    def is_exact(self) -> bool:
        return self.left.matrix.dtype.kind == "i"

    @property
    def shared(self) -> Factor:
        """The factor that it shares with the products it is joined with."""
        return self.right if self.is_exact else self.left

    @property
    def own(self) -> Factor:
        """The other factor."""
        return self.left if self.is_exact else self.right

    @property
    def extent(self) -> int:
        """Rows or columns of its own factor."""
        return int(self.own.matrix.shape[0 if self.is_exact else 1])


class Late:
    """Products of one launch that wait."""

    def __init__(self, panels: Panels, order: CubeOrder = "k16") -> None:
        self._panels, self._order = panels, order
        self._waiting: list[_Waiting] = []
        self._places = np.empty((MOST_WAITING, 4), np.int64)
        """Destinations: first row, end row, first byte, end byte."""
        self._tensor: tuple[int, int] | None = None
        """Tensor and pitch of all destinations."""

    def add(self, place: Place, left: Factor, right: Factor, put: Callable[[Array], None]) -> None:
        """Defer `put(product)` to *place*; first compute those that wait for the same bytes."""
        self.make_way(place)
        if len(self._waiting) == MOST_WAITING or self._tensor != (place.tensor, place.pitch):
            self.flush()
        self._tensor = place.tensor, place.pitch
        self._places[len(self._waiting)] = place[2:]
        self._waiting.append(_Waiting(left, right, put))

    def make_way(self, place: Place | None) -> None:
        """Compute all if one of them may write to *place*, about to be used; None is anywhere."""
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
        """Compute all that wait."""
        waiting, self._waiting = self._waiting, []
        with np.errstate(all="ignore"):
            for run in _runs(waiting):
                self._compute(run)

    def _compute(self, run: list[_Waiting]) -> None:
        """Compute *run* as one product."""
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
    """Groups with the same shared factor, up to a number of rows or columns; neighbours in memory
    come together."""
    # Groups of the same rows are adjacent, so that their panel is still cached.
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
