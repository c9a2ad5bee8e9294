"""Tiles of a weight in global memory, in each of its layouts and orientations."""

from __future__ import annotations

from typing import Literal, NamedTuple

from npusim.data.dtypes import INT4, INT8
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.kernel.cube import GmMatrix
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem

__all__ = ["MatrixTile", "gm_weight", "tile_view"]


class MatrixTile(NamedTuple):
    """A rectangle of a matrix as it is stored; of FRACTAL_NZ it begins at a fractal."""

    row: int
    column: int
    rows: int
    columns: int


def gm_weight(p: Problem) -> GmMatrix:
    """The weight in numbers: an int32 holds eight int4."""
    f = p.traits
    rows, columns = (f.n, f.k) if f.trans_weight else (f.k, f.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
    dtype = INT8 if f.weight == "int8" else INT4
    return GmMatrix("weight", dtype, rows, columns, not f.trans_weight, layout)


def tile_view(matrix: GmMatrix, tile: MatrixTile) -> GmView:
    """*tile* of *matrix*: `(rows, columns)` of ND.

    Of FRACTAL_NZ `(columns / c0, rows x c0)`, in whole fractals: a row of the view is a column
    of fractals.
    """
    row, column, rows, columns = tile
    if matrix.layout == "ND":
        return matrix.view[row : row + rows, column : column + columns]
    width, rows_padded = c0(matrix.dtype), align_up(matrix.rows, FRACTAL_ROWS)
    fractals = ceil_div(matrix.columns, width)
    view = GmView.of(matrix.name, matrix.dtype, fractals, rows_padded * width)
    # (fractal columns, rows_padded x c0): whole fractals of these rows in each column
    bottom = align_up(row + rows, FRACTAL_ROWS)
    return view[column // width : ceil_div(column + columns, width), row * width : bottom * width]
