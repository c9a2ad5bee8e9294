"""IFA, attention of single tokens to keys and values of int8, without dequantising them.

.. code-block:: text

    vector cores  query, divided by its largest magnitude, in two digits of int8       (rows x 2)
    cube core     S = digits @ K^T, int32                                to a workspace
    vector cores  S of both digits joined; maximum, exp, sum; P in two digits of int8
    cube core     digits @ V, int32
    vector cores  O = O * shrink + both digits joined * scale

A real number x in [-1, 1] is about `(d1 + d2 / 254) / 127` with digits `d1 = away(127 x)` and
`d2 = away((127 x - d1) * 254)`; away() rounds to integers, ties away from zero. In full:

.. code-block:: text

    q' = q * scale of the columns;  a = max|q'|;  digits of q' * (127 / a)
    s = (S1 + S2 / 254) / 127 * a * scale of the keys * scale        S1, S2: products of digits
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    p' = p * scale of the values;  b = max|p'|;  digits of p' * (127 / b)
    o' = o * e + (O1 + O2 / 254) / 127 * b * scale of the columns

The largest b is used only if there are scales per token; otherwise digits are those of p * 127.

Sources: ops-transformer@3a280bc attention/incre_flash_attention/op_kernel/arch22,
incre_flash_attention_preload.h. Assumed: it runs all calls that are simulated; tiles, slots,
buffers, and the split of rows over cores are those of FIA, its successor; which flag signals that
the digits of a query are available; that b is that of magnitudes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT32, INT8, INT32
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.program import Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Column, Step, column_of
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import LANES, WidePlane, by_columns, by_rows, reduce_rows
from npusim.ops._attention.fia import OPERANDS_READY, Plan, cube_steps, launch
from npusim.ops._attention.fia_output import Finish, Form, Output
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import schedule
from npusim.ops._attention.fia_vector import (
    BEFORE,
    BLOCK,
    COUNT,
    ROWS_OF_LOOP,
    Softmax,
    State,
    StateName,
    Vector,
    step_of,
)
from npusim.ops._attention.places import DIGITS, Memory, Part, joined
from npusim.ops._attention.problem import Antiquant, Attention

FIRST, NEXT = 127.0, 254.0
"""Factors before the first digit, and of the remainder before the next one."""
UNDO_FIRST, UNDO_NEXT = (float(np.float32(1) / np.float32(x)) for x in (FIRST, NEXT))
"""One over these, in fp32."""
RAW_COUNT = 1024
"""float32 elements of the mask buffer: for scales as loaded, followed by their fp32 form."""


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks per group; *names* are those of the call's tensors."""
    vector = Vector(spec, Memory(schedule(a, spec.cores["aic"].count)))
    digits = Digits(vector)
    finish = Finish(vector)
    output = Output(vector, finish, digits.product, digits.scale_of_columns)
    softmax, cube = DigitSoftmax(vector, digits), cube_steps(spec, vector.memory)
    return launch(cube, vector, softmax, finish, output, names, plan)


