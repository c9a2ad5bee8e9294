"""The programs that the cores run for npu_dynamic_quant_asymmetric.

Each row needs its largest and its smallest number, and the scalar unit makes scale and offset of
the two. ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel; where a template takes a row in parts, the
scalar unit keeps the extremes as that of npu_dynamic_quant does (assumed).
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32, INT4
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, BinaryScalar, Local, ScalarAlu, ScalarStore
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import Writer, fill, pieces
from npusim.kernel.views import GmView, bindings, repeat, store
from npusim.ops.npu_dynamic_quant.choice import IN_PARTS
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.groups import GroupSearch
from npusim.ops.npu_dynamic_quant.row_steps import RowKernel, float_bits, matrices
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["build"]

Groups = tuple[int, ...]
"""The group of each row; all of group 0 without a group_index."""
LEAST_SCALE = 1e-12


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose rows belong to the same groups share their program."""
    kernel = (Parts if plan.template in IN_PARTS else WholeRows)(spec, p, plan)
    programs: dict[Groups, Program] = {}
    blocks: list[Block] = []
    x, output, scale = matrices(p)
    offset = GmView.vector("offset", FLOAT32, p.rows)
    whole = [GmView.vector(each.name, each.element, each.spec.size) for each in p.inputs[1:]]
    group_of = p.group_of.tolist() if p.group_index is not None else [0] * p.rows
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        groups = tuple(group_of[first : first + rows])
        if groups not in programs:
            programs[groups] = kernel.program(groups)
        mine = x[first:, :], output[first:, :], scale[:, first:], offset[:, first:]
        blocks.append(Block(core, "aiv", programs[groups], bindings(*mine, *whole)))
        first += rows
    return tuple(blocks)


class Asymmetric(RowKernel):
    """Buffers and steps that all templates share."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, rows = self.builder.claim, self.builder.queue, plan.row_step
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.scale = queue("ub", FLOAT32.nbytes(rows), "scalar", "mte3")
        self.offset = queue("ub", FLOAT32.nbytes(rows), "scalar", "mte3")
        self.search = GroupSearch(self.builder, p.groups) if p.groups else None
        self.smooth = claim("ub", self.smooth_bytes) if p.smooth_scales is not None else None
        self.values = claim("ub", FLOAT32.nbytes(plan.column_step))
        self.extreme = claim("ub", BLOCK_BYTES)
        self.reduction = Reduction(self.builder, plan.column_step)
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """Load the group_index."""
        if self.search is not None:
            self.search.group = 0
            self.search.begin()

    @property
    def group(self) -> int:
        """That of the smooth scales in use."""
        return self.search.group if self.search is not None else 0

    def take_smooth(self, columns: slice) -> None:
        """The smooth scales of the current group for *columns*, in fp32."""
        if self.smooth is None:
            return
        # Rows before may still be multiplied by the ones that are there.
        self.builder.sync("vector", "mte2")
        self.load_smooth(self.smooth, columns, self.group)
        if self.search is not None:
            self.builder.barrier()
        else:
            self.builder.sync("mte2", "vector")
        self.widen_smooth(self.smooth, columns.stop - columns.start)

    def find_extremes(self, values: Local, *, is_first: bool = True) -> None:
        """The largest and the smallest of *values*, and of the parts before, into registers."""
        ops: tuple[tuple[Literal["max", "min"], str], ...] = (("max", "most"), ("min", "least"))
        for op, register in ops:
            self.reduction.find(op, self.extreme, values)
            if is_first:
                self.builder.emit(ScalarAlu("add", register, "found", 0))
                continue
            pair = ("found", register) if op == "max" else (register, "found")
            self.builder.emit(
                ScalarAlu("f32_lt", "keeps", *pair),
                ScalarAlu("select", register, "keeps", register, "found"),
            )

    def divide(self, scale: Local, offset: Local) -> None:
        """*scale* and *offset* `(1,)` of a row, and registers `back` and `offset`."""
        is_int4 = self.p.target is INT4
        span, top = float_bits(15 if is_int4 else 255), float_bits(7 if is_int4 else 127)
        self.builder.emit(
            ScalarAlu("f32_sub", "scale", "most", "least"),
            ScalarAlu("f32_div", "scale", "scale", span),
            # Not so of a NaN.
            ScalarAlu("f32_lt", "is_larger", float_bits(LEAST_SCALE), "scale"),
            ScalarAlu("select", "scale", "is_larger", "scale", float_bits(LEAST_SCALE)),
            ScalarAlu("f32_div", "offset", "most", "scale"),
            ScalarAlu("f32_sub", "offset", top, "offset"),
            ScalarAlu("f32_div", "back", float_bits(1), "scale"),
            ScalarStore(scale, "scale"),
            ScalarStore(offset, "offset"),
        )

    def quantise(self, y: Local, values: Local) -> None:
        """*values* in place times `back`, plus `offset`, and rounded to *y*."""
        step(self.builder, BinaryScalar("mul", values, values, "back"))
        step(self.builder, BinaryScalar("add", values, values, "offset"))
        to_quantised(self.builder, self.spec, y, values)

    def fetch(self, x: GmView) -> None:
        """Begin to load *x*."""
        slot = self.x.alloc()
        fill(self.builder, self.spec, slot, x, self.x_pitch if x.rows > 1 else None)
        self.x.enque(slot)


class WholeRows(Asymmetric):
    """The templates db, base and moe: pieces of whole rows; db has the next one on its way."""

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, piece by piece."""
        self.begin()
        x, output, scale = matrices(self.p)
        offset = GmView.vector("offset", FLOAT32, self.p.rows)
        if self.search is None:
            self.take_smooth(slice(0, self.p.columns))
        spans = [slice(row, row + count) for row, count in pieces(len(groups), self.plan.row_step)]
        is_ahead = self.plan.template == "db"
        if is_ahead:
            self.fetch(x[spans[0], :])
        for here, after in zip(spans, [*spans[1:], None], strict=True):
            coming = after if is_ahead else here
            fetched = x[coming, :] if coming is not None else None
            views = output[here, :], scale[:, here], offset[:, here]
            if self.search is None:
                stage = self._fetch_and_quantise, fetched, *views, groups[here]
                repeat(self.builder, *stage, keeps_slots=is_ahead)
            else:
                self._fetch_and_quantise(fetched, *views, groups[here])
        return self.builder.build()

    def _fetch_and_quantise(
        self,
        x: GmView | None,
        output: GmView,
        scale: GmView,
        offset: GmView,
        groups: Groups,
    ) -> None:
        """Begin to load *x*, if there is any, and quantise the oldest rows that were fetched."""
        if x is not None:
            self.fetch(x)
        self._piece(output, scale, offset, groups)

    def _piece(self, output: GmView, scale: GmView, offset: GmView, groups: Groups) -> None:
        """*output* `(rows, columns)`, *scale* and *offset* `(rows,)` of the oldest rows fetched."""
        builder, columns = self.builder, output.columns
        slot = self.x.deque()
        if self.search is not None:
            # Every piece begins with the smooth scales of the group that the last one ended with.
            self.take_smooth(slice(0, columns))
        out, scales, offsets = self.y.alloc(), self.scale.alloc(), self.offset.alloc()
        values = self.values.of(FLOAT32, columns)
        for row, group in enumerate(groups):
            if self.search is not None and self.search.advance(group):
                self.take_smooth(slice(0, columns))
            self.widen(values, slot.of(self.p.x.element, columns, row * self.x_pitch), self.smooth)
            self.find_extremes(values)
            place = FLOAT32, 1, FLOAT32.nbytes(row)
            self.divide(scales.of(*place), offsets.of(*place))
            self.quantise(out.of(output.dtype, columns, row * self.y_pitch), values)
        self.x.free(slot)
        self.writer.store(self.y, out, output, self.y_pitch)
        store(builder, self.scale, scales, scale)
        store(builder, self.offset, offsets, offset)


