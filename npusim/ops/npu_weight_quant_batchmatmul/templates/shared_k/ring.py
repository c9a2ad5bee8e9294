"""The ring of blocks through which vector cores pass the dequantised weight to their cube core.

The ring is in global memory, and its blocks are read before they leave the L2. Each of the two
vector cores of a group writes half of a block's columns (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.kernel.cube import GmMatrix
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import repeat
from npusim.ops._dequantised_weight import (
    Dequantiser,
    Precision,
)
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile, quantised_weight

__all__ = ["FILLED", "READ", "Ring", "RingWriter", "WeightBlock"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the ring; it was read."""


class WeightBlock(NamedTuple):
    """Columns [n, n + columns) of rows [k, k + depth) of the weight `(k, n)`."""

    n: int
    columns: int
    k: int
    depth: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots of one block each, for one cube core."""

    slots: int
    columns: int
    """Of the weight (n), in a block."""
    depth: int
    """Rows of the weight (k), in a block."""
    dtype: DType
    layout: Literal["ND", "FRACTAL_NZ"]
    """`(k, n)` as ND, or `(n, k)` as FRACTAL_NZ."""

    @property
    def slot_bytes(self) -> int:
        return self.dtype.nbytes(self.columns * self.depth)

    def gm_matrix(self, name: str) -> GmMatrix:
        """A block as an operand of the cube."""
        is_nd = self.layout == "ND"
        rows, columns = (self.depth, self.columns) if is_nd else (self.columns, self.depth)
        return GmMatrix(name, self.dtype, rows, columns, is_nd, self.layout)

    def bindings(self, group: int) -> dict[str, Binding]:
        """Names for the ring of cube core *group*, and for each of its slots."""
        # Groups follow each other in the workspace, each with all its slots.
        first = group * self.slots * self.slot_bytes
        slots = {
            f"ring{slot}": Binding("ring", first + slot * self.slot_bytes)
            for slot in range(self.slots)
        }
        return {"ring": Binding("ring", first), **slots}


class RingWriter:
    """Fills the ring, for one of the two vector cores."""

    def __init__(
        self, builder: VectorCore, p: Problem, precision: Precision, ring: Ring, n: int, k: int
    ) -> None:
        """*n* and *k* are how much is dequantised at a time; it must fit into the UB."""
        self._builder, self._ring, self._n, self._k = builder, ring, n, k
        self._k_is_first = not p.traits.trans_weight
        rows, columns = (k, n) if self._k_is_first else (n, k)
        self._dequantiser = Dequantiser(builder, quantised_weight(p), precision, rows, columns)

    def load_registers(self) -> None:
        """Load the numbers that all blocks of a program share."""
        self._dequantiser.load_registers()

    def write(self, block: WeightBlock, index: int, half: int) -> None:
        """Write the first or second *half* of the columns of *block*, the core's number *index*."""
        builder, ring = self._builder, self._ring
        # The slot was filled before: the cube core must have read it.
        if index >= ring.slots:
            repeat(builder, builder.cross_core_wait_flag, "group", "mte3", READ)
        # Halves in whole fractals; the second may be smaller, or empty.
        upper = min(block.columns, align_up(ceil_div(block.columns, 2), FRACTAL_ROWS))
        first, last = (0, upper) if half == 0 else (upper, block.columns)
        offset_bytes = index % ring.slots * ring.slot_bytes
        # (depth, columns) of this half in tiles (k, n) that the unified buffer holds
        for n, columns in pieces(last - first, self._n):
            for k, depth in pieces(block.depth, self._k):
                self._write(block, first + n, columns, k, depth, offset_bytes)
        repeat(builder, builder.cross_core_set_flag, "group", "mte3", FILLED)

    def _write(
        self, block: WeightBlock, n: int, columns: int, k: int, depth: int, offset_bytes: int
    ) -> None:
        """*columns* x *depth* of *block* from *n* and *k* on."""
        matrix = self._ring.gm_matrix("ring")
        # (k, n) as stored, or (n, k) of a transposed weight: source tile, and where in the slot
        if self._k_is_first:
            tile, at = MatrixTile(block.k + k, block.n + n, depth, columns), (k, n)
        else:
            tile, at = MatrixTile(block.n + n, block.k + k, columns, depth), (n, k)
        self._dequantiser.write(tile, matrix, *at, offset_bytes)
