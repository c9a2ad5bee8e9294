"""Where vector cores hand a dequantised weight to their cube core: pieces in a ring.

The ring lies in global memory and is read again before it leaves the L2. Each of the two vector
cores of a group writes half of a piece's columns (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmMatrix
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import (
    Chain,
    Dequant,
    Piece,
    piece_of,
)

__all__ = ["FILLED", "READ", "Part", "Ring", "RingWriter"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a piece is in the ring; it was read."""


class Part(NamedTuple):
    """Some of the weight: columns [n, n + columns) of rows [k, k + depth)."""

    n: int
    columns: int
    k: int
    depth: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots of one piece each, for one cube core."""

    slots: int
    columns: int
    """Of the weight (n), in a piece."""
    depth: int
    """Rows of the weight (k), in a piece."""
    dtype: DType
    layout: Literal["ND", "FRACTAL_NZ"]
    """`(k, n)` as ND, or `(n, k)` as FRACTAL_NZ."""

    @property
    def piece_bytes(self) -> int:
        return self.dtype.nbytes(self.columns * self.depth)

    @property
    def nbytes(self) -> int:
        return self.slots * self.piece_bytes

    def gm_matrix(self, name: str) -> GmMatrix:
        """A piece as an operand of the cube."""
        is_nd = self.layout == "ND"
        rows, columns = (self.depth, self.columns) if is_nd else (self.columns, self.depth)
        return GmMatrix(name, self.dtype, rows, columns, is_nd, self.layout)

    def bindings(self, group: int) -> dict[str, Binding]:
        """Names for the ring of cube core *group*, and for each of its slots."""
        first = group * self.nbytes
        slots = {
            f"ring{slot}": Binding("ring", first + slot * self.piece_bytes)
            for slot in range(self.slots)
        }
        return {"ring": Binding("ring", first), **slots}


class RingWriter:
    """Fills the ring, for one of the two vector cores."""

    def __init__(
        self, builder: Builder, p: Problem, chain: Chain, ring: Ring, cut: tuple[int, int]
    ) -> None:
        """*cut* is how much of n and of k is dequantised at a time; it must fit into the UB."""
        self._builder, self._p, self._ring, self._cut = builder, p, ring, cut
        self._is_down = not p.traits.trans_weight
        rows, columns = cut[::-1] if self._is_down else cut
        self._dequant = Dequant(builder, p, chain, rows, columns)

    def begin(self) -> None:
        """What comes once, before all pieces of a program."""
        self._dequant.begin()

    def load(self, part: Part, index: int, half: int) -> None:
        """Write the first or second *half* of the columns of *part*, piece number *index*."""
        builder, ring = self._builder, self._ring
        gm_matrix = ring.gm_matrix("ring")
        upper = min(part.columns, align_up(ceil_div(part.columns, 2), FRACTAL_ROWS))
        first, count = (0, upper) if half == 0 else (upper, part.columns - upper)
        cells = [
            (n, width, k, depth)
            for n, width in pieces(count, self._cut[0])
            for k, depth in pieces(part.depth, self._cut[1])
        ]
        is_again = index >= ring.slots
        slot = index % ring.slots * ring.piece_bytes
        for number, (n, width, k, depth) in enumerate(cells):
            at, size = (part.n + first + n, part.k + k), (width, depth)
            if self._is_down:
                at, size = at[::-1], size[::-1]
            piece = piece_of(self._p, *at, *size)
            shifts = self._dequant.shifts(piece)
            shifts["ring"] = slot + gm_matrix.shift(first + n) + gm_matrix.shift_k(k)
            waits, sets = is_again and number == 0, number == len(cells) - 1
            key = piece.rows, piece.columns, piece.ends, waits, sets
            builder.call(key, shifts, self._writing(piece, waits, sets))
        if not cells:
            builder.call(("nothing", is_again), {}, self._writing(None, is_again, True))

    def _writing(self, piece: Piece | None, waits: bool, sets: bool) -> Callable[[], None]:
        ring, builder = self._ring, self._builder
        is_nd = ring.layout == "ND"
        stride = ring.dtype.nbytes(ring.columns) if is_nd else ring.gm_matrix("").nz_stride_bytes

        def write() -> None:
            if waits:
                builder.cross_core_wait_flag("group", "mte3", READ)
            if piece is not None:
                self._dequant.write(piece, "ring", stride)
            if sets:
                builder.cross_core_set_flag("group", "mte3", FILLED)

        return write
