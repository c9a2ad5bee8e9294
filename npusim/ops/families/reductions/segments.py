"""The maximum of rows that do not fit into the unified buffer, and its index: in segments.

A row is processed in segments, each reduced like a row that fits. The running maximum and its index
are in registers, which a comparison of the scalar unit updates if a segment has a larger one, so
that the first of equals remains (ArgMaxV2: CANN 8.1.RC1, public TBE copy,
impl/dynamic/arg_common.py, whose segments are multiples of 8192). That NaN remains too, and that
such a row gives its last index, is assumed; so is all of `amax`, whose kernel is built by a closed
generator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, Duplicate, ScalarAlu
from npusim.kernel import Block, GmView, VectorCore, pieces, repeat
from npusim.ops import _vocabulary as ops
from npusim.ops.families.reductions import kernel
from npusim.ops.families.reductions.contract import Problem

NAMES = ("amax", "argmax")
"""Operators whose rows may be longer than the buffer."""
SEGMENT = 8192
"""Elements; two segments, and scratch for one, fit into the buffer in every type."""
MAGNITUDE = 0x7FFFFFFF
"""All bits of a float32 except the sign."""
INFINITY = 0x7F800000
"""The bits of infinity; those of NaN are greater."""
LEAST = int(np.float32(-np.inf).view(np.uint32))
"""The bits of the initial maximum, minus infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Runs of rows, each in segments."""

    rows_per_core: int
    segment: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal runs of rows."""
    each = ceil_div(p.rows, kernel.cores_of(spec, p))
    return Plan(
        block_dim=ceil_div(p.rows, each), reads_tiling=False, rows_per_core=each, segment=SEGMENT
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A core processes its rows one after another."""
    segments = SegmentKernel(VectorCore(p.name, spec), p, plan.segment)
    step = kernel.shares(p, plan.rows_per_core, 1, segments.row)
    return segments.core.launch(step, begin=segments.rows.begin)


class SegmentKernel:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, segment: int) -> None:
        self.core, self.p, self.segment = core, p, segment
        # Each segment is treated as a row.
        self.rows = kernel.RowKernel(core, replace(p, columns=segment), tile_rows=1, depth=2)
        is_exact = p.output.element is FLOAT16
        self.dtype = FLOAT16 if is_exact else FLOAT32
        self.largest = core.claim("ub", BLOCK_BYTES).of(self.dtype, 1)
        """The maximum of the segments so far, for `amax`."""

    def row(self, x: GmView, y: GmView) -> None:
        """*x* `(1, columns)`, *y* `(1, 1)`."""
        if self.p.name == "argmax":
            for register, bits in (("best", LEAST), ("at", 0), ("first", 0)):
                self.core.alu("add", register, bits)
        for left, width in pieces(x.columns, self.segment):
            repeat(self.core, self._segment, x[:, left : left + width], left == 0)
        repeat(self.core, self._finish, y)

    def _segment(self, x: GmView, is_first: bool) -> None:
        """Process *x* `(1, segment)`; for `argmax` the first segment is not special."""
        rows, core = self.rows, self.core
        loaded = core.load(rows.x, x)
        src = loaded[: x.columns]
        core.barrier("vector")
        assert rows.values is not None
        rows.row = rows.values[: x.columns]
        if self.p.name == "argmax":
            place = rows.place_of_largest(src)
            rows.x.free(loaded)
            core.sync("vector", "scalar")
            core.get_value("place", place)
            core.sync("scalar", "vector")
            self._keep_larger(x.columns)
            return
        largest = rows.reduced("max", src if self.dtype is FLOAT16 else rows.wide(src))
        rows.x.free(loaded)
        if is_first:
            core.copy(self.largest, largest)
        else:
            core.max(self.largest, self.largest, largest)

    def _keep_larger(self, columns: int) -> None:
        """Keep the registers `largest` and `place` as the best so far, if that is larger."""
        self.core.emit(
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
        core, out = self.core, self.rows.y.alloc()
        dst = out[:1]
        if self.p.name == "argmax":
            last = self.p.columns - 1
            core.emit(*_is_nan("best"), ScalarAlu("select", "at", "is_nan", last, "at"))
            core.sync("scalar", "vector")
            core.emit(Duplicate(dst, "at"))
        elif self.dtype is FLOAT16:
            core.emit(Copy(dst, self.largest))
        else:
            self.rows.narrow(dst, self.largest)
        core.store(self.rows.y, out, y)


def _is_nan(register: str) -> tuple[ScalarAlu, ScalarAlu]:
    """Set the register `is_nan` if *register* holds the bits of NaN."""
    return (
        ScalarAlu("and", "is_nan", register, MAGNITUDE),
        ScalarAlu("lt", "is_nan", INFINITY, "is_nan"),
    )
