"""The blocks of a kernel that multiplies: each core writes its pieces of the output in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

from npusim.data.dtypes import DType
from npusim.data.tensor import Operand
from npusim.kernel.builder import Builder
from npusim.kernel.cube import CubeWriter
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile
from npusim.kernel.product import Product
from npusim.kernel.tiles import CubeTiles, Piece
from npusim.kernel.views import GmView, repeat

__all__ = ["base_tile", "columns_of", "gm_matrix_a", "gm_matrix_b", "output_of", "write_pieces"]

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


def base_tile(t: CubeTiles) -> BaseTile:
    """The tile of one core; an operand that is not double buffered in L1 stays there."""
    keep_a = t.resident_a and t.depth_a == t.step_ka
    keep_b = t.resident_b and t.depth_b == t.step_kb and not keep_a
    keep: Literal["a", "b"] | None = "a" if keep_a else "b" if keep_b else None
    return BaseTile(t.base_m, t.base_n, t.base_k, t.step_ka, t.step_kb, t.l0c_depth, keep)


def write_pieces(
    builder: Builder,
    writer: CubeWriter | Matmul,
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


def _fetch(writer: CubeWriter | Matmul, tile: GmTile) -> None:
    if isinstance(writer, Matmul):
        writer.fetch(tile)
    else:
        writer.fetch(tile.extent, tile.k)
