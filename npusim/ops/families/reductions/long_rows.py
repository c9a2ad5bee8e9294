"""Sums, means and softmax of rows that do not fit into the unified buffer: in equal pieces.

A sum processes its row once. softmax does so three times: for the maximum; for the powers, which go
to a workspace in float32, and their sum; and for dividing these. log_softmax reads x a third time
instead of a workspace. Each piece is added, or compared, element by element to the result of the
previous pieces, and the final result is reduced like a row that fits.

Sources: CANN 8.1.RC1, public TBE copy, tbe/dsl/unify_schedule/vector/norm/norm_tilingcase.py, and
norm.cc of the 2022 tiling library: cores divide rows between them, and no row. Assumed: how pieces
are combined, since the order is closed; that log_softmax has no workspace, like layer norms of that
pattern; and that sums of few rows are tiled like those of many, where the vendor's kernel splits
rows over cores and adds in global memory, in no certain order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, BinaryOp, Local
from npusim.kernel import Block, GmView, VectorCore, pieces, repeat
from npusim.ops import _vocabulary as ops
from npusim.ops.families.reductions import kernel
from npusim.ops.families.reductions.contract import Problem

UNIT = 64
"""A piece is a multiple of this many elements: a repeat of float32."""
FIXED_BYTES = (kernel.BRCB_LANES + 3) * BLOCK_BYTES
"""A number and its blocks, the maximum of a row, and room for tails of rows."""
POWERS = "powers"
"""The workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Runs of rows, each in pieces."""

    rows_per_core: int
    piece: int


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal runs of rows, in as few pieces as fit."""
    each = ceil_div(p.rows, kernel.cores_of(spec, p))
    workspaces = {POWERS: FLOAT32.nbytes(p.rows * _pitch(p))} if p.name == "softmax" else {}
    return Plan(
        block_dim=ceil_div(p.rows, each),
        reads_tiling=False,
        workspaces=workspaces,
        rows_per_core=each,
        piece=_piece(spec, p),
    )


def cuts(spec: DeviceSpec, p: Problem) -> list[tuple[int, int]]:
    """Start and length of each piece of a row; the first is the widest."""
    # No piece is shorter than the smallest store of the chip.
    least = ceil_div(spec.transfer.store_granule_bytes * 8, p.output.element.bits)
    return list(pieces(p.columns, _piece(spec, p), least))


