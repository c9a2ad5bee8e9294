"""Softmax along an axis other than the last: each element uses the maximum and sum of its column.

x is `(outer, count, inner)`, and so is the result. Columns are divided as for sums. A core finds
the maximum of each column of its piece, then sums the powers, then divides by their sum. Pieces are
so narrow that all rows remain in the unified buffer meanwhile, if those of one repeat do; otherwise
they are loaded for each of the three passes, and the powers computed twice. The vendor's kernels
are built by a closed generator; all of this, and the order of additions, is assumed.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Cast, Local
from npusim.kernel import Binding, Block, GmView, Step, VectorCore, pieces
from npusim.kernel.rows import whole_blocks
from npusim.ops.families.reductions.columns import UNIT, Plan, Spans, share_of, width_of
from npusim.ops.families.reductions.contract import Problem

KEPT = 3
"""Rows stored per piece, in float32: the maximum, the sums, and scratch."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Pieces in equal shares, with all rows, which are loaded once if they fit into the buffer."""
    element, room = p.output.element, spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    room -= BLOCK_BYTES
    # Two tiles of rows are input, one is float32 scratch, two are output.
    own = 0 if element is FLOAT32 else FLOAT32.nbytes(1)
    row_bytes, kept_bytes = 4 * element.nbytes(1) + own, KEPT * FLOAT32.nbytes(1)
    width = width_of(spec, p)
    all_rows = align_down(room // (p.columns * row_bytes + kept_bytes), UNIT)
    width = min(width, all_rows) if all_rows else width
    # Rows shorter than the smallest store spill into the next ones of the same core.
    spills = element.nbytes(p.inner) < spec.transfer.store_granule_bytes
    cores, share = share_of(spec, p, width, spills=spills)
    return Plan(
        block_dim=cores,
        reads_tiling=False,
        piece_columns=width,
        pieces_per_core=share,
        tile_rows=min(p.columns, (room - kept_bytes * width) // (row_bytes * width)),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The pieces of a core, one after another: all rows at once, or three times in tiles."""
    kernel, element = ColumnSoftmax(VectorCore(p.name, spec), p, plan), p.output.element
    # A piece is at least as large as the smallest store, so only shorter rows spill.
    least = ceil_div(spec.transfer.store_granule_bytes * 8, element.bits)
    spans = Spans.of(p, plan.piece_columns, plan.pieces_per_core, least)
    tiles, number = list(pieces(p.columns, plan.tile_rows)), np.arange(spans.core.size)
    x, y = (GmView.of(name, element, p.rows * p.columns, p.inner) for name in ("x", "output"))
    each = 3 * len(tiles) + 1
    steps = []
    for place, (top, count) in enumerate(tiles):
        of_x, of_y = (spans.rows(view, p.columns, top, count) for view in (x, y))
        if len(tiles) == 1:
            steps.append(Step(kernel.whole, (of_x, of_y), spans.core, number))
            continue
        stages = (
            (kernel.find_largest, (of_x, place == 0), place),
            (kernel.add_up, (of_x, place == 0), len(tiles) + place),
            (kernel.divide, (of_x, of_y), 2 * len(tiles) + 1 + place),
        )
        steps += [
            Step(stage, given, spans.core, number * each + order) for stage, given, order in stages
        ]
    if len(tiles) > 1:
        order = number * each + 2 * len(tiles)
        steps.append(Step(kernel.close, (spans.width,), spans.core, order))
    bound = {name: Binding(name) for name in ("x", "output")}
    return kernel.core.launch(*steps, bound=lambda _: bound)


class ColumnSoftmax:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core = core
        self.element = p.output.element
        self.is_log = p.name == "log_softmax"
        # Softmax subtracts the maximum in float16, if the rows are float16.
        self.dtype = FLOAT16 if self.element is FLOAT16 and not self.is_log else FLOAT32
        width, size = plan.piece_columns, plan.tile_rows * plan.piece_columns
        self.x, self.y = core.vecin(self.element, size, 2), core.vecout(self.element, size, 2)
        self.wide = None if self.element is FLOAT32 else core.tile(FLOAT32, size)
        self.largest, self.total, self.spare = (core.tile(FLOAT32, width) for _ in range(KEPT))
        core.claim_tails()

    # ---- stages ----

    def whole(self, x: GmView, y: GmView) -> None:
        """Process *x* to *y*, both `(count, columns)`: all rows at once, loaded once."""
        loaded, rows = self._load(x)
        self._largest_of(rows, x, is_first=True)
        values = self._apart(rows, x)
        self._total_of(values, x, is_first=True)
        self.close(x.columns)
        self._out(loaded, values, y)

    def find_largest(self, x: GmView, is_first: bool) -> None:
        """Update the maximum of each column."""
        loaded, rows = self._load(x)
        self._largest_of(rows, x, is_first=is_first)
        self.x.free(loaded)

    def add_up(self, x: GmView, is_first: bool) -> None:
        """Update the sums of the powers."""
        loaded, rows = self._load(x)
        self._total_of(self._apart(rows, x), x, is_first=is_first)
        self.x.free(loaded)

    def close(self, columns: int) -> None:
        """Convert the sums to the divisor, factor or subtrahend."""
        core, total = self.core, self.total[:columns]
        if self.is_log:
            core.ln(total, total)
        elif core.is_310p:
            core.duplicate(self.spare[:columns], 1.0)
            core.div(total, self.spare[:columns], total)

    def divide(self, x: GmView, y: GmView) -> None:
        """Process *x* to *y*, using the sums."""
        loaded, rows = self._load(x)
        self._out(loaded, self._apart(rows, x), y)

    # ---- steps ----

    def _load(self, x: GmView) -> tuple[Local, Local]:
        """The rows of *x*, also in the type in which the maximum is subtracted."""
        loaded = self.core.load(self.x, x)
        rows = loaded[: x.rows * whole_blocks(x.columns, self.element)]
        self.core.barrier("vector")
        return loaded, rows if self.element is self.dtype else self._widened(rows)

    def _widened(self, rows: Local) -> Local:
        assert self.wide is not None
        self.core.cast(self.wide[: rows.count], rows)
        return self.wide[: rows.count]

    def _rows(self, rows: Local, x: GmView) -> list[Local]:
        """Each row of a tile like *x*."""
        return [
            rows.at(row * whole_blocks(x.columns, self.element), x.columns) for row in range(x.rows)
        ]

    def _largest_of(self, rows: Local, x: GmView, *, is_first: bool) -> None:
        largest = self.largest.as_dtype(self.dtype, x.columns)
        for number, row in enumerate(self._rows(rows, x)):
            if is_first and number == 0:
                self.core.copy(largest, row)
            else:
                self.core.max(largest, largest, row)

    def _apart(self, rows: Local, x: GmView) -> Local:
        """*rows* less the maximum, in float32; for softmax e to that power."""
        largest = self.largest.as_dtype(self.dtype, x.columns)
        with self.core.independent():
            for row in self._rows(rows, x):
                self.core.sub(row, row, largest)
        if self.dtype is not FLOAT32:
            rows = self._widened(rows)
        if not self.is_log:
            self.core.exp(rows, rows)
        return rows

    def _total_of(self, values: Local, x: GmView, *, is_first: bool) -> None:
        core, total = self.core, self.total[: x.columns]
        for number, row in enumerate(self._rows(values, x)):
            power = row
            if self.is_log:
                power = self.spare[: x.columns]
                core.exp(power, row)
            if is_first and number == 0:
                core.copy(total, power)
            else:
                core.add(total, total, power)

    def _out(self, loaded: Local, values: Local, y: GmView) -> None:
        """Round the result of *values* and the totals, and store it; *loaded* is then free."""
        core, total = self.core, self.total[: y.columns]
        op: BinaryOp = "div"
        if self.is_log:
            op = "sub"
        elif core.is_310p:
            op = "mul"
        out = self.y.alloc()
        found = values if self.wide else out[: values.count]
        for row, dst in zip(self._rows(values, y), self._rows(found, y), strict=True):
            core.emit(Binary(op, dst, row, total))
        if self.wide:
            core.barrier("vector")
            core.emit(Cast(out[: values.count], values, core.rounding(y.dtype)))
        self.x.free(loaded)
        core.store(self.y, out, y)
