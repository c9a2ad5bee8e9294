"""IFA-ATB, the attention kernel for int8 keys and values that it dequantises first.

.. code-block:: text

    vector cores  keys and values of a tile: T((fp32(fp16(x)) + offset) * scale)   to a workspace
    cube core     S = Q @ K^T, fp16                                               to a workspace
    vector cores  s = S * scale, hidden ones -65504, both fp16
                  m' = max(m, max(s));  p = exp(fp32(fp16(s - m')));  P = T(p)
    cube core     P @ V, fp32
    vector cores  O = O * exp(m - m') + P @ V;  l' = l * exp(m - m') + sum(p);  T(O / l)

T is the type of the query; offsets and scales are per column. A tile has 256 keys. The vector cores
are one tile ahead with keys and values, each half of them with one half.

Sources: ops-transformer@3a280bc attention/incre_flash_attention/op_kernel/arch22,
paged_attention_antiquantkv.h. Assumed: tiles of rows, buffers, the split over cores and the order
of sums are those of FIA; what hides a score; T rounds ties to even for keys and values, and as in
FIA for weights and the output; maxima and differences, whose bits are those of fp16, are computed
in fp32; there is one flag for the keys and the values of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, INT8, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import ScalarLoadGlobal
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.program import Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import WidePlane, by_columns
from npusim.ops._attention.cube import Piece, within
from npusim.ops._attention.fia import OPERANDS_READY, Plan, cube_steps, launch
from npusim.ops._attention.fia_output import Finish, Output
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import schedule
from npusim.ops._attention.fia_vector import (
    BEFORE,
    COUNT,
    ROWS_OF_LOOP,
    MaskStep,
    Softmax,
    Vector,
    step_of,
)
from npusim.ops._attention.places import Memory, Part, joined
from npusim.ops._attention.problem import Attention

HIDDEN = -65504.0
"""Replaces a hidden score: the lowest fp16."""


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks per group; *names* are those of the call's tensors."""
    vector = Vector(spec, Memory(schedule(a, spec.cores["aic"].count)))
    finish = Finish(vector)
    softmax, cube = HalfSoftmax(vector), cube_steps(spec, vector.memory)
    return launch(cube, vector, softmax, finish, Output(vector, finish), names, plan)


class Given(NamedTuple):
    """Keys, or values, of a tile that a vector core dequantises."""

    pages: tuple[Piece, ...]
    """int8."""
    result: GmView
    offset: GmView
    """For the columns of a head; *scale* likewise."""
    scale: GmView


class HalfSoftmax(Softmax):
    """Converts int8 keys and values to the query's type, and fp16 scores to weights."""

    # ---- keys and values ----

    def steps(self) -> list[Step]:
        """The keys and values of the next tile are written while the cube processes this one."""
        parts = self._vector.parts
        earlier = [
            part._replace(tile=part.tile._replace(number=max(0, part.tile.number - 1)))
            for part in parts
        ]
        given = [tuple(self._given(part)) for part in parts]
        own = [step_of(earlier, BEFORE, VECTOR_CORES, self._dequantise, given)]
        return [*(own if parts else []), *super().steps()]

    def _given(self, part: Part) -> Iterator[Given]:
        """The keys and values that the vector core of *part* dequantises for its tile."""
        memory, antiquant, tile = self._memory, self._vector.a.antiquant, part.tile
        assert antiquant is not None
        assert antiquant.offsets is not None
        middle = min(tile.keys, align_up(ceil_div(tile.keys, 2), ROWS_OF_LOOP))
        first, last = (0, middle) if part.half == 0 else (middle, tile.keys)
        scales = antiquant.key, antiquant.value
        for name, scale, offset in zip(("key", "value"), scales, antiquant.offsets, strict=True):
            result = memory.slot(f"{name}s", tile.number, last - first, memory.width, first)
            keys = memory.keys(name, INT8, *part.of_keys)
            pages = tuple(piece for _, piece in within(keys, first, last - first))
            views = (memory.scales(each, *part.of_keys) for each in (offset, scale))
            yield Given(pages, result, *views)

    def _dequantise(self, parts: tuple[Given, ...]) -> None:
        """Dequantise the keys and the values of a tile."""
        for part in parts:
            if part.pages:
                offset = self._core.load_rows(self._vector.mask_in, part.offset)
                scale = self._core.load_rows(self._vector.second_in, part.scale)
                row = 0
                for piece in part.pages:
                    here = part.result[row : row + piece.keys.rows, :]
                    repeat(self._core, self._dequantise_page, piece, here, keeps_slots=True)
                    row += piece.keys.rows
                self._vector.mask_in.free(offset)
                self._vector.second_in.free(scale)
        if not any(part.pages for part in parts):
            # A core without keys must not get ahead of the other one.
            self._core.sync("mte2", "mte3")
        self._core.cross_core_set_flag("group", "mte3", OPERANDS_READY)

    def _dequantise_page(self, piece: Piece, result: GmView) -> None:
        """Dequantise a page, whose block is read from the block table."""
        core, vector = self._core, self._vector
        if piece.entry is not None:
            entry = piece.entry.operand
            core.emit(ScalarLoadGlobal("block", entry, INT32, piece.is_cached))
        (offset,), (scale,) = vector.mask_in.in_use, vector.second_in.in_use
        width = result.columns
        for row, rows in pieces(result.rows, max(1, align_down(COUNT // width, ROWS_OF_LOOP))):
            here = slice(row, row + rows)
            raw = core.load_rows(vector.wide_in, joined(piece.keys[here, :]), pitch=width)
            count = rows * width
            half = vector.half_mask[:count]
            vector.wide_in.enque(vector.wide_in.alloc())
            plane = WidePlane(vector.wide_in.deque(), rows, width, width)
            # There is no cast from int8 to fp32.
            core.cast(half, raw.as_dtype(INT8, count), "none")
            core.cast(plane.whole, half, "none")
            vector.wide_in.free(raw)
            by_columns(core, "add", plane, offset[:width])
            by_columns(core, "mul", plane, scale[:width])
            out = vector.wide_out.alloc()
            core.cast(out.as_dtype(vector.a.element, count), plane.whole, "rint")
            vector.wide_in.free(plane.tile)
            core.store_rows(vector.wide_out, out, joined(result[here, :]))

    # ---- scores ----

    def scaled(self, scores: GmView, masks: tuple[MaskStep, ...]) -> WidePlane:
        """*scores* times scale in fp32, with those hidden by *masks* replaced; free its tile."""
        core, queue = self._core, self._vector.wide_in
        pitch = align_up(scores.columns, KEYS_ALIGNED)
        raw = core.load_rows(queue, joined(scores), pitch=pitch)
        half = raw.as_dtype(FLOAT16, scores.rows * pitch)
        queue.enque(queue.alloc())
        plane = WidePlane(queue.deque(), scores.rows, scores.columns, pitch)
        core.mul(half, half, self._vector.a.scale)
        for mask in masks:
            self.hide(plane, mask, half, HIDDEN)
        core.cast(plane.whole, half, "none")
        queue.free(raw)
        return plane

    def differences(self, plane: WidePlane) -> None:
        """Round scores less their maximum to fp16."""
        half = self._vector.half_mask[: plane.whole.count]
        self._core.cast(half, plane.whole, "none")
        self._core.cast(plane.whole, half, "none")
