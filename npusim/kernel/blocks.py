"""The blocks of a kernel that multiplies: each core writes its pieces of the output in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal

import numpy as np

from npusim.data.dtypes import DType
from npusim.data.tensor import Operand
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmMatrix, GmTile
from npusim.kernel.matmul import Product
from npusim.kernel.steps import GmViews, Step
from npusim.kernel.tiles import CubeTiles, Piece, Pieces
from npusim.kernel.views import GmView, repeat

__all__ = [
    "base_tile",
    "columns_of",
    "columns_of_all",
    "gm_matrix_a",
    "gm_matrix_b",
    "output_of",
    "output_of_all",
    "product_steps",
    "write_pieces",
]

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


def output_of(p: Product, piece: Piece, dtype: DType) -> GmView:
    """The rows and columns of *piece* in `output` `(matrices, m, n)` of *dtype*."""
    first = piece.matrix * p.m + piece.row
    output = GmView.of("output", dtype, p.matrices * p.m, p.n)
    return output[first : first + piece.rows, piece.column : piece.column + piece.columns]


def columns_of(p: Product, piece: Piece, vector: Operand) -> GmView:
    """The columns of *piece* in *vector*, `(n,)` for all matrices or `(matrices, 1, n)`."""
    first = piece.column + (piece.matrix * p.n if vector.spec.size > p.n else 0)
    numbers = GmView.vector(vector.name, vector.element, vector.spec.size)
    return numbers[:, first : first + piece.columns]


def output_of_all(p: Product, pieces: Pieces, dtype: DType) -> GmViews:
    """The same for all of *pieces*."""
    offset = ((pieces.matrix * p.m + pieces.row) * p.n + pieces.column) * dtype.bits // 8
    return GmViews("output", dtype, pieces.rows, pieces.columns, p.n, offset)


def columns_of_all(p: Product, pieces: Pieces, vector: Operand) -> GmViews:
    """The part of *vector* that each of *pieces* needs, see :func:`columns_of`."""
    first = pieces.column + pieces.matrix * p.n * (vector.spec.size > p.n)
    offset = first * vector.element.bits // 8
    one = np.ones_like(first)
    return GmViews(vector.name, vector.element, one, pieces.columns, 0, offset)


def base_tile(t: CubeTiles) -> BaseTile:
    """The tile of one core; an operand that is not double buffered in L1 stays there."""
    keep_a = t.resident_a and t.depth_a == t.step_ka
    keep_b = t.resident_b and t.depth_b == t.step_kb and not keep_a
    keep: Literal["a", "b"] | None = "a" if keep_a else "b" if keep_b else None
    return BaseTile(t.base_m, t.base_n, t.base_k, t.step_ka, t.step_kb, t.l0c_depth, keep)


def write_pieces(
    builder: Builder,
    writer: CubeWriter,
    p: Product,
    pieces: tuple[Piece, ...],
    stage: Callable[..., None],
    arguments: Callable[[int, Piece], tuple[Hashable, ...]],
) -> None:
    """Write *pieces* one after the other: `stage(x1, x2, *arguments(index, piece))` of each.

    x1 (rows, k) and x2 (k, columns) are tiles of the operands, *index* counts the pieces. See
    :func:`~npusim.kernel.views.repeat` for what stages and arguments may be.
    """
    kept: GmTile | None = None
    a, b = gm_matrix_a(p), gm_matrix_b(p)
    for index, piece in enumerate(pieces):
        matrix_a, matrix_b = p.pairs[piece.matrix]
        x1 = a.tile(piece.row, piece.rows, matrix=matrix_a)
        x2 = b.tile(piece.column, piece.columns, matrix=matrix_b)
        resident = {"a": x1, "b": x2, None: None}[writer.tile.keep]
        if resident is not None and resident != kept:
            repeat(builder, _fetch, writer, resident)
            kept = resident
        repeat(builder, stage, x1, x2, *arguments(index, piece))


def product_steps(
    writer: CubeWriter, p: Product, pieces: Pieces, stage: Callable[..., None], *arguments: Any
) -> tuple[Step, ...]:
    """`stage(x1, x2, *arguments)` for each of *pieces*, which are those of all cores.

    Before a core's first tile of another resident operand comes a step that fetches it.
    """
    a, b = np.array(p.pairs, np.int64)[pieces.matrix].T
    x1 = gm_matrix_a(p).tiles(pieces.row, pieces.rows, a)
    x2 = gm_matrix_b(p).tiles(pieces.column, pieces.columns, b)
    order = np.arange(pieces.core.size)
    step = Step(stage, (x1, x2, *arguments), pieces.core, order)
    if writer.tile.keep is None:
        return (step,)
    resident = x1 if writer.tile.keep == "a" else x2
    here = np.stack([pieces.core, resident.offset_bytes, resident.extent])
    is_new = np.concatenate([[True], (np.diff(here) != 0).any(axis=0)])
    arguments = (resident.select(is_new),)
    fetch = Step(partial(_fetch, writer), arguments, pieces.core[is_new], order[is_new])
    return fetch, step


def _fetch(writer: CubeWriter, tile: GmTile) -> None:
    writer.fetch(tile.extent, tile.k)
