"""What embedding accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, Row

__all__ = ["SUPPORT", "TYPES", "TYPES_310P", "Problem", "check", "require_in_range"]

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64)
TYPES_310P = tuple(dtype for dtype in TYPES if dtype is not BFLOAT16)
"""What a table may hold."""
INDICES = Operands((INT32, INT64), ranks=(0, MAX_RANK - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: the table is `(rows, row_bytes)` bytes, the result `(count, row_bytes)`.

    There may be several tables, one behind the other, from each of which the same rows are taken.
    """

    name: str = "embedding"
    """The operator."""
    rows: int
    row_bytes: int
    count: int
    """Rows of the result: indices, for each table."""
    tables: int = 1
    index_type: DType
    indices: tuple[int, ...] | None
    """None without values."""

    @property
    def index_count(self) -> int:
        """Indices."""
        return self.count // max(1, self.tables)

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows of all tables."""
        return self.tables * self.rows * self.row_bytes

    def row_of(self, number: int) -> int:
        """Which row of the tables becomes row *number* of the result."""
        table, place = divmod(number, self.index_count)
        row = place % self.rows if self.indices is None else self.indices[place]
        return table * self.rows + row


SUPPORT = (
    Row(on=A2_A3, weight=Operands(TYPES, ranks=(2, 2)), indices=INDICES),
    Row(on=ATLAS_INFERENCE, weight=Operands(TYPES_310P, ranks=(2, 2)), indices=INDICES),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    table, where = contract.operand("weight"), contract.operand("indices")
    rows, width = table.shape
    contract.require(
        rows > 0 or where.spec.size == 0,
        f"weight must have rows for the {where.spec.size} indices, not shape {table.shape}; "
        f"pass a table that has them",
    )
    require_in_range(contract, where, rows, "weight")
    return Problem(
        inputs=(table, where),
        outputs={"output": TensorSpec((*where.shape, width), table.spec.dtype)},
        rows=rows,
        row_bytes=table.element.nbytes(width),
        count=prod(where.shape),
        index_type=where.element,
        indices=None if where.array is None else tuple(where.array.ravel().tolist()),
    )


def require_in_range(contract: Contract, where: Operand, rows: int, table: str) -> None:
    """Each of *where* must name one of the *rows* of *table*."""
    numbers = np.zeros(0, np.int64) if where.array is None else where.array.ravel()
    for index in (numbers.min(), numbers.max()) if numbers.size else ():
        contract.require(
            0 <= index < rows,
            f"{where.name} must name rows in [0, {rows}) of {table}, not {index}; a card would "
            f"read elsewhere: correct them",
        )
