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
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract

__all__ = ["Problem", "check"]

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: the table is `(rows, row_bytes)` bytes, the result `(count, row_bytes)`."""

    rows: int
    row_bytes: int
    count: int
    """Indices."""
    index_type: DType
    indices: tuple[int, ...] | None
    """None without values."""

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def row_of(self, index: int) -> int:
        """Which row of the table becomes row number *index* of the result."""
        return index % self.rows if self.indices is None else self.indices[index]


def check(spec: DeviceSpec, weight: Any, indices: Any) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("embedding", spec)
    has_bf16 = spec.series != "Atlas inference"
    types = tuple(dtype for dtype in TYPES if has_bf16 or dtype is not BFLOAT16)
    table = contract.operand("weight", weight, types)
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
    numbers = np.zeros(0, np.int64) if where.array is None else where.array.ravel()
    for index in (numbers.min(), numbers.max()) if numbers.size else ():
        contract.require(
            0 <= index < rows,
            f"indices must name rows in [0, {rows}) of weight, not {index}; a card would read "
            f"elsewhere: correct them",
        )
    return Problem(
        inputs=(table, where),
        outputs={"output": TensorSpec((*where.shape, width), table.spec.dtype)},
        rows=rows,
        row_bytes=table.element.nbytes(width),
        count=prod(where.shape),
        index_type=where.element,
        indices=None if where.array is None else tuple(numbers.tolist()),
    )
