"""A weight made floats on a vector core: widened, plus offset, times scale, a piece at a time.

The weight goes by way of fp16, exactly; each step then rounds to the type that a template computes
in (see :class:`Chain`). ND stays ND, in either orientation; FRACTAL_NZ becomes FRACTAL_NZ of 16-bit
numbers: its columns of fractals, 32 int8 or 64 int4 wide, are split to 16 by block strides
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/tool.h and *_custom*.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Cast, Global
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.parameters import ROW, Parameter, Room, Way
from npusim.ops.npu_weight_quant_batchmatmul.templates.pieces import (
    Grid,
    Piece,
    gm_weight,
    piece_of,
)

__all__ = ["Chain", "Dequant", "Piece", "dequant_bytes", "gm_weight", "piece_of"]


@dataclass(frozen=True, slots=True)
class Chain:
    """The types in which offset and scale are applied, and that of the result.

    fp16 or fp32; None leaves the scale to what comes after the product.
    """

    offset: DType
    scale: DType | None
    out: DType


class Dequant:
    """Writes the dequantisation of pieces, up to a largest one, for one vector core."""

    def __init__(self, builder: Builder, p: Problem, chain: Chain, rows: int, columns: int) -> None:
        """Claim buffers for pieces of *rows* x *columns*; raises ProgramError if they do not fit.

        Along k they begin at multiples of that size. Those of a FRACTAL_NZ weight are whole
        fractals but for the matrix's end.
        """
        self._builder, self._p, self._chain, self._gm_matrix = builder, p, chain, gm_weight(p)
        self._raw_dtype = self._gm_matrix.dtype
        self._is_nz = p.traits.is_nz
        sizes = _Sizes(p, chain, rows, columns)
        self._raw = builder.queue("ub", self._raw_dtype.nbytes(sizes.count), "mte2", "vector")
        self._out = builder.queue("ub", chain.out.nbytes(sizes.count), "vector", "mte3", 2)
        wide, half = sizes.wide_bytes, sizes.half_bytes
        self._wide = builder.claim("ub", wide) if wide else None
        self._half = builder.claim("ub", half) if half else None
        self._parameters = {
            name: Parameter(builder, name, room, rows, columns, sizes.groups)
            for name, room in sizes.rooms.items()
        }

    def begin(self) -> None:
        """What comes once, before all pieces of a program."""
        for parameter in self._parameters.values():
            parameter.take_single()

    def shifts(self, piece: Piece) -> dict[str, int]:
        """Name of global memory -> bytes to what *piece* reads."""
        gm_matrix, f = self._gm_matrix, self._p.traits
        k, n = (piece.row, piece.column) if gm_matrix.k_is_first else (piece.column, piece.row)
        first = k // f.group_size if f.group_size else 0
        shifts = {"weight": gm_matrix.shift_k(k) + gm_matrix.shift(n)}
        for name, parameter in self._parameters.items():
            room = parameter.room
            at = first * room.line + n if room.way == "along" else n * room.line + first
            shifts[name] = 0 if room.way == "single" else room.raw.nbytes(at)
        return shifts

    def write(self, piece: Piece, name: str, stride_bytes: int) -> None:
        """Load *piece*, dequantise it and store it from the start of tensor *name*.

        *stride_bytes* lie between rows, or between columns of fractals. For `Builder.call`: global
        memory is named relative to `shifts`, and *piece* counts by its sizes and ends alone.
        """
        slot = self._load(piece)
        for parameter in self._parameters.values():
            parameter.take(piece.rows, piece.columns, len(piece.ends))
        out = self._out.alloc()
        self._compute(Grid(self._p, piece), slot, out)
        for parameter in self._parameters.values():
            parameter.drop()
        self._out.enque(out)
        out = self._out.deque()
        self._store(piece, out, name, stride_bytes)
        self._out.free(out)

    def _load(self, piece: Piece) -> Slot:
        dtype, gm_matrix = self._raw_dtype, self._gm_matrix
        slot = self._raw.alloc()
        if self._is_nz:
            rows = align_up(piece.rows, FRACTAL_ROWS)
            across = ceil_div(piece.columns, c0(dtype))
            place = Global("weight", 0, rows * BLOCK_BYTES, across, gm_matrix.nz_stride_bytes)
            dst, pitch = slot.of(dtype, rows * across * c0(dtype)), rows * BLOCK_BYTES
        else:
            line = dtype.nbytes(gm_matrix.columns)
            place = Global("weight", 0, dtype.nbytes(piece.columns), piece.rows, line)
            dst = slot.of(dtype, piece.columns)
            pitch = dtype.nbytes(align_up(piece.columns, ROW))
        self._builder.load(dst, place, pitch)
        self._raw.enque(slot)
        return self._raw.deque()

    def _store(self, piece: Piece, out: Slot, name: str, stride_bytes: int) -> None:
        dtype = self._chain.out
        if self._is_nz:
            rows = align_up(piece.rows, FRACTAL_ROWS)
            wide = c0(self._raw_dtype)
            across = align_up(piece.columns, wide) // c0(dtype)
            place = Global(name, 0, rows * BLOCK_BYTES, across, stride_bytes)
            src, pitch = out.of(dtype, rows * across * c0(dtype)), rows * BLOCK_BYTES
        else:
            place = Global(name, 0, dtype.nbytes(piece.columns), piece.rows, stride_bytes)
            src = out.of(dtype, piece.columns)
            pitch = dtype.nbytes(align_up(piece.columns, ROW))
        self._builder.store(place, src, pitch)

    def _compute(self, grid: Grid, raw: Slot, out: Slot) -> None:
        builder, chain, count = self._builder, self._chain, grid.count
        offset = self._parameters.get("antiquant_offset")
        scale = self._parameters.get("antiquant_scale")
        half = self._half or self._upper(count) or out
        step(builder, Cast(half.of(FLOAT16, count), raw.of(self._raw_dtype, count)))
        self._raw.free(raw)
        here = half
        if offset is not None and offset.room.kind is FLOAT16:
            # Fractals cannot be split in place; the result's buffer is not in use yet.
            here = self._apply("add", grid, offset, half, out if self._is_nz else half)
        if self._wide is None:
            assert scale is not None
            self._apply("mul", grid, scale, here, out)
            return
        wide = self._wide
        for dst, src in grid.halves(wide, here, is_split=here is out):
            builder.emit(Cast(dst, src))
        builder.barrier("vector")
        if offset is not None and offset.room.kind is FLOAT32:
            self._apply("add", grid, offset, wide, wide)
        if scale is not None:
            self._apply("mul", grid, scale, wide, wide)
        step(builder, Cast(out.of(chain.out, count), wide.of(FLOAT32, count), "rint"))

    def _upper(self, count: int) -> Slot | None:
        """The upper half of the fp32 numbers: cast from there, none overtakes what is unread."""
        if self._wide is None:
            return None
        start = self._wide.offset_bytes + FLOAT16.nbytes(count)
        return Slot("ub", start, FLOAT16.nbytes(count), -1)

    def _apply(
        self, op: Literal["add", "mul"], grid: Grid, number: Parameter, src: Slot, dst: Slot
    ) -> Slot:
        """`dst = src op number`; fractals are split on the way from one slot to another."""
        for cell in grid.cells(number, src, dst):
            if cell.number is None:
                self._builder.emit(BinaryScalar(op, cell.place, cell.source, number.register))
            else:
                self._builder.emit(Binary(op, cell.place, cell.source, cell.number))
        self._builder.barrier("vector")
        return dst


class _Sizes:
    """Bytes of the unified buffer for pieces of a size."""

    def __init__(self, p: Problem, chain: Chain, rows: int, columns: int) -> None:
        f, gm_matrix = p.traits, gm_weight(p)
        self.rows, self.columns = rows, columns
        wide = c0(gm_matrix.dtype) if f.is_nz else ROW
        unit = FRACTAL_ROWS if f.is_nz else 1 if gm_matrix.k_is_first else 8
        self.count = align_up(rows, unit) * align_up(columns, wide)
        self.raw, self.out = gm_matrix.dtype, chain.out
        self.groups = _most_groups(f.group_size, rows if gm_matrix.k_is_first else columns)
        is_half = chain.out is FLOAT16
        self.wide_bytes = 0 if is_half else FLOAT32.nbytes(self.count)
        self.half_bytes = FLOAT16.nbytes(self.count) if f.is_nz else 0
        way: Way = "along" if gm_matrix.k_is_first else "down"
        if p.antiquant_scale.spec.size == 1:
            way = "single"
        along = f.n if gm_matrix.k_is_first else ceil_div(f.k, f.group_size) if f.group_size else 1
        self.rooms: dict[str, Room] = {}
        if p.antiquant_offset is not None:
            raw = p.antiquant_offset.element
            self.rooms["antiquant_offset"] = Room(way, raw, chain.offset, along)
        if chain.scale is not None:
            raw = p.antiquant_scale.element
            self.rooms["antiquant_scale"] = Room(way, raw, chain.scale, along)

    @property
    def nbytes(self) -> int:
        """All that :class:`Dequant` claims."""
        held = self.raw.nbytes(self.count) + 2 * self.out.nbytes(self.count)
        rooms = self.rooms.values()
        own = sum(room.nbytes(self.rows, self.columns, self.groups) for room in rooms)
        return held + self.wide_bytes + self.half_bytes + own


def _most_groups(size: int, length: int) -> int:
    """How many groups of *size* a piece touches that begins at a multiple of its *length*."""
    if not size:
        return 1
    return ceil_div((size - gcd(size, length) + length), size)


def dequant_bytes(p: Problem, chain: Chain, rows: int, columns: int) -> int:
    """Bytes of the unified buffer that pieces of *rows* x *columns* take."""
    return _Sizes(p, chain, rows, columns).nbytes
