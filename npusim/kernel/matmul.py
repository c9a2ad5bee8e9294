"""A product of matrices as kernels see it: its shape, and how the operands lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
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
    """What the cube multiplies: int4 where the tensors hold it packed."""
    batch: tuple[int, ...]
    batch_a: tuple[int, ...]
    batch_b: tuple[int, ...]
    transposed_a: bool
    """Whether x1 lies in memory as (k, m)."""
    transposed_b: bool
    """Whether x2 lies in memory as (n, k)."""
    fractal_b: bool
    """Whether x2 lies in memory as FRACTAL_NZ."""

    @property
    def unit_m(self) -> int:
        """Rows come in multiples of this: fractals are turned whole if x1 lies as (k, m)."""
        return c0(self.element) if self.transposed_a else FRACTAL_ROWS

    @property
    def unit_n(self) -> int:
        """The same of columns, which lie inside unless x2 lies as (n, k)."""
        return FRACTAL_ROWS if self.transposed_b else c0(self.element)

    @property
    def matrices(self) -> int:
        """How many matrices come out."""
        return prod(self.batch)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """For each matrix of the output, in order: which of x1 and which of x2 make it."""
        a = np.arange(prod(self.batch_a)).reshape(self.batch_a)
        b = np.arange(prod(self.batch_b)).reshape(self.batch_b)
        places = (np.broadcast_to(x, self.batch).reshape(-1).tolist() for x in (a, b))
        return tuple(zip(*places, strict=True))