def _piece(spec: DeviceSpec, p: Problem) -> int:
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - FIXED_BYTES
    most = align_down(room // _bytes_per_element(p), UNIT)
    return align_up(ceil_div(p.columns, ceil_div(p.columns, most)), UNIT)


def _pitch(p: Problem) -> int:
    """Elements from row to row of the workspace: rows are whole blocks, since some chips load
    nothing else."""
    return align_up(p.columns, BLOCK_BYTES // FLOAT32.nbytes(1))


def _bytes_per_element(p: Problem) -> int:
    """For a piece: two inputs, the combined and folded ones, and more if the row remains a row."""
    x_bytes, y_bytes = p.inputs[0].element.nbytes(1), p.output.element.nbytes(1)
    found = 2 * x_bytes + 2 * FLOAT32.nbytes(1)
    if not p.keeps_shape:
        return found + FLOAT32.nbytes(1)
    found += 2 * y_bytes
    if p.output.element is FLOAT32:
        # Powers use the buffers of x and of the result.
        return found
    return found + FLOAT32.nbytes(1) + (4 * FLOAT32.nbytes(1) if p.name == "softmax" else 0)


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A core processes its rows one after another."""
    long_rows = LongRows(VectorCore(p.name, spec), p, plan.piece, cuts(spec, p))
    stage = long_rows.softmax if p.keeps_shape else long_rows.reduce
    more = [GmView.of(name, FLOAT32, p.rows, _pitch(p)) for name in plan.workspaces]
    return long_rows.core.launch(kernel.shares(p, plan.rows_per_core, 1, stage, *more))


class LongRows:
    """The buffers of a core, and its stages."""

    def __init__(
        self, core: VectorCore, p: Problem, piece: int, cuts: list[tuple[int, int]]
    ) -> None:
        self.core, self.p, self.cuts = core, p, cuts
        self.is_log = p.name == "log_softmax"
        element = p.inputs[0].element
        self.dtype = FLOAT16 if element is FLOAT16 and p.name == "softmax" else FLOAT32
        """Type in which the maximum is found."""
        # Each piece is treated as a row.
        self.rows = kernel.RowKernel(core, replace(p, columns=piece), tile_rows=1, depth=2)
        self.combined = core.tile(FLOAT32, piece)
        """The combined result of the pieces so far."""
        self.largest = core.claim("ub", BLOCK_BYTES).of(FLOAT32, 1)
        self.powers_in, self.powers_out = self.rows.x, self.rows.y
        if p.name == "softmax" and element is not FLOAT32:
            self.powers_in = core.vecin(FLOAT32, piece, 2)
            self.powers_out = core.vecout(FLOAT32, piece, 2)

    def _parts(self, view: GmView) -> list[GmView]:
        """*view* `(1, columns)` in pieces."""
        return [view[:, left : left + width] for left, width in self.cuts]

    # ---- rows ----

    def reduce(self, x: GmView, y: GmView) -> None:
        """*x* `(1, columns)`, *y* `(1, 1)`."""
        for number, part in enumerate(self._parts(x)):
            repeat(self.core, self._add, part, number == 0)
        repeat(self.core, self._store_total, y)

    def softmax(self, x: GmView, y: GmView, *powers: GmView) -> None:
        """All `(1, columns)`."""
        core = self.core
        parts, out = self._parts(x), self._parts(y)
        kept = [tuple(part) for part in zip(*map(self._parts, powers), strict=True)]
        kept = kept or [()] * len(parts)
        for number, part in enumerate(parts):
            repeat(core, self._find_largest, part, number == 0)
        repeat(core, self._close_largest)
        for number, (part, power) in enumerate(zip(parts, kept, strict=True)):
            repeat(core, self._add_powers, part, number == 0, *power)
        repeat(core, self._close_total)
        for part, power, dst in zip(parts, kept, out, strict=True):
            repeat(core, self._subtract if self.is_log else self._divide, *(power or (part,)), dst)

    # ---- pieces ----

    def _add(self, x: GmView, is_first: bool) -> None:
        """Add *x* `(1, piece)`, scaled for a mean, to the sum."""
        rows, core = self.rows, self.core
        loaded = core.load(rows.x, x)
        src = loaded[: x.columns]
        core.barrier("vector")
        assert rows.values is not None
        rows.row = rows.values[: x.columns]
        row = rows.wide(src)
        if self.p.name == "mean":
            core.mul(rows.row, row, 1 / self.p.columns)
            row = rows.row
        self._combine("add", row, is_first)
        rows.x.free(loaded)

    def _store_total(self, y: GmView) -> None:
        out = self.rows.y.alloc()
        self.rows.narrow(out[:1], self._reduced("sum"))
        self.core.store(self.rows.y, out, y)

    def _find_largest(self, x: GmView, is_first: bool) -> None:
        rows, core = self.rows, self.core
        loaded = core.load(rows.x, x)
        src = loaded[: x.columns]
        core.barrier("vector")
        rows.row = rows.folded[: x.columns]
        self._combine("max", src if self.dtype is FLOAT16 else rows.wide(src), is_first)
        rows.x.free(loaded)

    def _close_largest(self) -> None:
        largest = self._reduced("max")
        if self.is_log:
            if self.p.output.element is not FLOAT16:
                # By default the maximum is that of the elements rounded to float16.
                half = self.rows.folded.as_dtype(FLOAT16, 1)
                self.rows.narrow(half, largest)
                self.core.cast(largest, half)
            self.core.copy(self.largest, largest)

    def _add_powers(self, x: GmView, is_first: bool, *powers: GmView) -> None:
        """Add the powers of *x* to their sum; those of softmax are stored, too."""
        rows, core = self.rows, self.core
        loaded = core.load(rows.x, x)
        src = loaded[: x.columns]
        core.barrier("vector")
        if self.is_log:
            rows.row = rows.folded[: x.columns]
            rows.with_number("sub", rows.row, rows.wide(src), self.largest)
        else:
            out = self.powers_out.alloc()
            rows.row = out[: x.columns]
            row = src if self.dtype is FLOAT16 else rows.wide(src)
            rows.in_float32(row, rows.number.of(self.dtype, 1))
        core.exp(rows.row, rows.row)
        self._combine("add", rows.row, is_first)
        rows.x.free(loaded)
        for view in powers:
            core.store(self.powers_out, out, view)

    def _close_total(self) -> None:
        total = self._reduced("sum")
        if self.is_log:
            self.core.ln(total, total)
            return
        if self.core.is_310p:
            self.rows.invert(total)
        # The powers must be stored before they are loaded.
        self.core.sync("mte3", "mte2")

    def _divide(self, powers: GmView, y: GmView) -> None:
        rows, core = self.rows, self.core
        loaded, out = core.load(self.powers_in, powers), rows.y.alloc()
        dst = out[: y.columns]
        core.barrier("vector")
        row = rows.values[: y.columns] if rows.values else dst
        op: BinaryOp = "mul" if core.is_310p else "div"
        rows.with_number(op, row, loaded[: y.columns], rows.number.of(FLOAT32, 1))
        self.powers_in.free(loaded)
        rows.narrow(dst, row)
        core.store(rows.y, out, y)

    def _subtract(self, x: GmView, y: GmView) -> None:
        rows, core = self.rows, self.core
        loaded, out = core.load(rows.x, x), rows.y.alloc()
        dst = out[: y.columns]
        core.barrier("vector")
        rows.row = rows.values[: y.columns] if rows.values else dst
        rows.with_number("sub", rows.row, rows.wide(loaded[: x.columns]), self.largest)
        rows.with_number("sub", rows.row, rows.row, rows.number.of(FLOAT32, 1))
        rows.x.free(loaded)
        rows.narrow(dst, rows.row)
        core.store(rows.y, out, y)

    # ---- numbers of a row ----

    def _combine(self, op: BinaryOp, row: Local, is_first: bool) -> None:
        """Combine *row* with the result of the previous pieces."""
        so_far = self.combined.as_dtype(row.dtype, row.count)
        if is_first:
            self.core.copy(so_far, row)
        else:
            self.core.apply(op, so_far, so_far, row)

    def _reduced(self, op: kernel.Fold) -> Local:
        """The combined result of all pieces, as a number."""
        self.core.barrier("vector")
        widest = self.cuts[0][1]
        dtype = FLOAT32 if op == "sum" else self.dtype
        return self.rows.reduced(op, self.combined.as_dtype(dtype, widest))
