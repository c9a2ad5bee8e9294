"""The vector steps of pse and dropout, which forward and backward of training share.

.. code-block:: text

    distances[i, j] = j - i                                   float16, stored once by each core
    bias            = fp32(pse), or |fp32(distances) + shift|, its root if asked for, x slope
    p'              = (p where kept, else 0) x (1 / keep_prob)

dropout_mask is used as it is if all rows begin at whole bytes. Otherwise all vector cores first
store a byte for each of its bits, and rows are multiplied by these.

Sources: ops-transformer@c29bc10 common/include/kernel, pse.h and dropmask.h;
attention/flash_attention_score/op_kernel, flash_attention_score_drop_mask_adapter.h; asc-devkit
impl/adv_api/detail/filter/dropout/dropout_membase_impl.h. Assumed: bits of rows that fill no block
are selected row by row, where the library first gathers them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.isa import BLOCK_BYTES, Local, ScalarLoadGlobal
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step, tiles
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.kernel.wide_plane import WidePlane, by_columns
from npusim.ops._attention.problem import Attention
from npusim.ops._attention.scores import BITS_OF_BYTE, INNER_ROOT, Bias, Dropout

SLOPE, INDEX = "slope", "index"
"""Registers."""
HALVES_OF_BLOCK, HALVES_OF_REPEAT = 16, 128
BYTES_OF_DROPPED = 6
"""Scratch for each element of a mask of bytes: as fp16, and as fp32."""


class Place(NamedTuple):
    """Some scores of a head of a request."""

    request: int
    head: int
    """The query head."""
    token: int
    tokens: int
    key: int
    keys: int


class BiasPart(NamedTuple):
    """What is added to some scores."""

    values: GmView
    """Elements of pse, or distances."""
    slope: GmView | None = None
    shift: int = 0
    """Added to distances."""
    is_cached: bool = False
    """Whether the slope has been read before."""


class ScoreBias:
    """Scales planes of scores and adds pse to them."""

    def __init__(self, core: VectorCore, a: Attention, scratch: Local) -> None:
        """*scratch* has room for a plane."""
        self._core, self._bias, self._scale, self._scratch = core, a.bias, a.scale, scratch

    def part(self, place: Place, distances: GmView | None, *, is_cached: bool) -> BiasPart | None:
        """pse of *place*, or *distances* of as many rows and columns; None without pse."""
        bias, found = self._bias, None
        if bias is None:
            return None
        at = bias.places.at(place.request, place.head, place.token, place.key)
        first, keys = bias.dtype.nbytes(at), bias.places.keys[place.request]
        if distances is not None:
            found = GmView("pse", bias.dtype, 1, 1, 0, first)
            shift = place.key + bias.shift - place.token
            return BiasPart(distances, found, shift, is_cached)
        rows = place.tokens if bias.kind == "scores" else 1
        return BiasPart(GmView("pse", bias.dtype, rows, place.keys, keys, first))

    def scale(self, plane: WidePlane, part: BiasPart | None, loaded: Local | None) -> None:
        """Multiply *plane* by the scale, and add *part*, whose elements are in *loaded*."""
        core, bias, whole = self._core, self._bias, plane.whole
        if bias is None or part is None or loaded is None:
            core.mul(whole, whole, self._scale)
            return
        if not bias.is_scaled:
            core.mul(whole, whole, self._scale)
        rows = part.values.rows
        wide = self._scratch[: rows * plane.pitch]
        core.cast(wide, loaded.as_dtype(part.values.dtype, wide.count), "none")
        if part.slope is not None:
            self._to_distances(bias, wide, part)
            core.sub(whole, whole, wide)
        elif bias.kind == "scores":
            core.add(whole, whole, wide)
        else:
            by_columns(core, "add", plane, wide[: plane.columns])
        if bias.is_scaled:
            core.mul(whole, whole, self._scale)

    def _to_distances(self, bias: Bias, wide: Local, part: BiasPart) -> None:
        """Multiply distances by the slope of their head."""
        core = self._core
        assert part.slope is not None
        core.emit(ScalarLoadGlobal(SLOPE, part.slope.operand, FLOAT32, part.is_cached))
        core.add(wide, wide, float(part.shift))
        core.abs(wide, wide)
        if bias.pse_type == INNER_ROOT:
            core.sqrt(wide, wide)
        core.mul(wide, wide, SLOPE)


def store_distances(core: VectorCore, half: Local, view: GmView) -> None:
    """Store `j - i` to row i and column j of *view*, row by row, through *half*, a row of fp16.

    Indices are made as by CreateVecIndex: a block by the scalar unit, the others from it.
    """
    columns = view.columns
    for row in range(view.rows):
        for index in range(HALVES_OF_BLOCK):
            bits = int(np.float16(index - row).view(np.uint16))
            core.alu("add", INDEX, bits, 0)
            core.set_value(half[index : index + 1], INDEX)
        core.sync("scalar", "vector")
        filled = HALVES_OF_BLOCK
        while filled < columns:
            step = HALVES_OF_BLOCK if filled < HALVES_OF_REPEAT else HALVES_OF_REPEAT
            count = min(step, columns - filled)
            core.add(half.at(filled, count), half.at(filled - step, count), float(step))
            filled += count
        core.sync("vector", "mte3")
        core.put_rows(half[:columns], view[row : row + 1, :])
        core.sync("mte3", "vector")
        core.sync("mte3", "scalar")


class Dropping:
    """Drops elements of planes."""

    def __init__(self, core: VectorCore, dropout: Dropout, scratch: Local) -> None:
        self._core, self._dropout, self._scratch = core, dropout, scratch

    def view(self, place: Place) -> GmView:
        """The mask of *place*: bytes, or the bytes of its bits."""
        at = self._dropout.places.at(place.request, place.head, place.token, place.key)
        pitch = self._dropout.places.keys[place.request]
        if self._dropout.in_bytes:
            return GmView("kept", UINT8, place.tokens, place.keys, pitch, at)
        columns, pitch, at = (x // BITS_OF_BYTE for x in (place.keys, pitch, at))
        return GmView("dropout_mask", UINT8, place.tokens, columns, pitch, at)

    def load(self, tile: Local, view: GmView, pitch: int) -> None:
        """Load a mask for a plane whose rows are *pitch* apart."""
        self._core.fill(tile, view, self._row_bytes(pitch))

    def _row_bytes(self, pitch: int) -> int:
        return pitch if self._dropout.in_bytes else align_up(pitch // BITS_OF_BYTE, BLOCK_BYTES)

    def drop(self, out: Local, plane: WidePlane, mask: Local) -> None:
        """Write *plane* with what *mask* drops to *out*, which may be its own tile."""
        core, whole = self._core, plane.whole
        out = out[: whole.count]
        if self._dropout.in_bytes:
            self._multiply(out, whole, mask)
            return
        pitch, row_bytes = plane.pitch, self._row_bytes(plane.pitch)
        if pitch == row_bytes * BITS_OF_BYTE or plane.rows == 1:
            core.select(out, mask[: whole.count // BITS_OF_BYTE], whole, 0.0)
        else:
            with core.independent():
                for row in range(plane.rows):
                    bits = mask.at(row * row_bytes, pitch // BITS_OF_BYTE)
                    core.select(out.at(row * pitch, pitch), bits, plane.row(row, 0, pitch), 0.0)
        core.mul(out, out, self._dropout.factor)

    def _multiply(self, out: Local, whole: Local, mask: Local) -> None:
        """The same with a mask of bytes, as much at a time as the scratch has room for."""
        core, scratch = self._core, self._scratch
        most = scratch.nbytes // BYTES_OF_DROPPED // BLOCK_BYTES * BLOCK_BYTES
        for first, count in pieces(whole.count, most):
            half = scratch.as_dtype(FLOAT16, count)
            place = scratch.offset_bytes + FLOAT16.nbytes(most)
            wide, here = Local(scratch.buffer, place, FLOAT32, count), out.at(first, count)
            core.cast(half, mask.at(first, count), "none")
            core.cast(wide, half, "none")
            core.mul(here, wide, whole.at(first, count))
            core.mul(here, here, self._dropout.factor)


class Unpacking:
    """Stores a byte for each bit of dropout_mask, in equal shares of vector cores."""

    def __init__(self, core: VectorCore, count: int, share: int, most: int) -> None:
        """*share* of *count* bits for a core, *most* of them at a time."""
        self._core, self._count, self._share = core, count, share
        self._most = most
        room = align_up(most, BLOCK_BYTES * BITS_OF_BYTE)
        self._bits = core.vecin(UINT8, room // BITS_OF_BYTE)
        self._bytes = core.vecout(UINT8, room)
        self._ones, self._halves = (core.tile(FLOAT16, room) for _ in range(2))

    def steps(self, order: int) -> list[Step]:
        """The steps of all cores."""
        used = np.arange(ceil_div(self._count, self._share))
        found = [Step(self._make_ones, (), used, np.full(used.size, order))]
        bits = GmView.vector("dropout_mask", UINT8, ceil_div(self._count, BITS_OF_BYTE))
        kept = GmView.vector("kept", UINT8, self._count)
        for core in used.tolist():
            first, last = (x * self._share for x in (core, core + 1))
            own = tiles(kept[:, first:last], 1, self._most)
            bytes_of_share = slice(first // BITS_OF_BYTE, ceil_div(last, BITS_OF_BYTE))
            packed = tiles(bits[:, bytes_of_share], 1, self._most // BITS_OF_BYTE)
            cores, orders = np.full(len(own), core), np.full(len(own), order)
            found.append(Step(self._unpack, (packed, own), cores, orders))
        return found

    def _make_ones(self) -> None:
        self._core.duplicate(self._ones, 1.0)

    def _unpack(self, packed: GmView, kept: GmView) -> None:
        core, count = self._core, kept.columns
        bits = core.load_rows(self._bits, packed)
        filled = align_up(count, HALVES_OF_REPEAT)
        halves = self._halves[:filled]
        core.select(halves, bits[: filled // BITS_OF_BYTE], self._ones[:filled], 0.0)
        self._bits.free(bits)
        out = self._bytes.alloc()
        core.cast(out[:count], halves[:count], "none")
        core.store_rows(self._bytes, out, kept)
