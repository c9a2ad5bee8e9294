"""How a vector core dequantises tiles: the loads, computations and stores, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Local
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.queues import ProgramError
from npusim.kernel.repeats import in_reach
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._dequantised_weight.layout import (
    ROW,
    Axis,
    MatrixTile,
    TileLayout,
    Values,
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
    """A weight in memory, and its quantisation parameters."""

    matrix: GmMatrix
    k: int
    n: int
    group_size: int
    """k of a group with its own parameters; 0: one group for all of k."""
    offset: GmView | None
    """`(groups, n)`, or `(n, groups)` if n is the first axis of the weight."""
    scale: GmView | None
    is_single: bool = False
    """Whether both are one value for the whole weight."""


class _Parameter:
    """A scale or offset: loaded for a tile, cast to the type of the arithmetic, and broadcast."""

    def __init__(
        self, core: VectorCore, tensor: GmView, dtype: DType, axis: Axis, n: int, groups: int
    ) -> None:
        """Claim room for tiles of up to *n* columns of the product and *groups* groups of k.

        *tensor* is `(groups, n)` if *axis* is columns, else `(n, groups)`; the arithmetic is in
        *dtype*, fp16 or fp32.
        """
        self.core, self.tensor, self.dtype, self.axis = core, tensor, dtype, axis
        self.is_vector = axis == "rows" and tensor.columns == 1
        count, _ = self._padded(*((groups, n) if axis == "columns" else (n, groups)))
        self.raw_in = core.vecin(tensor.dtype, count)
        self.cast = core.tile(FLOAT32, count) if tensor.dtype is not dtype else None
        self.blocks = core.tile(dtype, c0(dtype) * count) if axis == "rows" else None

    def view(self, n: int, columns: int, group: int, groups: int) -> GmView:
        """The values of *columns* of the product from *n* on, *groups* of k from *group* on."""
        of_n, of_k = slice(n, n + columns), slice(group, group + groups)
        return self.tensor[(of_k, of_n) if self.axis == "columns" else (of_n, of_k)]

    def load_register(self) -> None:
        """Load the value that all tiles share, if there is only one, into its register."""
        if self.axis != "none":
            return
        loaded = self.core.load_rows(self.raw_in, self.tensor)
        ready = self._converted(loaded, c0(FLOAT16))
        # The scalar unit reads what the vector pipe has converted.
        self.core.sync("vector", "scalar")
        self.core.get_value(self.tensor.name, ready[:1])
        self.raw_in.free(loaded)

    def load(self, view: GmView) -> tuple[Values, Local | None]:
        """The values of a tile, and the buffer to free when it is done."""
        count, pitch = self._padded(view.rows, view.columns)
        if self.is_vector:
            # (n, 1) is stored as (1, n).
            vector = GmView.vector(view.name, view.dtype, view.rows)
            view = vector.shifted_to(view.offset_bytes)
        loaded = self.core.load_rows(self.raw_in, view, pitch=pitch)
        ready = self._converted(loaded, count)
        if self.blocks is None:
            pitch //= c0(self.dtype)
        else:
            # (count,) -> (count, c0)
            self.core.brcb(self.blocks[: count * c0(self.dtype)], ready)
            ready = self.blocks
        values = Values(self.axis, self.dtype, view.name, ready, pitch)
        if self.cast is None and self.blocks is None:
            return values, loaded
        # Converted or broadcast into another buffer, so the slot is free at once.
        self.raw_in.free(loaded)
        return values, None

    def in_register(self) -> Values:
        """The value that all tiles share."""
        nothing = Local("ub", 0, self.dtype, 0)
        return Values(self.axis, self.dtype, self.tensor.name, nothing, 0)

    def _padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Elements of a view in the buffer, and its pitch."""
        if self.axis == "none":
            return c0(FLOAT16), 1
        if self.axis == "columns":
            pitch = align_up(columns, ROW)
            return rows * pitch, pitch
        pitch = 1 if self.is_vector else align_up(columns, c0(FLOAT16))
        return align_up(rows, c0(FLOAT16)) * pitch, pitch

    def _converted(self, loaded: Local, count: int) -> Local:
        """The values in the type of the arithmetic: bf16 goes through fp32."""
        if self.cast is None:
            return loaded[:count]
        fp32, ready = self.cast[:count], self.cast.as_dtype(self.dtype, count)
        self.core.cast(fp32, loaded[:count])
        if self.dtype is FLOAT16 and loaded.dtype is BFLOAT16:
            self.core.cast(ready, fp32, "rint")
        return ready


