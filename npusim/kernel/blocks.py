"""The blocks of a kernel that multiplies: each core writes its pieces of the output in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmMatrix
from npusim.kernel.matmul import Product
from npusim.kernel.tiles import CubeTiles, Piece

__all__ = ["base_tile", "gm_matrix_a", "gm_matrix_b", "matrix_bytes", "shifts_of", "write_pieces"]

__kernel_vocabulary__ = True


def gm_matrix_a(p: Product) -> GmMatrix:
    """x1 as it lies in memory."""
    rows, columns = (p.k, p.m) if p.transposed_a else (p.m, p.k)
    return GmMatrix("x1", p.element, rows, columns, p.transposed_a)


def gm_matrix_b(p: Product) -> GmMatrix:
    """x2 as it lies in memory."""
    rows, columns = (p.n, p.k) if p.transposed_b else (p.k, p.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.fractal_b else "ND"
    return GmMatrix("x2", p.element, rows, columns, not p.transposed_b, layout)


def matrix_bytes(gm_matrix: GmMatrix) -> int:
    """Bytes from one matrix of a batch to the next."""
    if gm_matrix.layout == "ND":
        return gm_matrix.dtype.nbytes(gm_matrix.rows * gm_matrix.columns)
    return ceil_div(gm_matrix.dtype.nbytes(gm_matrix.columns), 32) * gm_matrix.nz_stride_bytes


def base_tile(t: CubeTiles) -> BaseTile:
    """The tile of one core; an operand that is not double buffered in L1 stays there."""
    keep_a = t.resident_a and t.depth_a == t.step_ka
    keep_b = t.resident_b and t.depth_b == t.step_kb and not keep_a
    keep: Literal["a", "b"] | None = "a" if keep_a else "b" if keep_b else None
    return BaseTile(t.base_m, t.base_n, t.base_k, t.step_ka, t.step_kb, t.l0c_depth, keep)


def shifts_of(p: Product, piece: Piece, out: DType, vectors: dict[str, int]) -> dict[str, int]:
    """Name of global memory -> bytes to where *piece* begins.

    *vectors* gives tensors along n the bytes of an element; an output of *out* lies as ND.
    """
    a, b = gm_matrix_a(p), gm_matrix_b(p)
    of_a, of_b = p.pairs[piece.matrix]
    first = (piece.matrix * p.m + piece.row) * p.n + piece.column
    return {
        "x1": of_a * matrix_bytes(a) + a.shift(piece.row),
        "x2": of_b * matrix_bytes(b) + b.shift(piece.column),
        "output": out.nbytes(first),
        **{name: nbytes * piece.column for name, nbytes in vectors.items()},
    }


def write_pieces(
    builder: Builder,
    writer: CubeWriter,
    p: Product,
    pieces: tuple[Piece, ...],
    shifts: Callable[[Piece], dict[str, int]],
    body: Callable[[int, int, int], None],
    stages: int = 0,
) -> None:
    """Write *pieces* one after the other.

    `body(rows, columns, stage)` writes one of that size; the stage is its number, up to *stages*.
    """
    kept: tuple[int, int] | None = None
    for index, piece in enumerate(pieces):
        moved = shifts(piece)
        if writer.tile.keep is not None:
            is_a = writer.tile.keep == "a"
            origin, extent = (piece.row, piece.rows) if is_a else (piece.column, piece.columns)
            here = p.pairs[piece.matrix][0 if is_a else 1], origin
            if here != kept:
                builder.call(("fetch", extent), moved, _fetching(writer, extent, p.k))
                kept = here
        key = piece.rows, piece.columns, min(index, stages)
        builder.call(key, moved, _writing(body, *key))


def _fetching(writer: CubeWriter, extent: int, k: int) -> Callable[[], None]:
    return lambda: writer.fetch(extent, k)


def _writing(
    body: Callable[[int, int, int], None], rows: int, columns: int, stage: int
) -> Callable[[], None]:
    return lambda: body(rows, columns, stage)
