"""Kinds of work of a micro-op, as reports and profilers count it.

The kinds are few and fixed; there may be any number of micro-ops. Counters read
:attr:`MicroOp.work`, so a new micro-op is counted without code elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import DType

__all__ = [
    "Arithmetic",
    "Ordering",
    "Product",
    "Rearrangement",
    "ScalarWork",
    "Transfer",
    "Work",
]


@dataclass(frozen=True, slots=True)
class Ordering:
    """It only orders other micro-ops."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """It moves bytes from one memory to another, see :func:`ends`."""

    nbytes: int | None = None
    """Bytes that arrive; None if they equal the bytes of its operands."""


@dataclass(frozen=True, slots=True)
class Product:
    """`(m, k) @ (k, n)`: m x n x k multiplications, and as many additions."""

    m: int
    n: int
    k: int
    dtype: DType
    """The element type that is multiplied."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """*per_element* operations in *dtype* on each of *elements*."""

    elements: int
    dtype: DType
    per_element: int = 1

    @property
    def operations(self) -> int:
        return self.elements * self.per_element


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """It moves, converts or fills elements within a buffer, without arithmetic."""


@dataclass(frozen=True, slots=True)
class ScalarWork:
    """It works on single elements and registers."""

    counts_bytes: bool = True
    """Whether the bytes of its operands are counted as read and written."""


Work = Ordering | Transfer | Product | Arithmetic | Rearrangement | ScalarWork