class Parts(Asymmetric):
    """The templates large and moe_large: a row in parts, which are loaded twice.

    moe_large quantises the last one while it is still in the buffer.
    """

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, one after the other."""
        self.begin()
        x, output, scale = matrices(self.p)
        offset = GmView.vector("offset", FLOAT32, self.p.rows)
        for row, group in enumerate(groups):
            if self.search is not None:
                self.search.advance(group)
            here = slice(row, row + 1)
            views = x[here, :], output[here, :], scale[:, here], offset[:, here]
            if self.search is None:
                repeat(self.builder, self._row, *views)
            else:
                self._row(*views)
        return self.builder.build()

    def _row(self, x: GmView, output: GmView, scale: GmView, offset: GmView) -> None:
        """*output*, *scale* and *offset* of *x*, all of one row."""
        columns = pieces(x.columns, self.plan.column_step)
        parts = [slice(start, start + width) for start, width in columns]
        for part in parts:
            values = self._values(x[:, part], part)
            self.find_extremes(values, is_first=part is parts[0])
        scales, offsets = self.scale.alloc(), self.offset.alloc()
        self.divide(scales.of(FLOAT32, 1), offsets.of(FLOAT32, 1))
        for queue, slot, view in (
            (self.scale, scales, scale),
            (self.offset, offsets, offset),
        ):
            store(self.builder, queue, slot, view)
        if self.plan.template == "moe_large":
            self._quantise(values, output[:, parts.pop()])
        for part in parts:
            self._quantise(self._values(x[:, part], part), output[:, part])

    def _values(self, x: GmView, part: slice) -> Local:
        """Columns *part* of a row in fp32, smoothed."""
        self.fetch(x)
        self.take_smooth(part)
        slot: Slot = self.x.deque()
        values = self.values.of(FLOAT32, x.columns)
        self.widen(values, slot.of(x.dtype, x.columns), self.smooth)
        self.x.free(slot)
        return values

    def _quantise(self, values: Local, output: GmView) -> None:
        out = self.y.alloc()
        self.quantise(out.of(output.dtype, values.count), values)
        self.writer.store(self.y, out, output)
