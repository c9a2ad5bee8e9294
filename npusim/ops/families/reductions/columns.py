"""Reductions along an axis other than the last: rows are added to rows.

x is `(outer, count, inner)` and the result `(outer, inner)`. Columns of *inner* are divided into
pieces of full repeats; a core processes all rows of its piece, as many at a time as the unified
buffer holds, and adds one after another to the total, or takes the maximum. `argmax` also stores
the index. The vendor's kernels are built by a closed generator; all of this, including the order of
additions, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, REPEAT_BYTES, BinaryScalar, Cast, Copy, Local
from npusim.kernel import Binding, Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.rows import whole_blocks
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops
from npusim.ops.families.reductions.contract import Problem

UNIT = 128
"""A piece is a multiple of this many elements: a repeat of 16 bits, two of 32."""
MOST = 2048
"""Most elements of a piece; 8 KiB of float32."""
BYTE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Pieces of columns, assigned in order, and rows at a time."""

    piece_columns: int
    pieces_per_core: int
    tile_rows: int


def width_of(spec: DeviceSpec, p: Problem) -> int:
    """Columns of a piece, few enough that all cores have one, if there are as many."""
    each = ceil_div(p.rows * p.inner, len(spec.vector_cores))
    return min(align_up(each, UNIT), align_up(p.inner, UNIT), MOST)


