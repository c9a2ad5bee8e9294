"""The largest of rows that do not fit into the unified buffer, and where it is: in segments.

A row is walked in segments, each reduced as a row that fits. What is largest so far and its index
are kept in registers, which a comparison of the scalar unit changes where a segment has a larger
one, so that the first of equals stays (ArgMaxV2: CANN 8.1.RC1, public TBE copy,
impl/dynamic/arg_common.py, whose segments are multiples of 8192). That NaN stays too, and that such
a row gives its last index, is assumed; so is all of `amax`, whose kernel is built by a closed
generator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, Copy, Duplicate, ScalarAlu, ScalarLoad
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.reductions import kernel
from npusim.ops.families.reductions.contract import Problem

__all__ = ["NAMES", "Plan", "build", "tile"]

NAMES = ("amax", "argmax")
"""Operators whose rows may be longer than the buffer."""
SEGMENT = 8192
"""Elements; two segments, and what is calculated with one, fit into the buffer in every type."""
MAGNITUDE = 0x7FFFFFFF
"""All bits of a float32 but its sign."""
INFINITY = 0x7F800000
"""The bits of infinity; NaN has more."""
LEAST = int(np.float32(-np.inf).view(np.uint32))
"""The bits of what is not larger than anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Runs of rows, each in segments."""

    rows_per_core: int
    segment: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Even runs of rows."""
    each = ceil_div(p.rows, kernel.cores_of(spec, p))
    return Plan(
        block_dim=ceil_div(p.rows, each), reads_tiling=False, rows_per_core=each, segment=SEGMENT
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x = GmView.of("x", p.inputs[0].element, p.rows, p.columns)
    y = GmView.of("output", p.output.element, p.rows, 1)
    segments = SegmentKernel(spec, p, plan)
    for row, rows in pieces(p.rows, plan.rows_per_core):
        if rows not in programs:
            programs[rows] = segments.program(x[:rows, :], y[:rows, :])
        core, bound = len(blocks), bindings(x[row:, :], y[row:, :])
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
    return tuple(blocks)


class SegmentKernel:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.segment = spec, p, plan.segment
        of_rows = kernel.Plan(
            block_dim=plan.block_dim, reads_tiling=False, rows_per_core=1, tile_rows=1, depth=2
        )
        # A segment is a row of its own.
        self.rows = kernel.RowKernel(spec, replace(p, columns=plan.segment), of_rows)
        self.builder = self.rows.builder
        is_exact = p.output.element is FLOAT16
        self.dtype = FLOAT16 if is_exact else FLOAT32
        self.largest = self.builder.claim("ub", BLOCK_BYTES).of(self.dtype, 1)
        """Of the segments so far, for `amax`."""

    def program(self, x: GmView, y: GmView) -> Program:
        """*x* `(rows, columns)`, *y* `(rows, 1)`."""
        self.rows.begin()
        for row in range(x.rows):
            here = slice(row, row + 1), slice(None)
            repeat(self.builder, self._row, x[here], y[here])
        return self.builder.build()

    def _row(self, x: GmView, y: GmView) -> None:
        """*x* `(1, columns)`, *y* `(1, 1)`."""
        if self.p.name == "argmax":
            for register, bits in (("best", LEAST), ("at", 0), ("first", 0)):
                self.builder.emit(ScalarAlu("add", register, bits))
        for left, width in pieces(x.columns, self.segment):
            repeat(self.builder, self._segment, x[:, left : left + width], left == 0)
        repeat(self.builder, self._finish, y)

    def _segment(self, x: GmView, is_first: bool) -> None:
        """*x* `(1, segment)`; of `argmax` the first segment is as all others."""
        rows, builder = self.rows, self.builder
        slot = load(builder, self.spec, rows.x, x)
        src = slot.of(x.dtype, x.columns)
        builder.barrier("vector")
        assert rows.values is not None
        rows.row = rows.values.of(FLOAT32, x.columns)
        if self.p.name == "argmax":
            place = rows.place_of_largest(src)
            rows.x.free(slot)
            builder.sync("vector", "scalar")
            builder.emit(ScalarLoad("place", place))
            builder.sync("scalar", "vector")
            self._keep_larger(x.columns)
            return
        largest = rows.reduced("max", src if self.dtype is FLOAT16 else rows.wide(src))
        rows.x.free(slot)
        kept = self.largest
        step(builder, Copy(kept, largest) if is_first else Binary("max", kept, kept, largest))

    def _keep_larger(self, columns: int) -> None:
        """Keep what the registers `largest` and `place` hold, if that is larger."""
        self.builder.emit(
            ScalarAlu("f32_lt", "is_larger", "best", "largest"),
            *_is_nan("largest"),
            ScalarAlu("or", "is_larger", "is_larger", "is_nan"),
            ScalarAlu("f32_to_i32", "place", "place"),
            ScalarAlu("add", "place", "place", "first"),
            ScalarAlu("select", "at", "is_larger", "place", "at"),
            ScalarAlu("select", "best", "is_larger", "largest", "best"),
            ScalarAlu("add", "first", "first", columns),
        )

    def _finish(self, y: GmView) -> None:
        """*y* `(1, 1)`."""
        out = self.rows.y.alloc()
        dst = out.of(y.dtype, 1)
        if self.p.name == "argmax":
            last = self.p.columns - 1
            self.builder.emit(*_is_nan("best"), ScalarAlu("select", "at", "is_nan", last, "at"))
            self.builder.sync("scalar", "vector")
            self.builder.emit(Duplicate(dst, "at"))
        elif self.dtype is FLOAT16:
            self.builder.emit(Copy(dst, self.largest))
        else:
            self.rows.narrow(dst, self.largest)
        self.rows.writer.store(self.rows.y, out, y)


def _is_nan(register: str) -> tuple[ScalarAlu, ScalarAlu]:
    """Set the register `is_nan` if *register* holds the bits of NaN."""
    return (
        ScalarAlu("and", "is_nan", register, MAGNITUDE),
        ScalarAlu("lt", "is_nan", INFINITY, "is_nan"),
    )
