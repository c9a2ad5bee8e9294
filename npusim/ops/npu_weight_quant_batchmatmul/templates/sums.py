"""Sums that several cube cores add up in global memory: zeroed before, made the output after.

Both is the work of all vector cores. The zeros must be there before any cube core adds to them, and
every sum complete before one is read: all cores of a kind meet, then tell the other kind
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h,
*_custom_mix_splitk.h: InitOutput, SyncAll, the vector epilogue).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.isa import Cast, Duplicate, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.plane import REPEAT, Plane, by_row
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem

__all__ = ["DONE", "ZEROED", "Finish", "Zeros", "meet_cube_cores"]

ZEROED, DONE = 2, 3
"""Flags between a cube core and its vector cores: sums may be added, and all have been."""
MET = 4
"""Flag among the vector cores, and among the cube cores."""
ZEROS_BYTES = 65536
"""Of a store of zeros, at most; assumed."""
MOST_COLUMNS = 2048
MOST_ROWS = 128
"""Of what is finished at a time; assumed."""


def meet_cube_cores(builder: Builder) -> None:
    """Let all cube cores wait for each other's sums, then tell the vector cores."""
    builder.cross_core_set_flag("all", "fixpipe", MET)
    builder.cross_core_wait_flag("all", "fixpipe", MET)
    builder.cross_core_set_flag("group", "fixpipe", DONE)


class Zeros:
    """Fills the sums with zeros: an even part of them each of *cores* vector cores."""

    def __init__(self, builder: Builder, p: Problem, cores: int) -> None:
        self._builder = builder
        self._count = p.traits.m * p.traits.n
        self._part = align_up(ceil_div(self._count, cores), REPEAT)
        self._most = min(self._part, ZEROS_BYTES // 4)
        self._zeros = self._builder.claim("ub", FLOAT32.nbytes(self._most))

    def write(self, core: int) -> None:
        """Fill the part of vector core number *core*."""
        builder, start = self._builder, core * self._part
        own = max(0, min(self._part, self._count - start))
        if own:
            builder.call("zeros", {}, self._fill)
        for first, count in pieces(own, self._most):
            shifts = {"sums": FLOAT32.nbytes(start + first)}
            builder.call(("zeros", count), shifts, partial(self._store, count))
        builder.call("meet", {}, self._meet)

    def _fill(self) -> None:
        self._builder.emit(Duplicate(self._zeros.of(FLOAT32, self._most), 0.0))
        self._builder.sync("vector", "mte3")

    def _store(self, count: int) -> None:
        place = Global("sums", 0, FLOAT32.nbytes(count))
        self._builder.store(place, self._zeros.of(FLOAT32, count))

    def _meet(self) -> None:
        self._builder.cross_core_set_flag("all", "mte3", MET)
        self._builder.cross_core_wait_flag("all", "mte2", MET)
        self._builder.cross_core_set_flag("group", "mte2", ZEROED)


class Finish:
    """Makes the output of the sums: an even part of the columns each of *cores* vector cores."""

    def __init__(
        self, builder: Builder, p: Problem, cores: int, scaled: bool, mode: Literal["rint", "round"]
    ) -> None:
        """*scaled* says that the scale comes only now, *mode* how the output is rounded."""
        self._p, self._mode, out = p, mode, p.output.element
        self._builder = builder
        self._part = align_up(ceil_div(p.traits.n, cores), REPEAT)
        wide = min(self._part, MOST_COLUMNS)
        self._vectors: list[_Vector] = []
        if scaled:
            self._vectors.append(_Vector(builder, p.antiquant_scale, "mul", wide))
        if p.bias is not None:
            self._vectors.append(_Vector(builder, p.bias, "add", wide))
        row_bytes = 2 * FLOAT32.nbytes(wide) + 2 * out.nbytes(wide)
        self._rows = min(p.traits.m, MOST_ROWS, builder.room_bytes("ub") // row_bytes)
        nbytes = FLOAT32.nbytes(self._rows * wide)
        self._sums = builder.queue("ub", nbytes, "mte2", "vector", 2)
        nbytes = out.nbytes(self._rows * wide)
        self._results = builder.queue("ub", nbytes, "vector", "mte3", 2)

    def write(self, core: int) -> None:
        """Make the part of vector core number *core*."""
        builder, f, out = self._builder, self._p.traits, self._p.output.element
        builder.call("done", {}, self._await)
        start = core * self._part
        own = max(0, min(self._part, f.n - start))
        for first, columns in pieces(own, MOST_COLUMNS):
            column = start + first
            if self._vectors:
                shifts = {v.operand.name: v.operand.element.nbytes(column) for v in self._vectors}
                builder.call(("vectors", columns), shifts, partial(self._take, columns))
            for row, rows in pieces(f.m, self._rows):
                at = row * f.n + column
                shifts = {"sums": FLOAT32.nbytes(at), "output": out.nbytes(at)}
                builder.call(
                    (rows, columns), shifts,
                    partial(self._finish, rows, columns),
                )  # fmt: skip

    def _await(self) -> None:
        self._builder.cross_core_wait_flag("group", "mte2", DONE)

    def _take(self, columns: int) -> None:
        self._builder.sync("vector", "mte2")
        for vector in self._vectors:
            vector.load(columns)
        self._builder.sync("mte2", "vector")
        for vector in self._vectors:
            vector.widen(columns)

    def _finish(self, rows: int, columns: int) -> None:
        builder, out, n = self._builder, self._p.output.element, self._p.traits.n
        wide = align_up(columns, REPEAT)
        slot = self._sums.alloc()
        place = Global("sums", 0, FLOAT32.nbytes(columns), rows, FLOAT32.nbytes(n))
        builder.load(slot.of(FLOAT32, columns), place, FLOAT32.nbytes(wide))
        self._sums.enque(slot)
        slot = self._sums.deque()
        plane = Plane(slot, rows, wide)
        for vector in self._vectors:
            by_row(builder, vector.op, plane, vector.numbers(wide))
        result = self._results.alloc()
        step(builder, Cast(result.of(out, rows * wide), plane.whole(), self._mode))
        self._sums.free(slot)
        self._results.enque(result)
        result = self._results.deque()
        place = Global("output", 0, out.nbytes(columns), rows, out.nbytes(n))
        builder.store(place, result.of(out, columns), out.nbytes(wide))
        self._results.free(result)


class _Vector:
    """Numbers along n, as float32 in the unified buffer."""

    def __init__(
        self, builder: Builder, operand: Operand, op: Literal["mul", "add"], wide: int
    ) -> None:
        self._builder, self.operand, self.op = builder, operand, op
        self._wide = builder.claim("ub", FLOAT32.nbytes(wide))
        self._raw: Slot | None = None
        if operand.element is not FLOAT32:
            self._raw = builder.claim("ub", operand.element.nbytes(wide))

    def load(self, columns: int) -> None:
        element = self.operand.element
        slot = self._raw or self._wide
        place = Global(self.operand.name, 0, element.nbytes(columns))
        self._builder.load(slot.of(element, columns), place)

    def widen(self, columns: int) -> None:
        if self._raw is not None:
            raw = self._raw.of(self.operand.element, columns)
            to_float32(self._builder, self.numbers(columns), raw)

    def numbers(self, count: int) -> Local:
        return self._wide.of(FLOAT32, count)
