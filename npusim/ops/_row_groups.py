"""Groups of rows, each with its own scales; a group_index gives the end of each group."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT32, Array
from npusim.data.errors import Code
from npusim.data.tensor import Operand
from npusim.isa import Local, ScalarAlu, ScalarLoad, ScalarLoop
from npusim.kernel import GmView, VectorCore
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops

MAX_GROUPS = 1024
"""Most groups with their own smooth scales (aclnn_dynamic_quant_v2.cpp, swi_glu_quant)."""
Groups = tuple[int, ...]
"""The group of each row of a piece."""


def check_group_index(contract: ops.Contract, index: Operand) -> None:
    """A group_index must have one entry per group, and there must not be too many."""
    contract.require(
        len(index.shape) == 1 and 1 <= index.shape[0] <= MAX_GROUPS,
        f"group_index must have shape (groups,) with 1 to {MAX_GROUPS} of them, not {index.shape}; "
        f"pass an entry for each group",
        Code.TILING_ERROR,
    )


def groups_by_end(index: Operand, rows: int, *, holds_counts: bool = False) -> Array:
    """`(rows,)`: the group of each row, the first that ends after it; evenly split for time alone.

    *index* holds the end row of each group, or the sizes of the groups.
    """
    every, groups = np.arange(rows), index.shape[0]
    if index.array is None:
        return np.asarray(every * groups // rows)
    ends = index.array.astype(np.int64)
    ends = np.cumsum(ends) if holds_counts else ends
    return np.asarray(np.searchsorted(np.maximum.accumulate(ends), every, side="right"))


def groups_of_pieces(group_of: Array, pieces: RowPieces) -> tuple[Integers, list[Groups]]:
    """The group of the row before each piece, 0 before a core's first, and the groups of its rows.

    *group_of* is that of each row, `(rows,)`.
    """
    before = np.where(pieces.is_first, 0, group_of[pieces.first - 1])
    spans = zip(pieces.first.tolist(), pieces.count.tolist(), strict=True)
    return before, [tuple(group_of[first : first + count].tolist()) for first, count in spans]


def look_at(core: VectorCore, first: Local, count: int = 1) -> None:
    """Compare *count* entries of a group_index, from *first* on, with the number of a row."""
    # On the chip the row number is in a register; here it is known in advance.
    entry_bytes = first.dtype.nbytes(1)
    body = ScalarLoad("end", first, entry_bytes), ScalarAlu("lt", "inside", 0, "end")
    core.emit(ScalarLoop(count, body))


class GroupSearch:
    """The whole group_index in the buffer, where the scalar unit searches for groups of rows."""

    def __init__(self, core: VectorCore, count: int) -> None:
        self.core = core
        self.index = core.tile(INT32, count)

    def begin(self) -> None:
        """Load the group_index."""
        view = GmView.vector("group_index", INT32, self.index.count)
        self.core.data_copy(self.index, view.operand)
        self.core.sync("mte2", "scalar")

    def advance(self, before: int, group: int) -> None:
        """Test whether the next row is in *group*, if the last one was in *before*."""
        look_at(self.core, self.index[before : before + 1], 1 + group - before)
