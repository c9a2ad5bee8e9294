"""What npu_scatter_nd_update accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, Array, DType
from npusim.data.tensor import Operand
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._support import A2_A3, alike

__all__ = ["SUPPORT", "Problem", "check"]

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT64, INT8)
"""Of the document bool is left out, which npusim has no name for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: self is `(rows, row_bytes)` bytes, updates `(count, row_bytes)`."""

    rows: int
    row_bytes: int
    count: int
    """Index tuples."""
    strides: tuple[int, ...]
    """Rows that each number of a tuple counts."""
    index_type: DType
    places: tuple[int, ...] | None
    """The row that each update replaces; None without values."""

    def place_of(self, update: int) -> int:
        """The row that *update* replaces."""
        return update * self.rows // self.count if self.places is None else self.places[update]


SUPPORT = alike(TYPES, "self", "updates", on=A2_A3, indices=(INT32, INT64))


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x, where = contract.operand("self"), contract.operand("indices")
    contract.require(
        len(where.shape) >= 2,
        f"indices must have at least two dimensions, not {len(where.shape)}; reshape it",
    )
    depth = where.shape[-1]
    contract.require(
        1 <= depth <= len(x.shape),
        f"indices must have a last dimension in [1, {len(x.shape)}], the dimensions of self, not "
        f"{depth}; index no more than there are",
    )
    y = contract.operand("updates")
    wanted = (*where.shape[:-1], *x.shape[depth:])
    contract.require(
        y.shape == wanted,
        f"updates must have shape {wanted} for indices of shape {where.shape} and self of shape "
        f"{x.shape}, not {y.shape}; pass a row for each index",
    )
    leading = x.shape[:depth]
    count = prod(where.shape[:-1])
    return Problem(
        inputs=(x, where, y),
        outputs={"self": x.spec},
        rows=prod(leading),
        row_bytes=x.element.nbytes(prod(x.shape[depth:])),
        count=count,
        strides=tuple(prod(leading[axis + 1 :]) for axis in range(depth)),
        index_type=where.element,
        places=_places(contract, where, leading, count),
    )


def _places(
    contract: Contract, where: Operand, leading: tuple[int, ...], count: int
) -> tuple[int, ...] | None:
    """The row of each tuple of *where* in the dimensions *leading*, each at most once."""
    rows = prod(leading)
    contract.require(
        count <= rows,
        f"indices must name each of the {rows} rows of self once at most, not {count} rows; "
        f"leave out what others replace",
    )
    if where.array is None:
        return None
    numbers = where.array.reshape(count, len(leading))
    for axis, size in enumerate(leading):
        column = numbers[:, axis]
        for number in (column.min(), column.max()) if count else ():
            contract.require(
                0 <= number < size,
                f"indices must name places in [0, {size}) of dimension {axis} of self, not "
                f"{number}; a card would write elsewhere: correct them",
            )
    if not count:
        return ()
    places: Array = np.array(np.ravel_multi_index(tuple(numbers.T), leading))
    _, first, counts = np.unique(places, return_index=True, return_counts=True)
    for tuple_number in first[counts > 1][:1]:
        contract.fail(
            f"indices must name each place once, not {tuple(map(int, numbers[tuple_number]))} "
            f"twice: which update is kept is open on a card; leave one of them out"
        )
    return tuple(places.tolist())