class Digits:
    """Vector operations on digits."""

    def __init__(self, vector: Vector) -> None:
        assert vector.a.antiquant is not None
        self._vector, self._core = vector, vector.core
        self.antiquant: Antiquant = vector.a.antiquant
        self._largest = State(vector, ("query", "weights"))

    def scratch(self) -> Local:
        """A tile for a plane between loads; free it."""
        queue = self._vector.wide_in
        queue.enque(queue.alloc())
        return queue.deque()

    def stretch(
        self, plane: WidePlane, scratch: Local, name: StateName, tile: int, row: int
    ) -> None:
        """Scale rows of *plane* to [-127, 127], each by its largest magnitude.

        That is stored in the state *name* of tile *tile*, rows from *row* on.
        """
        core, vector, state = self._core, self._vector, self._largest
        magnitudes = WidePlane(scratch, plane.rows, plane.columns, plane.pitch)
        core.abs(magnitudes.whole, plane.whole)
        found = vector.row[: plane.rows]
        reduce_rows(core, "max", found, magnitudes, vector.lanes)
        kept = state.kept(found)
        core.copy(state.of(name, tile, row, plane.rows), kept)
        # (rows, 8): 127 / largest
        blocks = state.blocks(kept)
        firsts = vector.lanes[: blocks.count]
        core.duplicate(firsts, FIRST)
        core.div(blocks, firsts, blocks)
        by_rows(core, "mul", plane, blocks)

    def shrink(self, plane: WidePlane, name: StateName, tile: int, row: int) -> None:
        """`plane = plane x largest magnitude of the row`, see :meth:`stretch`."""
        kept = self._largest.of(name, tile, row, plane.rows)
        by_rows(self._core, "mul", plane, self._largest.blocks(kept))

    def split(self, plane: WidePlane, scratch: Local, view: GmView, digit_bytes: int) -> None:
        """Store the digits of *plane*, in [-127, 127], to *view* and *digit_bytes* after it."""
        core, queue, whole = self._core, self._vector.wide_out, plane.whole
        rounded, half = scratch[: whole.count], self._vector.half_mask[: whole.count]
        out = queue.alloc()
        size = align_up(INT8.nbytes(whole.count), BLOCK_BYTES)
        for digit in range(DIGITS):
            if digit:
                core.sub(whole, whole, rounded)
                core.mul(whole, whole, NEXT)
            core.cast(rounded, whole, "round")
            # There is no cast from fp32 to int8: through fp16, which is exact for digits.
            core.cast(half, rounded, "none")
            core.cast(out.as_dtype(INT8).at(digit * size, whole.count), half, "none")
        queue.enque(out)
        out = queue.deque()
        for digit in range(DIGITS):
            here = joined(view.shifted_to(view.offset_bytes + digit * digit_bytes))
            src = out.as_dtype(INT8).at(digit * size, here.extent_bytes(plane.pitch))
            core.data_copy(here.operand, src, plane.pitch if here.rows > 1 else 0)
        queue.free(out)

    def combined(self, view: GmView, digit_bytes: int, pitch: int) -> WidePlane:
        """Join products of digits `(rows, columns)`, the first at *view*, to those of real numbers.

        Rows of the plane are *pitch* apart; free its tile.
        """
        core, queue = self._core, self._vector.wide_in
        found: list[Local] = []
        for digit in range(DIGITS):
            here = joined(view.shifted_to(view.offset_bytes + digit * digit_bytes))
            tile = core.load_rows(queue, here, pitch=pitch)
            whole = tile[: view.rows * pitch]
            core.cast(whole, whole.as_dtype(INT32), "none")
            found.append(whole)
            if digit:
                core.mul(whole, whole, UNDO_NEXT)
                core.add(found[0], found[0], whole)
                queue.free(tile)
        core.mul(found[0], found[0], UNDO_FIRST)
        return WidePlane(found[0], view.rows, view.columns, pitch)

    def scale(self, plane: WidePlane, view: GmView) -> None:
        """Multiply the columns of *plane* by *view*: a scale for each, or one for all."""
        core, is_wide = self._core, view.columns * view.dtype.nbytes(1) > FLOAT32.nbytes(RAW_COUNT)
        queue = self._vector.wide_in if is_wide else self._vector.mask_in
        tile = core.load_rows(queue, view)
        scales = tile[: view.columns]
        if view.dtype is not FLOAT32:
            scales = tile.at(RAW_COUNT, view.columns)
            core.cast(scales, tile.as_dtype(view.dtype, view.columns), "none")
        if view.columns == 1:
            self._scale_all(plane, scales)
        else:
            by_columns(core, "mul", plane, scales)
        queue.free(tile)

    def _scale_all(self, plane: WidePlane, scale: Local) -> None:
        # (1,) -> (8,), a block that all repeats read
        core, block = self._core, self._vector.blocks[:BLOCK]
        core.brcb(block, scale)
        whole = plane.whole
        main = whole.count // LANES * LANES
        with core.independent():
            for here in (whole[:main], whole[main:]):
                if here.count:
                    same = Local(block.buffer, block.offset_bytes, FLOAT32, here.count, 0, 0)
                    core.mul(here, here, same)

    # ---- products of weights and values ----

    def scale_of_columns(self, *of_keys: int) -> GmView | None:
        """Scales of the value columns, unless weights have been multiplied by them."""
        value = self.antiquant.value
        return self._vector.memory.scales(value, *of_keys) if value.per != "token" else None

    def product(self, form: Form, row: int, product: GmView, scale: GmView | None) -> WidePlane:
        """Rows of *product*, from *row* of the core on, as those of real numbers."""
        plane = self.combined(product, form.digit_bytes, product.columns)
        if scale is None:
            self.shrink(plane, "weights", form.parity, row)
        else:
            self.scale(plane, scale)
        return plane


class Special(NamedTuple):
    """Data of a tile with digits besides its scores and weights."""

    turn: int
    """Which of two states holds the largest magnitudes of its queries."""
    rows: int
    """Rows of the whole tile: distance from first to second digits of scores, and of weights."""
    key_scale: GmView | None
    """A scale per key, *value_scale* per value, if they exist."""
    value_scale: GmView | None


