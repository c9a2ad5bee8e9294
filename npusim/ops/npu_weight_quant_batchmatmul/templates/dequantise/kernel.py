"""A weight dequantised on a vector core: widened, plus offset, times scale, a tile at a time.

The weight is cast to fp16, exactly; each step then rounds to the type that a template computes
in (see :class:`Precision`). ND stays ND, in either orientation; FRACTAL_NZ becomes FRACTAL_NZ of
16-bit numbers: its columns of fractals, 32 int8 or 64 int4 fp32, are split to 16 by block strides
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/tool.h, *_common.h and *_custom*.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import Cast, Copy
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cube import GmMatrix
from npusim.kernel.queues import ProgramError, Slot
from npusim.kernel.repeats import in_reach
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequantise.parameters import (
    ROW,
    Axis,
    Parameter,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequantise.ub_tile import UbTile
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import (
    MatrixTile,
    gm_weight,
    tile_view,
)

__all__ = ["Dequantiser", "Precision", "QuantisedWeight"]


@dataclass(frozen=True, slots=True)
class Precision:
    """The types in which offset and scale are applied, fp16 or fp32, and that of the result."""

    offset: DType
    scale: DType | None
    """None: the scale is applied after the product."""
    out: DType


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight in memory, and the numbers that it is dequantised with."""

    matrix: GmMatrix
    k: int
    n: int
    group_size: int
    """k of a group with numbers of its own; 0: all of k has the same."""
    offset: GmView | None
    """`(groups, n)`, or `(n, groups)` if n is the first axis of the weight."""
    scale: GmView | None
    is_single: bool = False
    """Whether both are one number for the whole weight."""

    @staticmethod
    def of(p: Problem) -> QuantisedWeight:
        """That of a call of npu_weight_quant_batchmatmul."""
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

        numbers = view(p.antiquant_offset), view(p.antiquant_scale)
        return QuantisedWeight(matrix, f.k, f.n, f.group_size, *numbers, is_single)