def share_of(spec: DeviceSpec, p: Problem, width: int, *, spills: bool) -> tuple[int, int]:
    """Cores, and pieces of *width* columns for each; one core if stores *spill*."""
    count = p.rows * ceil_div(p.inner, width)
    share = ceil_div(count, 1 if spills else len(spec.vector_cores))
    return ceil_div(count, share), share


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Pieces in equal shares, and as many rows as fit into the buffer."""
    width, element = width_of(spec, p), p.inputs[0].element
    out = p.output.element
    # A store past the end of a row overlaps the next one, which the same core stores later.
    spills = out.nbytes(p.inner) % spec.transfer.store_granule_bytes > 0
    cores, share = share_of(spec, p, width, spills=spills)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - BLOCK_BYTES
    # Two tiles of rows are input, one is scratch.
    row_bytes = 2 * element.nbytes(width) + FLOAT32.nbytes(width)
    # Two results are output from the state. The index of the maximum and of this row need room too,
    # and one bit per column.
    extra = 2 * FLOAT32.nbytes(width) + width // 8 if p.name == "argmax" else 0
    kept_bytes = 2 * out.nbytes(width) + FLOAT32.nbytes(width) + extra
    return Plan(
        block_dim=cores,
        reads_tiling=False,
        piece_columns=width,
        pieces_per_core=share,
        tile_rows=min(p.columns, align_down(room - kept_bytes, BLOCK_BYTES) // row_bytes),
    )


@dataclass(frozen=True, eq=False)
class Spans:
    """Pieces of columns in order, `(spans,)` each, and the core of each."""

    core: Integers
    outer: Integers
    left: Integers
    width: Integers

    @staticmethod
    def of(p: Problem, piece_columns: int, pieces_per_core: int, least: int = 1) -> Spans:
        """Those of all rows of the result, dealt out in order."""
        left, width = np.array(list(pieces(p.inner, piece_columns, least)), np.int64).T
        outer = np.repeat(np.arange(p.rows), left.size)
        core = np.arange(outer.size) // pieces_per_core
        return Spans(core, outer, np.tile(left, p.rows), np.tile(width, p.rows))

    def rows(self, view: GmView, count: int, top: int, height: int) -> GmViews:
        """*height* rows from *top* on of the *count* that each span has of *view*."""
        return GmViews.of(view, self.outer * count + top, self.left, height, self.width)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """For each piece of columns the rows, some at a time, and then the store."""
    kernel = ColumnKernel(VectorCore(p.name, spec), p, plan)
    spans = Spans.of(p, plan.piece_columns, plan.pieces_per_core)
    x = GmView.of("x", p.inputs[0].element, p.rows * p.columns, p.inner)
    y = GmView.of("output", p.output.element, p.rows, p.inner)
    number, tiles = np.arange(spans.core.size), list(pieces(p.columns, plan.tile_rows))
    steps = [
        Step(
            kernel.rows,
            (spans.rows(x, p.columns, top, count), top == 0),
            spans.core,
            number * (len(tiles) + 1) + place,
        )
        for place, (top, count) in enumerate(tiles)
    ]
    last = number * (len(tiles) + 1) + len(tiles)
    steps.append(Step(kernel.finish, (spans.rows(y, 1, 0, 1),), spans.core, last))
    bound = {name: Binding(name) for name in ("x", "output")}
    return kernel.core.launch(*steps, bound=lambda _: bound)


class ColumnKernel:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        self.element = p.inputs[0].element
        # A maximum is one of the elements, so float16 remains float16.
        is_exact = p.name == "amax" and self.element is FLOAT16
        self.dtype = FLOAT16 if is_exact else FLOAT32
        width, size = plan.piece_columns, plan.tile_rows * plan.piece_columns
        self.x = core.vecin(self.element, size, 2)
        self.y = core.vecout(p.output.element, width, 2)
        self.wide = None if self.element is self.dtype else core.tile(FLOAT32, size)
        self.total = core.tile(FLOAT32, width)
        self.places = Places(core, width) if p.name == "argmax" else None
        core.claim_tails()

    def rows(self, x: GmView, is_first: bool) -> None:
        """Add the rows of *x* `(rows, columns)` to the total, or start it with the first."""
        core, loaded = self.core, self.core.load(self.x, x)
        pitch = whole_blocks(x.columns, self.element)
        rows = loaded[: x.rows * pitch]
        core.barrier("vector")
        if self.wide:
            core.cast(self.wide[: rows.count], rows)
            rows = self.wide[: rows.count]
        if self.p.name == "mean":
            # Scaled first, then summed.
            core.mul(rows, rows, 1 / self.p.columns)
        # Comparisons give whole bytes of bits: the padding of a block was loaded too.
        width = align_up(x.columns, BYTE_BITS) if self.places else x.columns
        for row in range(x.rows):
            added = rows[row * pitch : row * pitch + width]
            if is_first and row == 0:
                core.copy(self.total.as_dtype(self.dtype, width), added)
                if self.places:
                    self.places.begin(width)
            else:
                self._add(added)
        self.x.free(loaded)

    def _add(self, row: Local) -> None:
        """Add *row* to the total, or take the maximum of both."""
        total = self.total.as_dtype(self.dtype, row.count)
        if self.places:
            self.places.keep_larger(total, row)
        self.core.apply("add" if self.p.name in ("sum", "mean") else "max", total, total, row)

    def finish(self, y: GmView) -> None:
        """Round the total, and store it to *y* `(1, columns)`."""
        core, out = self.core, self.y.alloc()
        dst, total = out[: y.columns], self.total.as_dtype(self.dtype, y.columns)
        if self.places:
            core.emit(Cast(dst, self.places.finish(total, self.p.columns - 1), "trunc"))
        else:
            is_same = self.element is self.dtype
            core.emit(Copy(dst, total) if is_same else Cast(dst, total, core.rounding(y.dtype)))
        core.store(self.y, out, y)


class Places:
    """Index of the maximum of each column, counted in float32."""

    def __init__(self, core: VectorCore, width: int) -> None:
        self.core = core
        self.at, self.here = core.tile(FLOAT32, width), core.tile(FLOAT32, width)
        self.mask = core.tile(UINT8, width // 8)

    def begin(self, columns: int) -> None:
        """Start with row 0, which is the present one."""
        with self.core.independent():
            for tile in (self.at, self.here):
                self.core.duplicate(tile[: _whole(columns)], 0.0)

    def keep_larger(self, largest: Local, row: Local) -> None:
        """Advance to the next row, *row*, and record its index where it exceeds *largest*."""
        core, count = self.core, _whole(row.count)
        at, here, mask = self.at[:count], self.here[:count], self.mask[: count // 8]
        core.emit(BinaryScalar("add", here, here, 1.0))
        # The padding of columns is compared as well, but not stored.
        core.compare("gt", mask, _filled(row), _filled(largest))
        core.select(at, mask, here, at)

    def finish(self, largest: Local, last: int) -> Local:
        """The indices, or *last* where *largest* is NaN."""
        core, count = self.core, _whole(largest.count)
        at, mask = self.at[:count], self.mask[: count // 8]
        core.compare("eq", mask, _filled(largest), _filled(largest))
        core.select(at, mask, at, float(last))
        return at[: largest.count]


def _whole(columns: int) -> int:
    """Columns padded to full repeats, as a comparison needs them."""
    return align_up(columns, REPEAT_BYTES * 8 // FLOAT32.bits)


def _filled(row: Local) -> Local:
    """*row* including its padding to full repeats."""
    return Local(row.buffer, row.offset_bytes, FLOAT32, _whole(row.count))
