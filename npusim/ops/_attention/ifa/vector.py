"""What the vector cores of kernel IFA do: digits of queries and of weights, and their products.

.. code-block:: text

    q' = q * scale of the columns;  a = max|q'|;  digits of q' * (127 / a)
    s = (S1 + S2 / 254) / 127 * a * scale of the keys * scale        S1, S2: products of digits
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    p' = p * scale of the values;  b = max|p'|;  digits of p' * (127 / b)
    o' = o * e + (O1 + O2 / 254) / 127 * b * scale of the columns

The largest b is taken where each token has a scale only; otherwise digits are those of p * 127
(ops-transformer@3a280bc attention/incre_flash_attention/op_kernel/arch22,
incre_flash_attention_preload.h). Assumed: that b is that of magnitudes.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BinaryScalar, Cast, Duplicate
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat
from npusim.kernel.wide_plane import WidePlane
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.cube import SCORES_READY, WEIGHTS_READY
from npusim.ops._attention.fia.finish import Finish
from npusim.ops._attention.fia.kernel import VectorCore
from npusim.ops._attention.fia.output import Form, Output
from npusim.ops._attention.fia.schedule import Tile
from npusim.ops._attention.fia.softmax import NUMBERS, ROWS_OF_LOOP, Softmax, rows_of_half
from npusim.ops._attention.fia.tiles import KEYS_ALIGNED
from npusim.ops._attention.ifa.cube import QUERY_READY
from npusim.ops._attention.ifa.digits import FIRST, Digits
from npusim.ops._attention.ifa.places import DigitMemory

__all__ = ["DigitVector"]

LOWEST = -2e38
"""Where maxima begin."""


class DigitVector(VectorCore):
    """Writes the programs of vector cores."""

    def __init__(self, spec: DeviceSpec, memory: DigitMemory) -> None:
        super().__init__(spec, memory)
        builder, buffers, state = self._builder, self._buffers, self._state
        rows = max(rows_of_half(memory.max_rows, half)[1] for half in (0, 1))
        is_eightfold = memory.plan.sizes.is_eightfold
        largest = State(
            builder, buffers, max(1, rows), is_eightfold=is_eightfold, names=("query", "weights")
        )
        digits = Digits(builder, buffers, largest)
        self._query = _Query(builder, memory, buffers, digits)
        self._softmax = _Softmax(builder, memory, buffers, state, digits)
        self._output = _Output(builder, memory, buffers, state, self._finish, digits)

    def begin(self, tiles: tuple[Tile, ...], index: int, half: int) -> None:
        """The digits of the next row of tiles, while the cube is at this one."""
        if index == 0:
            self._query.call(tiles[0], half)
        if index + 1 < len(tiles) and tiles[index + 1].is_first:
            self._query.call(tiles[index + 1], half)


class _Query:
    """Queries to digits."""

    def __init__(
        self, builder: Builder, memory: DigitMemory, buffers: Buffers, digits: Digits
    ) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._digits = buffers, digits

    def call(self, tile: Tile, half: int) -> None:
        """Write the call for the row of tiles of *tile*, its rows of *half*."""
        memory, a, row_tile = self._memory, self._memory.plan.rows.a, tile.piece.row_tile
        first, rows = rows_of_half(row_tile.rows, half)
        # The heads of the only token of a request follow each other, whatever the layout.
        head = row_tile.head * a.group + row_tile.row + first
        place = a.element.nbytes(memory.query.at(row_tile.request, head, 0)) if rows else 0
        query = GmView.of("query", a.element, rows, memory.width).shifted_to(place)
        digits = memory.slot("digits", tile.turn, row_tile.rows, memory.width)
        digit_bytes = digits.nbytes
        key = memory.antiquant.key
        scale = memory.scales(key, tile) if key.per != "token" else None
        own = digits[first : first + rows, :]
        repeat(self._builder, self._tile, tile.turn, query, own, digit_bytes, scale)

    def _tile(
        self, turn: int, query: GmView, digits: GmView, digit_bytes: int, scale: GmView | None
    ) -> None:
        """(rows, width) of *query* -> as many of each digit."""
        loop_rows = max(1, align_down(NUMBERS // query.columns, ROWS_OF_LOOP))
        for row, rows in pieces(query.rows, loop_rows):
            here = slice(row, row + rows)
            views = query[here, :], digits[here, :]
            repeat(self._builder, self._rows, turn % 2, row, *views, digit_bytes, scale)
        self._builder.cross_core_set_flag("group", "mte3", QUERY_READY)

    def _rows(
        self,
        parity: int,
        row: int,
        query: GmView,
        digits: GmView,
        digit_bytes: int,
        scale: GmView | None,
    ) -> None:
        builder, queue, columns = self._builder, self._buffers.wide_in, query.columns
        count = query.rows * columns
        raw = load(builder, queue, GmView(query.name, query.dtype, 1, count, 0, query.offset_bytes))
        plane = WidePlane(self._digits.scratch(), query.rows, columns, columns)
        step(builder, Cast(plane.whole, raw.of(query.dtype, count), "none"))
        if scale is not None:
            self._digits.scale(plane, scale)
        self._digits.stretch(plane, raw, "query", parity, row)
        self._digits.split(plane, raw, digits, digit_bytes)
        queue.free(raw)
        queue.free(plane.slot)


class _Softmax(Softmax):
    """Scores of digits to digits of weights."""

    def __init__(
        self,
        builder: Builder,
        memory: DigitMemory,
        buffers: Buffers,
        state: State,
        digits: Digits,
    ) -> None:
        super().__init__(builder, memory, buffers, state)
        self._places, self._digits = memory, digits

    def call(self, tile: Tile, index: int, half: int) -> None:
        """Write the call for tile number *index* of a core, its rows of *half*."""
        memory, row_tile = self._places, tile.piece.row_tile
        first, rows = rows_of_half(row_tile.rows, half)
        scores = memory.slot("scores", index, row_tile.rows, tile.keys)
        weights = memory.slot("weights", index, row_tile.rows, tile.keys)
        digit_bytes = tuple(row_tile.rows * view.pitch_bytes for view in (scores, weights))
        both = memory.antiquant
        scales = [
            memory.scales(each, tile) if each.per == "token" else None
            for each in (both.key, both.value)
        ]
        here = slice(first, first + rows)
        parities = index % 2, tile.turn % 2
        views = scores[here, :], weights[here, :]
        repeat(
            self._builder, self._digit_tile, tile.is_first, parities, digit_bytes, *views, *scales
        )

    def _digit_tile(
        self,
        is_first: bool,
        parities: tuple[int, int],
        digit_bytes: tuple[int, ...],
        scores: GmView,
        weights: GmView,
        *scales: GmView | None,
    ) -> None:
        """(rows, keys) of scores -> weights, both of digits."""
        builder, state = self._builder, self._state
        parity, turn = parities
        builder.cross_core_wait_flag("group", "mte2", SCORES_READY)
        if is_first and scores.rows:
            largest = state.of("largest", parity, 0, scores.rows)
            total = state.of("total", parity, 0, scores.rows)
            builder.emit(Duplicate(largest, LOWEST), Duplicate(total, 0.0))
            builder.barrier("vector")
        before = parity if is_first else 1 - parity
        most = NUMBERS // align_up(scores.columns, KEYS_ALIGNED)
        if not self._memory.plan.sizes.is_eightfold:
            most = align_down(most, ROWS_OF_LOOP)
        for row, rows in pieces(scores.rows, max(1, most)):
            here = slice(row, row + rows)
            views = scores[here, :], weights[here, :]
            states = (parity, before, turn), row, digit_bytes
            repeat(builder, self._digit_rows, *states, *views, *scales)
        if not scores.rows:
            # A core without rows must not get ahead of the cube either.
            builder.sync("mte2", "mte3")
        builder.cross_core_set_flag("group", "mte3", WEIGHTS_READY)

    def _digit_rows(
        self,
        parities: tuple[int, int, int],
        row: int,
        digit_bytes: tuple[int, ...],
        scores: GmView,
        weights: GmView,
        key_scale: GmView | None,
        value_scale: GmView | None,
    ) -> None:
        """Some rows of a tile, from *row* on."""
        builder, digits = self._builder, self._digits
        parity, before, turn = parities
        pitch = align_up(scores.columns, KEYS_ALIGNED)
        plane = digits.combined(scores, digit_bytes[0], pitch)
        digits.shrink(plane, "query", turn, row)
        if key_scale is not None:
            digits.scale(plane, key_scale)
        scale = self._memory.plan.rows.a.scale
        step(builder, BinaryScalar("mul", plane.whole, plane.whole, scale))
        self._exponentials(row, parity, before, plane)
        self._add_sums(row, parity, before, plane)
        scratch = digits.scratch() if value_scale is None else None
        if value_scale is None:
            step(builder, BinaryScalar("mul", plane.whole, plane.whole, FIRST))
        else:
            digits.scale(plane, value_scale)
            scratch = digits.scratch()
            digits.stretch(plane, scratch, "weights", parity, row)
        assert scratch is not None
        digits.split(plane, scratch, weights, digit_bytes[1])
        self._buffers.wide_in.free(scratch)
        self._buffers.wide_in.free(plane.slot)


class _Output(Output):
    """Products of digits to the output."""

    def __init__(
        self,
        builder: Builder,
        memory: DigitMemory,
        buffers: Buffers,
        state: State,
        finish: Finish,
        digits: Digits,
    ) -> None:
        super().__init__(builder, memory, buffers, state, finish)
        self._places, self._digits = memory, digits

    def digit_bytes(self, rows: int) -> int:
        return FLOAT32.nbytes(rows * self._places.width)

    def scale(self, tile: Tile) -> GmView | None:
        """Those of the values, unless weights have been multiplied by them."""
        value = self._places.antiquant.value
        return self._places.scales(value, tile) if value.per != "token" else None

    def loaded(self, form: Form, row: int, product: GmView, scale: GmView | None) -> WidePlane:
        plane = self._digits.combined(product, form.digit_bytes, product.columns)
        if scale is None:
            self._digits.shrink(plane, "weights", form.parity, row)
        else:
            self._digits.scale(plane, scale)
        return plane