class Dequantiser:
    """Writes the dequantisation of tiles, up to a largest one, for one vector core."""

    def __init__(
        self,
        builder: Builder,
        weight: QuantisedWeight,
        precision: Precision,
        rows: int,
        columns: int,
        depth: int = 2,
    ) -> None:
        """Claim buffers for tiles of *rows* x *columns*; raises ProgramError if they do not fit.

        There are *depth* for results. Along k tiles begin at multiples of that size. Those of a
        FRACTAL_NZ weight are whole fractals but for the matrix's end.
        """
        self._builder, self._of, self._precision = builder, weight, precision
        self._weight = matrix = weight.matrix
        self._is_nz = matrix.layout != "ND"
        # Where numbers go to a block of each of eight rows, there are whole such eights.
        unit = FRACTAL_ROWS if self._is_nz else 1 if matrix.k_is_first else 8
        width = c0(matrix.dtype) if self._is_nz else ROW
        count = align_up(rows, unit) * align_up(columns, width)
        self._raw = builder.queue("ub", matrix.dtype.nbytes(count), "mte2", "vector")
        self._out = builder.queue("ub", precision.out.nbytes(count), "vector", "mte3", depth)
        is_fp16 = precision.out is FLOAT16
        self._fp32 = None if is_fp16 else builder.claim("ub", FLOAT32.nbytes(count))
        has_fp16 = is_fp16 or self._is_nz
        self._fp16 = builder.claim("ub", FLOAT16.nbytes(count)) if has_fp16 else None
        k, n = (rows, columns) if matrix.k_is_first else (columns, rows)
        self._groups, self._n = _max_groups(weight.group_size, k), n
        self._offset = self._parameter(weight.offset, precision.offset)
        self._scale = self._parameter(weight.scale, precision.scale)
        self._parameters = [x for x in (self._offset, self._scale) if x is not None]
        self._per_tile = [x for x in self._parameters if x.axis != "none"]

    def _parameter(self, tensor: GmView | None, dtype: DType | None) -> Parameter | None:
        """A scale or offset that is applied in *dtype*, if there is one."""
        if tensor is None or dtype is None:
            return None
        axis: Axis = "columns" if self._weight.k_is_first else "rows"
        if self._of.is_single:
            axis = "none"
        return Parameter(self._builder, tensor, dtype, axis, self._n, self._groups)

    @staticmethod
    def fits(spec: DeviceSpec, p: Problem, precision: Precision, rows: int, columns: int) -> bool:
        """Whether the unified buffer holds what tiles of *rows* x *columns* need."""
        try:
            builder, weight = Builder("", spec.cores["aiv"], spec.sync), QuantisedWeight.of(p)
            Dequantiser(builder, weight, precision, rows, columns)
        except ProgramError:
            return False
        return True

    def load_registers(self) -> None:
        """Load the numbers that all tiles of a program share."""
        for parameter in self._parameters:
            parameter.load_register()

    def write(
        self,
        tile: MatrixTile,
        output: GmMatrix,
        row: int,
        column: int,
        offset_bytes: int = 0,
        before_store: Callable[[], None] | None = None,
    ) -> None:
        """Dequantise *tile* of the weight to (*row*, *column*) of *output*, and on.

        *output* begins *offset_bytes* into its tensor. *before_store* writes what is to happen
        between the last step of the tile and its store; it must always write the same.
        """
        f, weight = self._of, self._weight
        spans = (tile.row, tile.rows), (tile.column, tile.columns)
        (k, count), (n, columns) = spans if weight.k_is_first else spans[::-1]
        size = f.group_size or f.k
        # Where groups end, counted from the tile's first k; the last ends with the tile.
        group_ends = (*(end - k for end in range(k // size * size + size, k + count, size)), count)
        # What fills the last fractals of the weight is dequantised with them.
        width = align_up(tile.columns, c0(weight.dtype)) if self._is_nz else tile.columns
        dst = tile_view(output, MatrixTile(row, column, tile.rows, width))
        repeat(
            self._builder,
            self._dequantise,
            tile_view(weight, tile),
            dst.shifted_to(dst.offset_bytes + offset_bytes),
            group_ends,
            before_store,
            *(x.view(n, columns, k // size, len(group_ends)) for x in self._per_tile),
        )

    def write_views(
        self, weight: GmView, output: GmView, group_ends: tuple[int, ...], *numbers: GmView
    ) -> None:
        """Dequantise *weight*, ND, to *output*, both `(rows, columns)`.

        *group_ends* are where groups end, counted from the first k of the tile, the last with it;
        *numbers* the offset and the scale of these groups and columns, laid out as those of the
        whole weight.
        """
        repeat(self._builder, self._dequantise, weight, output, group_ends, None, *numbers)

    def _dequantise(
        self,
        weight: GmView,
        output: GmView,
        group_ends: tuple[int, ...],
        before_store: Callable[[], None] | None,
        *numbers: GmView,
    ) -> None:
        """(rows, columns) of the weight -> as many floats; of FRACTAL_NZ columns of fractals."""
        # ND rows are filled up, columns of fractals are whole repeats already.
        pitch = align_up(weight.columns, ROW)
        raw = load(self._builder, self._raw, weight, pitch=pitch, with_gaps=self._is_nz)
        # (groups, columns), or (rows, groups) where k runs along the rows
        for parameter, view in zip(self._per_tile, numbers, strict=True):
            parameter.load(view)
        out = self._out.alloc()
        self._compute(UbTile(self._weight, weight, group_ends), raw, out)
        for parameter in self._per_tile:
            parameter.release()
        if before_store is not None:
            before_store()
        pitch = align_up(output.columns, ROW)
        store(self._builder, self._out, out, output, pitch=pitch, with_gaps=self._is_nz)

    def _compute(self, tile: UbTile, raw: Slot, out: Slot) -> None:
        """All steps of a tile, *raw* to *out*; *raw* is freed as soon as it has been read."""
        builder, precision, count = self._builder, self._precision, tile.count
        # (count,) int8 or int4 -> fp16, exactly
        fp16 = self._fp16 or self._upper_half(count)
        step(builder, Cast(fp16.of(FLOAT16, count), raw.of(self._weight.dtype, count)))
        self._raw.free(raw)
        value = fp16
        if self._offset is not None and precision.offset is FLOAT16:
            # Fractals cannot be split in place; the result's buffer is not in use yet.
            value = out if self._is_nz else fp16
            self._apply("add", tile, self._offset, fp16, value)
        # fp16 all the way: the product with the scale is the result, which ND makes in place.
        if self._fp32 is None:
            assert self._scale is not None
            self._apply("mul", tile, self._scale, value, out if self._is_nz else fp16)
            if not self._is_nz:
                step(builder, Copy(out.of(FLOAT16, count), fp16.of(FLOAT16, count)))
            return
        # (count,) fp16 -> fp32, fractals split if they are not yet
        fp32 = self._fp32
        for dst, src in tile.fp16_to_fp32(fp32, value, is_split=value is out):
            builder.emit(Cast(dst, src))
        builder.barrier("vector")
        if self._offset is not None and precision.offset is FLOAT32:
            self._apply("add", tile, self._offset, fp32, fp32)
        if self._scale is not None:
            self._apply("mul", tile, self._scale, fp32, fp32)
        # (count,) fp32 -> bf16
        step(builder, Cast(out.of(precision.out, count), fp32.of(FLOAT32, count), "rint"))

    def _upper_half(self, count: int) -> Slot:
        """That of the fp32 numbers: cast from there, none overtakes what is still to be read."""
        assert self._fp32 is not None
        # fp32 (count,) is twice as long: fp16 (count,) fills its second half.
        nbytes = FLOAT16.nbytes(count)
        return Slot("ub", self._fp32.offset_bytes + nbytes, nbytes, event=-1)

    def _apply(
        self, op: Literal["add", "mul"], tile: UbTile, number: Parameter, src: Slot, dst: Slot
    ) -> None:
        for part in tile.apply(op, number, src, dst):
            self._builder.emit(*in_reach(part))
        self._builder.barrier("vector")


def _max_groups(size: int, length: int) -> int:
    """How many groups of *size* a tile touches that begins at a multiple of its *length*."""
    if not size:
        return 1
    return ceil_div(size - gcd(size, length) + length, size)
