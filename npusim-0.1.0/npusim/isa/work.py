"""Kinds of work that a micro-op can do: what reports and profilers count of it.

The kinds are few and stay few; there may be any number of micro-ops. Whoever counts asks
:attr:`MicroOp.work`, so a new micro-op is counted without a line elsewhere.
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
    """It moves bytes from one memory to another one, see :func:`ends`."""

    nbytes: int | None = None
    """Bytes that arrive; None if as many are read and written as its operands have."""


@dataclass(frozen=True, slots=True)
class Product:
    """`(m, k) @ (k, n)`: m x n x k multiplications, and as many additions."""

    m: int
    n: int
    k: int
    dtype: DType
    """The type of the elements that are multiplied."""


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
    """It moves, converts or fills elements within a buffer and calculates nothing."""


@dataclass(frozen=True, slots=True)
class ScalarWork:
    """It works on single elements and registers."""

    counts_bytes: bool = True
    """Whether the bytes of its operands are counted as read and written."""


Work = Ordering | Transfer | Product | Arithmetic | Rearrangement | ScalarWork
