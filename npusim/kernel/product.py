"""A product of matrices as kernels see it: its shape, and the layouts of its operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from npusim.data.dtypes import DType
from npusim.data.layout import FRACTAL_ROWS, c0

__all__ = ["Product"]

__kernel_vocabulary__ = True


@dataclass(frozen=True, slots=True)
class Product:
    """`(*batch, m, n) = (*batch_a, m, k) @ (*batch_b, k, n)`, the batches broadcast."""

    m: int
    k: int
    n: int
    element: DType
    """Element type that the cube multiplies: int4 where the tensors hold it packed."""
    batch: tuple[int, ...]
    batch_a: tuple[int, ...]
    batch_b: tuple[int, ...]
    transposed_a: bool
    """Whether x1 is stored as (k, m)."""
    transposed_b: bool
    """Whether x2 is stored as (n, k)."""
    fractal_b: bool
    """Whether x2 is stored as FRACTAL_NZ."""
    fractal_a: bool = False
    """Whether x1 is stored as FRACTAL_NZ."""

    @property
    def unit_m(self) -> int:
        """Rows of a tile are a multiple of this: a whole fractal is transposed if x1 is (k, m)."""
        return c0(self.element) if self.transposed_a else FRACTAL_ROWS

    @property
    def unit_n(self) -> int:
        """Columns of a tile are a multiple of this: they are contiguous unless x2 is (n, k)."""
        return FRACTAL_ROWS if self.transposed_b else c0(self.element)

    @property
    def matrices(self) -> int:
        """How many matrices the output has."""
        return prod(self.batch)

    @property
    def as_rows(self) -> Product:
        """The product with x1's batches as rows, if x2 is one matrix and x1's layout allows it."""
        is_one = prod(self.batch_b) == 1
        if not is_one or (self.transposed_a and prod(self.batch_a) > 1):
            return self
        return replace(self, m=self.matrices * self.m, batch=(), batch_a=(), batch_b=())

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The matrices of x1 and of x2 that give each matrix of the output, in order."""
        a = np.arange(prod(self.batch_a)).reshape(self.batch_a)
        b = np.arange(prod(self.batch_b)).reshape(self.batch_b)
        indices = (np.broadcast_to(x, self.batch).reshape(-1).tolist() for x in (a, b))
        return tuple(zip(*indices, strict=True))
