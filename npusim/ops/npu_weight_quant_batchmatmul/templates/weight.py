"""The weight of a call as the kernels read it."""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import INT4, INT8
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand
from npusim.kernel.cube import GmMatrix
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import MatrixTile, QuantisedWeight, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem

__all__ = ["MatrixTile", "gm_weight", "quantised_weight", "tile_view"]


def gm_weight(p: Problem) -> GmMatrix:
    """The weight element by element: an int32 holds eight int4."""
    f = p.traits
    rows, columns = (f.n, f.k) if f.trans_weight else (f.k, f.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
    dtype = INT8 if f.weight == "int8" else INT4
    return GmMatrix("weight", dtype, rows, columns, not f.trans_weight, layout)


def quantised_weight(p: Problem) -> QuantisedWeight:
    """The weight, and what vector cores dequantise it with."""
    f, matrix = p.traits, gm_weight(p)
    groups = ceil_div(f.k, f.group_size) if f.group_size else 1
    shape = (groups, f.n) if matrix.k_is_first else (f.n, groups)
    is_single = p.antiquant_scale.spec.size == 1

    def view(operand: Operand | None) -> GmView | None:
        if operand is None:
            return None
        if is_single:
            return GmView.vector(operand.name, operand.element, 1)
        return GmView.of(operand.name, operand.element, *shape)

    parameters = view(p.antiquant_offset), view(p.antiquant_scale)
    return QuantisedWeight(matrix, f.k, f.n, f.group_size, *parameters, is_single)
