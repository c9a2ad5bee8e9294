"""What embedding accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

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
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract

__all__ = ["Problem", "check", "known_types", "require_in_range"]

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64)


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


def check(spec: DeviceSpec, weight: Any, indices: Any) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("embedding", spec)
    table = contract.operand("weight", weight, known_types(spec))
    contract.require(
        len(table.shape) == 2,
        f"weight must have two dimensions, (rows, width), not shape {table.shape}; reshape it",
    )
    where = contract.operand("indices", indices, (INT32, INT64))
    contract.require(
        len(where.shape) < MAX_RANK,
        f"indices must have at most {MAX_RANK - 1} dimensions, not {len(where.shape)}; reshape it",
    )
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


def known_types(spec: DeviceSpec) -> tuple[DType, ...]:
    """The types that a table may have."""
    has_bf16 = spec.series != "Atlas inference"
    return tuple(dtype for dtype in TYPES if has_bf16 or dtype is not BFLOAT16)


def require_in_range(contract: Contract, where: Operand, rows: int, table: str) -> None:
    """Each of *where* must name one of the *rows* of *table*."""
    numbers = np.zeros(0, np.int64) if where.array is None else where.array.ravel()
    for index in (numbers.min(), numbers.max()) if numbers.size else ():
        contract.require(
            0 <= index < rows,
            f"{where.name} must name rows in [0, {rows}) of {table}, not {index}; a card would "
            f"read elsewhere: correct them",
        )
