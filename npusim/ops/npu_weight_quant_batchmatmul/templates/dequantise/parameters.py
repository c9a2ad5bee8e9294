"""Scales and offsets of a weight in the unified buffer, ready for the tile that they apply to.

A tile of the weight has one number for all of it, a vector along its columns (per channel or per
group of rows, where k runs down the rows), or numbers of its rows (where k runs along them).
Vectors are read again for each row; numbers of rows are spread first, a block of copies each
(Brcb).
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up
from npusim.data.layout import c0
from npusim.isa import BLOCK_BYTES, Broadcast, Cast, Local, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView, load

__all__ = ["ROW", "Axis", "Parameter"]

Axis = Literal["none", "columns", "rows"]
"""A parameter has one number, or one for each column or row of the weight as it is stored."""
ROW = 128
"""Rows in the unified buffer are filled up to repeats of this many fp16."""


class Parameter:
    """A scale or offset: loaded for a tile, cast to the type of the arithmetic, spread."""

    def __init__(
        self, builder: Builder, tensor: GmView, dtype: DType, axis: Axis, n: int, groups: int
    ) -> None:
        """Claim what tiles of up to *n* columns of the product and *groups* groups of k need.

        *tensor* is `(groups, n)` if *axis* is columns, else `(n, groups)`; the arithmetic is in
        *dtype*, fp16 or fp32.
        """
        self._builder, self._tensor, self.dtype, self.axis = builder, tensor, dtype, axis
        self.name = tensor.name
        """Also the register that holds the number, if there is only one."""
        self._is_vector = axis == "rows" and tensor.columns == 1
        count, _ = self._padded(*((groups, n) if axis == "columns" else (n, groups)))
        self._raw = builder.queue("ub", tensor.dtype.nbytes(count), "mte2", "vector")
        is_cast = tensor.dtype is not dtype
        self._cast = builder.claim("ub", FLOAT32.nbytes(count)) if is_cast else None
        self._blocks = builder.claim("ub", BLOCK_BYTES * count) if axis == "rows" else None
        self._loaded: Slot | None = None
        self._ready: Slot | None = None
        self._pitch_blocks = 0

    def view(self, n: int, columns: int, group: int, groups: int) -> GmView:
        """The numbers of *columns* of the product from *n* on, *groups* of k from *group* on."""
        of_n, of_k = slice(n, n + columns), slice(group, group + groups)
        return self._tensor[(of_k, of_n) if self.axis == "columns" else (of_n, of_k)]

    def load_register(self) -> None:
        """Load the number that all tiles share, if it is one, into its register."""
        if self.axis != "none":
            return
        slot = load(self._builder, self._raw, self._tensor)
        ready = self._converted(slot, c0(FLOAT16))
        # The scalar unit reads what the vector pipe converted.
        self._builder.sync("vector", "scalar")
        self._builder.emit(ScalarLoad(self.name, ready.of(self.dtype, 1)))
        self._raw.free(slot)

    def load(self, view: GmView) -> None:
        """Load the numbers of a tile; `release` them when it is done."""
        count, pitch = self._padded(view.rows, view.columns)
        if self._is_vector:
            # (n, 1) is stored as (1, n).
            vector = GmView.vector(view.name, view.dtype, view.rows)
            view = vector.shifted_to(view.offset_bytes)
        slot = load(self._builder, self._raw, view, pitch=pitch)
        self._ready = self._converted(slot, count)
        self._pitch_blocks = pitch
        if self._blocks is None:
            self._pitch_blocks = pitch // c0(self.dtype)
        else:
            # (count,) -> (count, c0)
            spread = self._blocks.of(self.dtype, count * c0(self.dtype))
            step(self._builder, Broadcast(spread, self._ready.of(self.dtype, count)))
            self._ready = self._blocks
        # The slot is free at once if its numbers were converted or spread into another buffer.
        self._loaded = slot if self._ready is slot else None
        if self._loaded is None:
            self._raw.free(slot)

    def release(self) -> None:
        """The tile is done."""
        if self._loaded is not None:
            self._raw.free(self._loaded)
        self._loaded = self._ready = None

    def of_columns(self, group: int, block: int, blocks: int, repeat_stride: int) -> Local:
        """*blocks* from *block* on of the vector of *group*; stride 0 repeats eight of them."""
        return self._strided(group * self._pitch_blocks + block, blocks, 1, repeat_stride)

    def of_column_block(self, group: int, block: int, blocks: int) -> Local:
        """One block of the vector of *group*, *blocks* times."""
        return self._strided(group * self._pitch_blocks + block, blocks, 0, 0)

    def of_rows(self, group: int, blocks: int, *, repeat_is_row: bool) -> Local:
        """The rows' numbers for *group*: one for each repeat of eight blocks, or for each block."""
        pitch = self._pitch_blocks
        return self._strided(group, blocks, *((0, pitch) if repeat_is_row else (pitch, 8 * pitch)))

    def of_groups(self, group: int, blocks: int) -> Local:
        """The numbers for eight groups from *group* on, those of a row each repeat."""
        return self._strided(group, blocks, 1, self._pitch_blocks)

    def _padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Elements that a view takes in the buffer, and those from row to row."""
        if self.axis == "none":
            return c0(FLOAT16), 1
        if self.axis == "columns":
            pitch = align_up(columns, ROW)
            return rows * pitch, pitch
        pitch = 1 if self._is_vector else align_up(columns, c0(FLOAT16))
        return align_up(rows, c0(FLOAT16)) * pitch, pitch

    def _strided(self, first: int, blocks: int, block_stride: int, repeat_stride: int) -> Local:
        assert self._ready is not None
        offset_bytes, count = first * BLOCK_BYTES, blocks * c0(self.dtype)
        start = self._ready.offset_bytes + offset_bytes
        return Local("ub", start, self.dtype, count, block_stride, repeat_stride)

    def _converted(self, slot: Slot, count: int) -> Slot:
        """The numbers in *slot* as the type of the arithmetic: bf16 goes by way of fp32."""
        if self._cast is None:
            return slot
        raw, fp32 = self._tensor.dtype, self._cast.of(FLOAT32, count)
        step(self._builder, Cast(fp32, slot.of(raw, count)))
        if self.dtype is FLOAT16 and raw is BFLOAT16:
            step(self._builder, Cast(self._cast.of(FLOAT16, count), fp32, "rint"))
        return self._cast
