"""The blocks of a matrix product: which part of every tensor each piece of the output needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import DType
from npusim.data.tensor import Operand
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.product import Product
from npusim.kernel.steps import GmViews, Step
from npusim.kernel.tiles import CubeTiles, Pieces

__all__ = ["base_tile", "columns_of", "gm_matrix_a", "gm_matrix_b", "output_of", "product_steps"]

__kernel_vocabulary__ = True


def gm_matrix_a(p: Product) -> GmMatrix:
    """x1 in memory: (m, k), or (k, m) if it is transposed."""
    rows, columns = (p.k, p.m) if p.transposed_a else (p.m, p.k)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.fractal_a else "ND"
    return GmMatrix("x1", p.element, rows, columns, p.transposed_a, layout)


def gm_matrix_b(p: Product) -> GmMatrix:
    """x2 in memory: (k, n), or (n, k) if it is transposed."""
    rows, columns = (p.n, p.k) if p.transposed_b else (p.k, p.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.fractal_b else "ND"
    return GmMatrix("x2", p.element, rows, columns, not p.transposed_b, layout)


def output_of(p: Product, pieces: Pieces, dtype: DType) -> GmViews:
    """The rows and columns of *pieces* in `output` `(matrices, m, n)` of *dtype*."""
    offset = ((pieces.matrix * p.m + pieces.row) * p.n + pieces.column) * dtype.bits // 8
    return GmViews("output", dtype, pieces.rows, pieces.columns, p.n, offset)


def columns_of(p: Product, pieces: Pieces, vector: Operand | None) -> GmViews | None:
    """The columns of *pieces* in *vector*, `(n,)` for all matrices or `(matrices, 1, n)`."""
    if vector is None:
        return None
    first = pieces.column + pieces.matrix * p.n * (vector.spec.size > p.n)
    offset, one = first * vector.element.bits // 8, np.ones_like(first)
    return GmViews(vector.name, vector.element, one, pieces.columns, 0, offset)


def base_tile(t: CubeTiles) -> BaseTile:
    """The tile of one core; an operand that is not double buffered in L1 stays there."""
    keep_a = t.resident_a and t.depth_a == t.step_ka
    keep_b = t.resident_b and t.depth_b == t.step_kb and not keep_a
    keep: Literal["a", "b"] | None = "a" if keep_a else "b" if keep_b else None
    return BaseTile(t.base_m, t.base_n, t.base_k, t.step_ka, t.step_kb, t.l0c_depth, keep)


def product_steps(
    cube: Matmul,
    p: Product,
    pieces: Pieces,
    stage: Callable[..., None],
    *arguments: Any,
    begins: NDArray[np.bool_] | None = None,
) -> tuple[Step, ...]:
    """`stage(x1, x2, *arguments)` for each of *pieces*, which are those of all cores.

    x1 (rows, k) and x2 (k, columns) are tiles of the operands. A step that fetches the resident
    operand precedes a core's first tile of another one, and every tile where something *begins*.
    """
    a, b = np.array(p.pairs, np.int64)[pieces.matrix].T
    x1 = gm_matrix_a(p).tiles(pieces.row, pieces.rows, a)
    x2 = gm_matrix_b(p).tiles(pieces.column, pieces.columns, b)
    order = np.arange(pieces.core.size)
    step = Step(stage, (x1, x2, *arguments), pieces.core, order)
    if cube.tile.keep is None:
        return (step,)
    resident = x1 if cube.tile.keep == "a" else x2
    here = np.stack([pieces.core, resident.offset_bytes, resident.extent])
    is_new = np.concatenate([[True], (np.diff(here) != 0).any(axis=0)])
    if begins is not None:
        is_new |= begins
    chosen = (resident.select(is_new),)
    return Step(cube.fetch, chosen, pieces.core[is_new], order[is_new]), step