FEW_ROWS = 16
"""k shorter than a fractal, for which tiles of many rows have room many times over."""


class Dequantiser:
    """Writes the dequantisation of tiles, up to a maximum size, on one vector core."""

    def __init__(
        self,
        core: VectorCore,
        weight: QuantisedWeight,
        precision: Precision,
        rows: int,
        columns: int,
        depth: int = 2,
    ) -> None:
        """Claim buffers for tiles of *rows* x *columns*; raises ProgramError if they do not fit.

        *depth* is that of the results. Along k tiles begin at multiples of that size. Those of a
        FRACTAL_NZ weight are whole fractals except at the matrix's end.
        """
        self.core, self.weight, self.precision = core, weight, precision
        matrix = weight.matrix
        self.is_nz = matrix.layout != "ND"
        # If values go to a block of each of eight rows, rows are a multiple of eight.
        unit = FRACTAL_ROWS if self.is_nz else 1 if matrix.k_is_first else 8
        width = c0(matrix.dtype) if self.is_nz else ROW
        count = align_up(rows, unit) * align_up(columns, width)
        self.raw_in = core.vecin(matrix.dtype, count)
        self.out = core.vecout(precision.out, count, depth)
        is_fp16 = precision.out is FLOAT16
        self.fp32 = None if is_fp16 else core.tile(FLOAT32, count)
        self.fp16 = core.tile(FLOAT16, count) if is_fp16 or self.is_nz else None
        k, n = (rows, columns) if matrix.k_is_first else (columns, rows)
        groups = _max_groups(weight.group_size, k)
        if weight.group_size and weight.k < FEW_ROWS:
            # For such a short matrix a tile would have room for many times its groups.
            groups = min(groups, weight.k // weight.group_size)
        axis: Axis = "columns" if matrix.k_is_first else "rows"
        if weight.is_single:
            axis = "none"
        self.offset, self.scale = (
            None
            if view is None or dtype is None
            else _Parameter(core, view, dtype, axis, n, groups)
            for view, dtype in ((weight.offset, precision.offset), (weight.scale, precision.scale))
        )
        self.parameters = [each for each in (self.offset, self.scale) if each is not None]

    @staticmethod
    def fits(
        spec: DeviceSpec, weight: QuantisedWeight, precision: Precision, rows: int, columns: int
    ) -> bool:
        """Whether the unified buffer has room for tiles of *rows* x *columns*."""
        try:
            Dequantiser(VectorCore("", spec), weight, precision, rows, columns)
        except ProgramError:
            return False
        return True

    def load_registers(self) -> None:
        """Load the values that all tiles of a program share."""
        for parameter in self.parameters:
            parameter.load_register()

    def call(
        self,
        tile: MatrixTile,
        output: GmMatrix,
        row: int,
        column: int,
        offset_bytes: int = 0,
        before_store: Callable[[], None] | None = None,
    ) -> StageCall:
        """Dequantise *tile* of the weight to *output*, from (*row*, *column*) on.

        *output* begins *offset_bytes* into its tensor. *before_store* writes what must happen
        between the last step of the tile and its store; it must always write the same.
        """
        weight, matrix = self.weight, self.weight.matrix
        spans = (tile.row, tile.rows), (tile.column, tile.columns)
        (k, count), (n, columns) = spans if matrix.k_is_first else spans[::-1]
        size = weight.group_size or weight.k
        # Ends of groups, relative to the tile's first k; the last ends with the tile.
        group_ends = (*(end - k for end in range(k // size * size + size, k + count, size)), count)
        # The padding of the last fractals of the weight is dequantised with them.
        width = align_up(tile.columns, c0(matrix.dtype)) if self.is_nz else tile.columns
        dst = tile_view(output, MatrixTile(row, column, tile.rows, width))
        of_tile = [each for each in self.parameters if each.axis != "none"]
        return (
            self._dequantise,
            tile_view(matrix, tile),
            dst.shifted_to(dst.offset_bytes + offset_bytes),
            group_ends,
            before_store,
            *(each.view(n, columns, k // size, len(group_ends)) for each in of_tile),
        )

    def write_views(
        self, weight: GmView, output: GmView, group_ends: tuple[int, ...], *parameters: GmView
    ) -> None:
        """Dequantise *weight*, ND, to *output*, both `(rows, columns)`.

        *group_ends* are relative to the first k of the tile, with which the last one ends;
        *parameters* are the offset and the scale of these groups and columns, in the layout of the
        whole weight.
        """
        repeat(self.core, self._dequantise, weight, output, group_ends, None, *parameters)

    def _dequantise(
        self,
        weight: GmView,
        output: GmView,
        group_ends: tuple[int, ...],
        before_store: Callable[[], None] | None,
        *views: GmView,
    ) -> None:
        """(rows, columns) of the weight -> floats; of FRACTAL_NZ as columns of fractals."""
        core, left = self.core, list(views)
        # ND rows are padded; columns of fractals are full repeats already.
        pitch = align_up(weight.columns, ROW)
        raw = core.load_rows(self.raw_in, weight, pitch=pitch, with_gaps=self.is_nz)
        # (groups, columns), or (rows, groups) if k runs along the rows
        found: list[Values | None] = []
        held: list[tuple[_Parameter, Local]] = []
        for parameter in (self.offset, self.scale):
            if parameter is None:
                found.append(None)
            elif parameter.axis == "none":
                found.append(parameter.in_register())
            else:
                values, loaded = parameter.load(left.pop(0))
                found.append(values)
                held += [] if loaded is None else [(parameter, loaded)]
        out = self.out.alloc()
        self._compute(TileLayout.of(self.weight.matrix, weight, group_ends), raw, out, *found)
        for parameter, loaded in held:
            parameter.raw_in.free(loaded)
        if before_store is not None:
            before_store()
        pitch = align_up(output.columns, ROW)
        core.store_rows(self.out, out, output, pitch, with_gaps=self.is_nz)

    def _compute(
        self,
        layout: TileLayout,
        raw: Local,
        out: Local,
        offset: Values | None,
        scale: Values | None,
    ) -> None:
        """All steps of a tile, from *raw* to *out*; *raw* is freed as soon as it has been read."""
        core, count = self.core, layout.count
        # (count,) int8 or int4 -> fp16, exactly
        fp16 = self._upper_half(count) if self.fp16 is None else self.fp16[:count]
        core.cast(fp16, raw[:count], "none")
        self.raw_in.free(raw)
        value, is_split = fp16, False
        if offset is not None and offset.dtype is FLOAT16:
            # Fractals cannot be split in place; the result's buffer is not in use yet.
            is_split = self.is_nz
            value = out.as_dtype(FLOAT16) if is_split else fp16
            self._apply("add", layout, offset, fp16, value)
        # fp16 throughout: the product with the scale is the result, which ND computes in place.
        if self.fp32 is None:
            assert scale is not None
            self._apply("mul", layout, scale, value, out if self.is_nz else fp16)
            if not self.is_nz:
                core.copy(out[:count], fp16)
            return
        # (count,) fp16 -> fp32, with fractals split unless they already are
        fp32 = self.fp32[:count]
        with core.independent():
            for dst, src in layout.fp16_to_fp32(fp32, value, is_split=is_split):
                core.cast(dst, src)
        if offset is not None and offset.dtype is FLOAT32:
            self._apply("add", layout, offset, fp32, fp32)
        if scale is not None:
            self._apply("mul", layout, scale, fp32, fp32)
        # (count,) fp32 -> bf16
        core.cast(out[:count], fp32, "rint")

    def _upper_half(self, count: int) -> Local:
        """The upper half of the fp32 tile: casts from there overwrite no unread element."""
        assert self.fp32 is not None
        # fp32 (count,) is twice as long: fp16 (count,) fills its second half.
        return self.fp32.as_dtype(FLOAT16)[count : 2 * count]

    def _apply(
        self, op: Literal["add", "mul"], layout: TileLayout, values: Values, src: Local, dst: Local
    ) -> None:
        """`dst = src op values`; fractals are split on the way from one tile to another."""
        for out, source, other in layout.operands(values, dst, src):
            if other is None:
                part: Binary | BinaryScalar = BinaryScalar(op, out, source, values.register)
            else:
                part = Binary(op, out, source, other)
            self.core.emit(*in_reach(part))
        self.core.barrier("vector")


def _max_groups(size: int, length: int) -> int:
    """The most groups of *size* in a tile that begins at a multiple of its *length*."""
    if not size:
        return 1
    return ceil_div(size - gcd(size, length) + length, size)