class DigitSoftmax(Softmax):
    """Converts queries to digits, and scores of digits to digits of weights."""

    lowest = -2e38

    def __init__(self, vector: Vector, digits: Digits) -> None:
        super().__init__(vector)
        self._digits = digits

    # ---- queries ----

    def steps(self) -> list[Step]:
        """The digits of the next row of tiles are written while the cube processes this one."""
        parts = [part for part in self._vector.parts if part.tile.is_first]
        arguments = [list(each) for each in zip(*map(self._of_query, parts), strict=True)]
        earlier = [
            part._replace(tile=part.tile._replace(number=max(0, part.tile.number - 1)))
            for part in parts
        ]
        own = [step_of(earlier, BEFORE, VECTOR_CORES, self._query, *arguments)]
        return [*(own if parts else []), *super().steps()]

    def _of_query(self, part: Part) -> tuple[Hashable, ...]:
        """Arguments of `_query` for the rows of *part*."""
        tile, row, rows, _ = part
        memory, a, row_tile = self._memory, self._vector.a, tile.piece.row_tile
        # The heads of the only token of a request are adjacent in any layout.
        head = row_tile.head * a.group + row_tile.row + row
        place = a.element.nbytes(memory.sides["query"].at(row_tile.request, head, 0)) if rows else 0
        query = GmView.of("query", a.element, rows, memory.width).shifted_to(place)
        digits = memory.slot("digits", tile.turn, rows, memory.width, row)
        key = self._digits.antiquant.key
        scale = memory.scales(key, *part.of_keys) if key.per != "token" else None
        return tile.turn % 2, query, digits, row_tile.rows * digits.row_bytes, scale

    def _query(
        self, parity: int, query: GmView, digits: GmView, digit_bytes: int, scale: GmView | None
    ) -> None:
        """(rows, width) of *query* -> as many of each digit."""
        loop_rows = max(1, align_down(COUNT // query.columns, ROWS_OF_LOOP))
        for row, rows in pieces(query.rows, loop_rows):
            here = slice(row, row + rows)
            views = query[here, :], digits[here, :]
            repeat(self._core, self._query_rows, parity, row, *views, digit_bytes, scale)
        self._core.cross_core_set_flag("group", "mte3", OPERANDS_READY)

    def _query_rows(
        self,
        parity: int,
        row: int,
        query: GmView,
        view: GmView,
        digit_bytes: int,
        scale: GmView | None,
    ) -> None:
        core, digits, queue = self._core, self._digits, self._vector.wide_in
        count = query.rows * query.columns
        flat = GmView(query.name, query.dtype, 1, count, 0, query.offset_bytes)
        raw = core.load_rows(queue, flat)
        plane = WidePlane(digits.scratch(), query.rows, query.columns, query.columns)
        core.cast(plane.whole, raw.as_dtype(query.dtype, count), "none")
        if scale is not None:
            digits.scale(plane, scale)
        digits.stretch(plane, raw, "query", parity, row)
        digits.split(plane, raw, view, digit_bytes)
        queue.free(raw)
        queue.free(plane.tile)

    # ---- scores ----

    def of_loops(self) -> Column:
        """The extra data of each tile, the same for each loop."""
        return column_of(
            (
                (x.tile.turn % 2, x.tile.piece.row_tile.rows, x.rows, *x.of_keys)
                for x in self._vector.parts
            ),
            self._special,
        )

    def _special(self, turn: int, count: int, rows: int, *of_keys: int) -> tuple[Hashable, ...]:
        both = self._digits.antiquant
        key, value = (
            self._memory.scales(each, *of_keys) if each.per == "token" else None
            for each in (both.key, both.value)
        )
        loops = self._vector.loops(of_keys[-1], rows)
        return tuple(Special(turn, count, key, value) for _ in loops)

    def rows(
        self,
        parity: int,
        before: int,
        row: int,
        scores: GmView,
        weights: GmView,
        special: Special,
    ) -> None:
        """Process some rows, from *row* on; the state of the previous tile is number *before*."""
        core, digits, (turn, count, key_scale, value_scale) = self._core, self._digits, special
        pitch = align_up(scores.columns, KEYS_ALIGNED)
        plane = digits.combined(scores, count * scores.pitch_bytes, pitch)
        digits.shrink(plane, "query", turn, row)
        if key_scale is not None:
            digits.scale(plane, key_scale)
        core.mul(plane.whole, plane.whole, self._vector.a.scale)
        self._exponentials(row, parity, before, plane)
        self._add_sums(row, parity, before, plane)
        if value_scale is None:
            scratch = digits.scratch()
            core.mul(plane.whole, plane.whole, FIRST)
        else:
            digits.scale(plane, value_scale)
            scratch = digits.scratch()
            digits.stretch(plane, scratch, "weights", parity, row)
        digits.split(plane, scratch, weights, count * weights.pitch_bytes)
        self._vector.wide_in.free(scratch)
        self._vector.wide_in.free(plane.tile)
